"""llm's `logs.db`: until 0.31 a row for each prompt with its answer, from 0.32 on a tree of messages with threads.

A database that has been upgraded holds both; a conversation that is a thread is read as one. What was sent to a model's
provider and came from it (`prompt_json`, `response_json`) and attachments are left out.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exlchat.chat.exchange.chain import Above, Chain, Draft, no_empty
from exlchat.chat.exchange.importing import Notes
from exlchat.chat.exchange.limits import FILE_BYTES, ExchangeError, Problems
from exlchat.chat.exchange.raw import reason_of
from exlchat.chat.exchange.values import clean, listing, mapping, name_of, rest, seconds_of, split_thinking, text_of
from exlchat.chat.model import ConversationTree, Message, Role
from exlchat.untrusted.files import UntrustedFileError, check_plain

Row = Mapping[str, Any]

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}
_THREADS = ("threads", "turns", "messages", "parts")
_KNOWN_RESPONSE = ("id", "model", "prompt", "system", "response", "conversation_id", "datetime_utc", "reasoning")
_KNOWN_TURN = ("thread_id", "parent_message_hash", "tip_message_hash", "model", "datetime_utc")


def is_llm(path: Path) -> bool:
    """Whether the database is llm's.

    Raises:
        ExchangeError: it is damaged.
    """
    with open_llm(path) as db:
        return _has_legacy(db) or _has_threads(db)


def _has_legacy(db: LlmDatabase) -> bool:
    """Many programs have a table of that name; only llm's has both columns."""
    return db.has("responses") and {"prompt", "response"} <= set(db.columns("responses"))


def _has_threads(db: LlmDatabase) -> bool:
    return db.has(*_THREADS) and "tip_message_hash" in db.columns("threads")


def conversations(path: Path, began: float, problems: Problems) -> list[ConversationTree]:
    """All threads and conversations; what is wrong with one is a line and does not stop the others.

    Raises:
        ExchangeError: the database is damaged.
    """
    if waiting_changes(path):
        problems.leave_out("", f"{path.name}-wal holds changes that are not in it yet; let llm finish and import again")
    found: list[ConversationTree] = []
    with open_llm(path) as db:
        fragments = _fragments(db)
        threads = _Threads(db, fragments) if _has_threads(db) else None
        if threads is not None:
            found += _converted(threads.each(), began, problems)
        if _has_legacy(db):
            known = threads.names if threads is not None else frozenset()
            found += _converted(_legacy(db, fragments, known), began, problems)
    return found


def _converted(each: Iterator[Any], began: float, problems: Problems) -> Iterator[ConversationTree]:
    for one in each:
        where = repr(one.title or one.ident)
        try:
            yield one.convert(Notes(began, where, problems))
        except ExchangeError as error:
            problems.lose(where, str(error))


def _fragments(db: LlmDatabase) -> dict[int, str]:
    if not db.has("fragments"):
        return {}
    return {_whole(row.get("id")): text_of(row.get("content")) or "" for row in db.rows("fragments", "id")}


# Until 0.31


@dataclass(slots=True)
class _Legacy:
    ident: str
    title: str | None
    rows: list[Row] = field(default_factory=list)
    fragments: Mapping[tuple[str, object], str] = field(default_factory=dict)

    def convert(self, notes: Notes) -> ConversationTree:
        """Prompt after prompt; a system prompt where it is another than before."""
        times = [at for row in self.rows if (at := seconds_of(row.get("datetime_utc"))) is not None]
        chain = Chain(times[0] if times else notes.began)
        system: str | None = None
        for row in self.rows:
            at = seconds_of(row.get("datetime_utc"))
            told = self._with_fragments("system_fragments", row, "system")
            if told and told != system:
                chain.add(Draft("system", told, at))
                system = told
            prompt = self._with_fragments("prompt_fragments", row, "prompt")
            if prompt:
                chain.add(Draft("user", prompt, at))
            thinking, text = split_thinking(text_of(row.get("response")) or "")
            thinking = text_of(row.get("reasoning")) or thinking
            options = clean(json_of(row.get("options_json")))
            fields = rest(row, *_KNOWN_RESPONSE, "options_json") | no_empty(options=options)
            foreign = no_empty(model=name_of(row.get("model")), llm=fields)
            chain.add(Draft("assistant", text, at, thinking, foreign))
        return notes.of_chain("llm", chain, title=self.title, fields={"conversation": self.ident})

    def _with_fragments(self, table: str, row: Row, column: str) -> str:
        parts = (self.fragments.get((table, row.get("id")), ""), text_of(row.get(column)) or "")
        return "\n".join(part for part in parts if part)


