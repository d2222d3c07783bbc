"""Files of conversations: what kind one is, and the conversations in it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exlchat.chat.exchange import jsonl, llm_logs
from exlchat.chat.exchange.chatgpt import CHATGPT
from exlchat.chat.exchange.claude_ai import CLAUDE_AI
from exlchat.chat.exchange.importing import Importer, Kind, Notes
from exlchat.chat.exchange.limits import CONVERSATIONS, ExchangeError, Problems
from exlchat.chat.exchange.open_webui import OPEN_WEBUI
from exlchat.chat.exchange.openai import OPENAI, SHAREGPT
from exlchat.chat.exchange.parse import Parsed, parse
from exlchat.chat.exchange.raw import SQLITE_MAGIC, ZIP_MAGIC, archive_members, decode, first_bytes, read_bytes
from exlchat.chat.exchange.silly_tavern import SILLY_TAVERN
from exlchat.chat.exchange.small_formats import AICHAT, EXLLAMAV3, EXUI
from exlchat.chat.exchange.textgen import TEXTGEN
from exlchat.chat.model import ConversationTree
from exlchat.untrusted.text import one_line

_LONGEST_LINE = 1000
"""Of an error with a file's name in it, which may have characters of its own that steer a terminal."""

IMPORTERS: tuple[Importer, ...] = (
    # OpenAI's form comes last: others hold messages with a role and a content as well.
    CHATGPT,
    CLAUDE_AI,
    OPEN_WEBUI,
    SILLY_TAVERN,
    TEXTGEN,
    EXLLAMAV3,
    EXUI,
    AICHAT,
    SHAREGPT,
    OPENAI,
)

NAMES: dict[Kind, str] = {"exlchat": "exlchat", "llm": "llm's logs", **{one.kind: one.name for one in IMPORTERS}}
"""What users call each kind."""


@dataclass(frozen=True, slots=True)
class ImportedConversations:
    """What a file held.

    Args:
        trees: the conversations that could be read.
        problems: a line for each thing that was left out or repaired.
        lost: how many conversations could not be read; a line says why of each.
        left_out: how many messages or lines of others are not among `trees`; lines say which.
    """

    kind: Kind
    trees: tuple[ConversationTree, ...]
    problems: tuple[str, ...]
    lost: int = 0
    left_out: int = 0


def detect(path: Path) -> Kind:
    """The kind of a file, by what it holds.

    Raises:
        ExchangeError: it cannot be read, or is of no kind that is known; one line that names it.
    """
    with _named(path):
        return _open(path, Problems()).kind


def read(path: Path) -> ImportedConversations:
    """The conversations of a file of any kind.

    Raises:
        ExchangeError: as `detect`. What is wrong with one conversation alone is a line among the problems.
    """
    problems = Problems()
    with _named(path):
        found = _open(path, problems)
        began = _modified(path)
        if found.kind == "llm":
            trees = llm_logs.conversations(path, began, problems)
        elif found.importer is None:
            trees = [tree for parsed in found.parsed for tree in jsonl.conversations(parsed, problems)]
        else:
            trees = list(_converted(found.importer, found.parsed, began, problems))
    return ImportedConversations(found.kind, tuple(trees), problems.lines(), problems.lost, problems.left_out)


@dataclass(frozen=True, slots=True)
class _Found:
    kind: Kind
    parsed: Sequence[Parsed] = ()
    importer: Importer | None = None


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Puts the file's name before an error that has none."""
    try:
        yield
    except ExchangeError as error:
        said = str(error)
        named = said if said.startswith(str(path)) else f"{path} cannot be imported: {said}"
        raise ExchangeError(one_line(named, _LONGEST_LINE)) from None


def _open(path: Path, problems: Problems) -> _Found:
    head = first_bytes(path)
    if head.startswith(SQLITE_MAGIC):
        if not llm_logs.is_llm(path):
            raise ExchangeError("it is a database, but not llm's logs.db; of databases only that is read")
        return _Found("llm")
    contents = archive_members(path, problems) if head.startswith(ZIP_MAGIC) else [read_bytes(path)]
    parsed = [parse(decode(content, problems), problems) for content in contents]
    if any(jsonl.is_ours(one.values) for one in parsed):
        return _Found("exlchat", parsed)
    for importer in IMPORTERS:
        if any(importer.items(one) for one in parsed):
            return _Found(importer.kind, parsed, importer)
    raise ExchangeError("it holds no conversations in a form that is known")


def _converted(
    importer: Importer, parsed: Sequence[Parsed], began: float, problems: Problems
) -> Iterator[ConversationTree]:
    items = [item for one in parsed for item in importer.items(one)]
    if len(items) > CONVERSATIONS:
        raise ExchangeError(f"it holds {len(items)} conversations; at most {CONVERSATIONS} are read")
    for number, item in enumerate(items, 1):
        where = _label(importer, item, number, len(items))
        try:
            yield importer.convert(item, Notes(began, where, problems))
        except ExchangeError as error:
            problems.lose(where, str(error))


def _label(importer: Importer, item: Any, number: int, count: int) -> str:
    title = importer.title_of(item)
    named = f" ({title[:80]})" if isinstance(title, str) and title else ""
    return f"conversation {number}{named}" if count > 1 or named else ""


def _modified(path: Path) -> float:
    try:
        seconds = path.stat().st_mtime
    except OSError:
        return time.time()
    return seconds if math.isfinite(seconds) and seconds > 0 else time.time()
