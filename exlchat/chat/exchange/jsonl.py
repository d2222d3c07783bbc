"""Our own file: a line for each conversation, then one for each of its messages. Nothing is lost in it.

`{"exlchat": "conversation", "version": 1, "title": ..., "messages": n}` begins a conversation and
`{"exlchat": "message", "id": ..., "parent": ...}` follow it, parents before children. Fields that say nothing are left
out. A version above ours is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any, get_args

from exlchat.chat.exchange.limits import ExchangeError, Problems
from exlchat.chat.exchange.mending import known_tip, mended
from exlchat.chat.exchange.parse import Parsed
from exlchat.chat.exchange.values import clean, listing, mapping, text_of
from exlchat.chat.model import AnswerRecord, ConversationTree, Message, MessageStatus, Role
from exlchat.chat.store.rows import pack_record, unpack_record
from exlchat.llm.events import DecodePath, FinishReason, GenerationStats

MARK = "exlchat"
VERSION = 1

_LARGEST_ID = (1 << 32) - 1


def lines(trees: Sequence[ConversationTree]) -> Iterator[str]:
    for tree in trees:
        header = {name: value for name, value in _fields(tree) if name != "messages"}
        yield _line({MARK: "conversation", "version": VERSION, **header, "messages": len(tree.messages)})
        for message in tree.messages:
            content = dict(_fields(message))
            if message.record is not None:
                content["record"] = json.loads(pack_record(message.record) or "null")
            yield _line({MARK: "message", **content})


def _fields(value: ConversationTree | Message) -> Iterator[tuple[str, Any]]:
    """Those that are not as they are by default."""
    for field in fields(value):
        content = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if (field.default is MISSING and field.default_factory is MISSING) or content != default:
            yield field.name, content


def _line(content: Mapping[str, Any]) -> str:
    line = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        line = json.dumps(content, separators=(",", ":"))
    return line + "\n"


def is_ours(values: Sequence[Any]) -> bool:
    return any(MARK in mapping(value) for value in values[:3])


def conversations(parsed: Parsed, problems: Problems) -> Iterator[ConversationTree]:
    """The conversations of a file of ours; what is wrong with one is a line and does not stop the others."""
    header: Mapping[str, Any] | None = None
    messages: list[Message] = []
    skipping = False
    for value, number in zip(parsed.values, parsed.lines, strict=True):
        content, where = mapping(value), f"line {number}"
        kind = content.get(MARK)
        if kind == "conversation":
            yield from _finished(header, messages, problems)
            header, messages = None, []
            skipping = content.get("version") != VERSION
            if skipping:
                problems.lose(where, f"version {content.get('version')}, and this exlchat reads {VERSION}")
            else:
                header = content
        elif kind != "message":
            problems.leave_out(where, "left out: it is neither a conversation nor a message")
        elif header is not None:
            try:
                messages.append(_message(content, problems, where))
            except ExchangeError as error:
                problems.leave_out(where, f"left out: {error}")
        elif not skipping:
            problems.leave_out(where, "left out: no conversation stands before this message")
    yield from _finished(header, messages, problems)


def _finished(
    header: Mapping[str, Any] | None, messages: Sequence[Message], problems: Problems
) -> Iterator[ConversationTree]:
    if header is None:
        return
    where = repr(text_of(header.get("title")) or text_of(header.get("id")) or "a conversation")
    try:
        whole = mended(messages, problems, where)
        if header.get("messages") != len(messages):
            problems.leave_out(where, f"{header.get('messages')} messages were written and {len(messages)} are here")
        created = _time(header, "created_at")
        yield ConversationTree(
            title=text_of(header.get("title")),
            created_at=created,
            updated_at=_time(header, "updated_at", created),
            tip_id=known_tip(whole, text_of(header.get("tip_id")), problems, where),
            messages=whole,
            id=text_of(header.get("id")),
            tags=tuple(tag for entry in listing(header.get("tags")) if (tag := text_of(entry)) is not None),
            pinned=header.get("pinned") is True,
            archived=header.get("archived") is True,
            draft=text_of(header.get("draft")) or "",
            foreign=clean(mapping(header.get("foreign"))),
        )
    except ExchangeError as error:
        problems.lose(where, str(error))


def _message(content: Mapping[str, Any], problems: Problems, where: str) -> Message:
    ident, text = text_of(content.get("id")), text_of(content.get("text"))
    role: Any = content.get("role")
    status = content.get("status", "complete")
    if ident is None or text is None or role not in get_args(Role) or status not in get_args(MessageStatus):
        raise ExchangeError("a message needs an id, a text, and a role and a status of those that there are")
    persona, settings = content.get("persona"), content.get("settings")
    return Message(
        id=ident,
        parent_id=text_of(content.get("parent_id")),
        role=role,
        text=text,
        created_at=_time(content, "created_at"),
        status=status,
        token_ids=_token_ids(content.get("token_ids"), problems, where),
        record=_record(content.get("record"), problems, where),
        pinned=content.get("pinned") is True,
        summary=text_of(content.get("summary")),
        thinking=text_of(content.get("thinking")),
        persona=clean(persona) if isinstance(persona, dict) else None,
        edited_from=text_of(content.get("edited_from")),
        deleted=content.get("deleted") is True,
        foreign=clean(mapping(content.get("foreign"))),
        settings=clean(settings) if isinstance(settings, dict) else None,
        left_out=content.get("left_out") is True,
    )


def _time(content: Mapping[str, Any], name: str, otherwise: float = 0.0) -> float:
    """As it was written; no guesses about units."""
    value = content.get(name)
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise
    except OverflowError:
        return otherwise


def _token_ids(value: object, problems: Problems, where: str) -> tuple[int, ...]:
    ids = listing(value)
    if all(type(one) is int and 0 <= one <= _LARGEST_ID for one in ids):
        return tuple(ids)
    problems.add(where, "its token ids are no token ids; the message is read without them")
    return ()


def _record(value: object, problems: Problems, where: str) -> AnswerRecord | None:
    if value is None:
        return None
    record = unpack_record(json.dumps(clean(value)))
    if record is None or not _is_sound(record):
        problems.add(where, "how the answer came to be cannot be read; the message is read without it")
        return None
    return record


def _is_sound(record: AnswerRecord) -> bool:
    """`unpack_record` trusts our own database and looks at no types."""
    told = (record.seen_from, record.summary, record.prompt_hash, record.persona)
    return (
        all(isinstance(text, str) for text in (record.model, record.template))
        and all(text is None or isinstance(text, str) for text in told)
        and type(record.begun_tokens) is int
        and record.finish_reason in (None, *get_args(FinishReason))
        and (record.stats is None or _are_sound(record.stats))
    )


def _are_sound(stats: GenerationStats) -> bool:
    numbers = [getattr(stats, field.name) for field in fields(stats) if field.name not in ("decode_path", "exact")]
    others = stats.decode_path in get_args(DecodePath) and isinstance(stats.exact, bool)
    return others and all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