def _legacy(db: LlmDatabase, fragments: Mapping[int, str], known: frozenset[str]) -> Iterator[_Legacy]:
    names: dict[object, object] = {}
    if db.has("conversations"):
        names = {row.get("id"): row.get("name") for row in db.rows("conversations", "id")}
    used = {(table, ident): text for table, ident, text in _used_fragments(db, fragments)}
    by_id: dict[str, _Legacy] = {}
    for row in db.rows("responses", "id"):
        ident = name_of(row.get("conversation_id")) or name_of(row.get("id")) or "a response"
        if ident not in known:
            name = name_of(names.get(row.get("conversation_id")))
            by_id.setdefault(ident, _Legacy(ident, name, fragments=used)).rows.append(row)
    yield from by_id.values()


def _used_fragments(db: LlmDatabase, fragments: Mapping[int, str]) -> Iterator[tuple[str, object, str]]:
    """Table, id of a response and the texts of its fragments."""
    for table in ("prompt_fragments", "system_fragments"):
        texts: dict[object, list[str]] = {}
        for row in db.rows(table, "order") if db.has(table) else ():
            texts.setdefault(row.get("response_id"), []).append(fragments.get(_whole(row.get("fragment_id")), ""))
        for ident, found in texts.items():
            yield table, ident, "\n".join(found)


# From 0.32 on


@dataclass(slots=True)
class _Node:
    ident: str
    parent: str | None
    role: Role | None
    text: str = ""
    thinking: str | None = None
    others: list[Any] = field(default_factory=list)
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_message(self) -> bool:
        """A tool's call or result alone is a step towards an answer."""
        return self.role is not None and (bool(self.text) or not self.others)


class _Threads:
    def __init__(self, db: LlmDatabase, fragments: Mapping[int, str]) -> None:
        self._nodes = _nodes(db, fragments)
        self._threads = list(db.rows("threads", "id"))
        self._turns: dict[object, list[Row]] = {}
        for turn in db.rows("turns", "id"):
            self._turns.setdefault(turn.get("thread_id"), []).append(turn)
        self.names = frozenset(ident for row in self._threads if (ident := name_of(row.get("id"))) is not None)

    def each(self) -> Iterator[_Thread]:
        for row in self._threads:
            yield _Thread(row, self._turns.get(row.get("id"), []), self._nodes)


class _Thread:
    def __init__(self, row: Row, turns: list[Row], nodes: Mapping[str, _Node]) -> None:
        self.ident = name_of(row.get("id")) or "a thread"
        self.title = name_of(row.get("name"))
        self._row = row
        self._turns = turns
        self._all = nodes

    def convert(self, notes: Notes) -> ConversationTree:
        began = seconds_of(self._row.get("datetime_utc")) or notes.began
        turn_of = self._reached()
        nodes = {ident: self._all[ident] for ident in turn_of}
        above = Above(nodes)
        tip = name_of(self._row.get("tip_message_hash"))
        followed = {node.parent for node in nodes.values()}
        messages = [
            _message(node, *above.of(node), turn_of[ident], began)
            for ident, node in nodes.items()
            if node.is_message or ident not in followed
        ]
        return notes.whole(
            "llm",
            messages,
            tip,
            title=self.title,
            created_at=began,
            fields={"conversation": self.ident, **rest(self._row, "id", "name", "tip_message_hash", "datetime_utc")},
        )

    def _reached(self) -> dict[str, Row]:
        """Ids of the messages, parents first, each with the first turn that had it."""
        reached: dict[str, Row] = {}
        for turn in (*self._turns, {"tip_message_hash": self._row.get("tip_message_hash")}):
            path: dict[str, None] = {}
            at = name_of(turn.get("tip_message_hash"))
            while at is not None and at in self._all and at not in reached and at not in path:
                path[at] = None
                at = self._all[at].parent
            reached.update((ident, turn) for ident in reversed(path))
        return reached


def _nodes(db: LlmDatabase, fragments: Mapping[int, str]) -> dict[str, _Node]:
    nodes: dict[str, _Node] = {}
    for row in db.rows("messages", "rowid"):
        ident = name_of(row.get("hash"))
        if ident is not None:
            role = _ROLES.get(name_of(row.get("role")) or "")
            fields = rest(row, "hash", "parent_hash", "role")
            nodes[ident] = _Node(ident, name_of(row.get("parent_hash")), role, fields=fields)
    for part in db.rows("parts", "position"):
        node = nodes.get(name_of(part.get("message_hash")) or "")
        if node is not None:
            _add_part(node, part, fragments)
    return nodes


def _add_part(node: _Node, part: Row, fragments: Mapping[int, str]) -> None:
    payload = mapping(json_of(part.get("payload")))
    text = text_of(part.get("text")) or "".join(
        text_of(piece.get("literal")) or fragments.get(_whole(piece.get("fragment")), "")
        for piece in map(mapping, listing(payload.get("text_ref")))
    )
    match part.get("type"):
        case "text":
            node.text += text
        case "reasoning":
            node.thinking = (node.thinking or "") + text
        case _:
            node.others.append(
                rest(part, "id", "message_hash", "position", "payload") | no_empty(payload=clean(payload))
            )


def _whole(value: object) -> int:
    return value if isinstance(value, int) else -1


def _message(node: _Node, parent: str | None, steps: list[_Node], turn: Row, began: float) -> Message:
    thinking = "\n\n".join(thought for one in (*steps, node) if (thought := one.thinking))
    role: Role = node.role if node.role is not None and node.is_message else "assistant"
    fields = node.fields if role != "assistant" else {**node.fields, **rest(turn, *_KNOWN_TURN, "id")}
    foreign = no_empty(
        model=name_of(turn.get("model")) if role == "assistant" else None,
        steps=[other for step in steps for other in step.others],
        llm=no_empty(**fields, parts=node.others),
    )
    at = seconds_of(turn.get("datetime_utc")) or began
    return Message(node.ident, parent, role, node.text, at, thinking=thinking or None, foreign=foreign)


_SECONDS = 20.0
_STEPS_BETWEEN_LOOKS = 100_000
_ROWS = 2_000_000
_VALUE_BYTES = 64 * 1024 * 1024
_COMPUTED = frozenset({2, 3})
"""`PRAGMA table_xinfo` marks columns with these whose values are computed when they are read."""


class LlmDatabase:
    """Tables of a database, as rows by column name; only real tables, because views and computed columns run SQL."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._rows = 0
        self._characters = 0
        self._tables = {
            name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
        }

    def has(self, *tables: str) -> bool:
        return self._tables.issuperset(tables)

    def columns(self, table: str) -> list[str]:
        """Names of a table's columns.

        Raises:
            ExchangeError: some are computed when they are read.
        """
        found = [(str(row[1]), int(row[6])) for row in self._db.execute(f'PRAGMA table_xinfo("{table}")')]
        if any(hidden in _COMPUTED for _, hidden in found):
            raise ExchangeError(f"its table {table} has computed columns, which llm does not write")
        return [name for name, _ in found]

    def rows(self, table: str, order: str) -> Iterator[dict[str, Any]]:
        """All rows; `order` is a column, used where the table has it.

        Raises:
            ExchangeError: the table is too large, or computes its columns.
        """
        # Copies of what was sent are not needed, and are most of a database.
        names = [name for name in self.columns(table) if name not in {"prompt_json", "response_json"}]
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
        by = f' ORDER BY "{order}"' if order in names else ""
        for row in self._db.execute(f'SELECT {quoted} FROM "{table}"{by}'):
            self._count(row)
            yield dict(zip(names, row, strict=True))

    def _count(self, row: tuple[Any, ...]) -> None:
        self._rows += 1
        self._characters += sum(len(value) for value in row if isinstance(value, str | bytes))
        if self._rows > _ROWS or self._characters > FILE_BYTES:
            raise ExchangeError(f"it has more than {_ROWS} rows or {FILE_BYTES >> 20} MiB of text")


@contextmanager
def open_llm(path: Path) -> Iterator[LlmDatabase]:
    """Opens it to be read only, as if it never changed, so that not even a lock is taken.

    Raises:
        ExchangeError: it is damaged, or reading takes too long.
    """
    try:
        check_plain(path)
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
            db.text_factory = lambda content: content.decode("utf-8", "replace")
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA query_only = ON")
            deadline = time.monotonic() + _SECONDS
            db.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS_BETWEEN_LOOKS)
            yield LlmDatabase(db)
    except UntrustedFileError as error:
        raise ExchangeError(str(error)) from None
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError) as error:
        # Python cannot decode SQLite's own messages where they quote a damaged schema.
        raise ExchangeError(f"{path} cannot be read as a database ({reason_of(error)})") from None


def waiting_changes(path: Path) -> bool:
    """Whether changes lie beside the database that are not in it yet."""
    beside = path.with_name(path.name + "-wal")
    try:
        return beside.stat().st_size > 0
    except OSError:
        return False


def json_of(value: object) -> Any:
    """What a column with JSON holds; `None` for what is none."""
    if not isinstance(value, str):
        return None
    try:
        return json.loads(value, parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return None
