"""Rows of the database <-> values of a conversation."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from exlchat.chat.answer_options import PLAIN, AnswerOptions, unpack_answer_options
from exlchat.chat.model import UNTITLED, AnswerRecord, Message
from exlchat.chat.prompt.note import Note
from exlchat.chat.prompt.thinking import unpack_marks
from exlchat.chat.prompt.thought_meter import Thought
from exlchat.chat.store.database import RefusedError
from exlchat.chat.store.schema import MESSAGE
from exlchat.llm.controls import CONTROLS
from exlchat.llm.events import GenerationStats
from exlchat.llm.sampling import SamplingSettings
from exlchat.untrusted.text import storable

_COLUMNS = tuple(column for column in MESSAGE if column.name != "conversation_id")
_FIELDS = tuple(
    {"deleted_at": "deleted", "foreign_json": "foreign"}.get(column.name, column.name) for column in _COLUMNS
)
_IDS = _FIELDS.index("token_ids")
_LONGEST_TITLE = 200
# Marks and what is JSON are read as what they can be: the message itself matters more.
_TYPES = tuple(
    column.types if column.kind in ("text", "ids") or column.name == "created_at" else (object,) for column in _COLUMNS
)

MESSAGE_COLUMNS = tuple(column.name for column in _COLUMNS)
"""Of a message, in the order of its fields; which conversation it belongs to stands outside it."""


def pack_ids(ids: Sequence[int]) -> bytes:
    """Token ids as little-endian 32-bit words."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpack_ids(blob: bytes) -> tuple[int, ...]:
    words = array("I", blob)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)


def pack_record(record: AnswerRecord | None) -> str | None:
    """A record as JSON, field names as they are; of sampling and speech what is not as usual.

    So what is usual never changes: it is what the records of all answers until now mean by what they leave out.
    """
    if record is None:
        return None
    sampling = {name: getattr(record.sampling, name) for name in CONTROLS}
    changed = {name: value for name, value in sampling.items() if value != CONTROLS[name].off}
    content = {one.name: getattr(record, one.name) for one in fields(record)}
    content = {**content, "sampling": changed, "speech": record.speech.changed()}
    return storable(json.dumps(content, default=asdict, ensure_ascii=False))


def unpack_record(text: str | None) -> AnswerRecord | None:
    """The inverse of `pack_record`. Fields that this program does not know are left out.

    A record that cannot be read at all is `None`: the message itself matters more than how it came to be.
    """
    if text is None:
        return None
    try:
        content: dict[str, Any] = json.loads(text)
        stats = content["stats"]
        record = AnswerRecord(
            model=content["model"],
            template=content["template"],
            sampling=_sampling(json.dumps(content["sampling"])),
            stats=None if stats is None else GenerationStats(**_known(GenerationStats, stats)),
            finish_reason=content["finish_reason"],
            # Records of before these fields existed are of answers that saw everything.
            seen_from=content.get("seen_from"),
            summary=content.get("summary"),
            thinking=unpack_marks(content.get("thinking")),
            begun_tokens=content.get("begun_tokens", 0),
            prompt_hash=content.get("prompt_hash"),
            persona=content.get("persona"),
            thinking_on=content.get("thinking_on"),
            thought=_thought(content.get("thought")),
            healed=tuple(content.get("healed", ())),
            speech=_speech(content),
            chances=content.get("chances"),
            note=Note.from_json(content.get("note")),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    return record if _is_usable(record) else None


@lru_cache(maxsize=256)
def _sampling(text: str) -> SamplingSettings:
    """Checked once for all the answers that were drawn by the same values."""
    return SamplingSettings(**_known(SamplingSettings, json.loads(text)))


def _is_usable(record: AnswerRecord) -> bool:
    told = (record.finish_reason, record.seen_from, record.summary, record.prompt_hash, record.persona)
    optional = (*told, record.chances)
    stats = record.stats
    counted = {} if stats is None else {one.name: getattr(stats, one.name) for one in fields(stats)}
    counted.pop("decode_path", None)
    return (
        isinstance(record.model, str)
        and isinstance(record.template, str)
        and all(one is None or isinstance(one, str) for one in optional)
        and all(isinstance(one, int | float) for one in (record.begun_tokens, *counted.values()))
        and all(type(one) is int and 0 <= one < 2**32 for one in record.healed)
        and (record.thinking_on is None or isinstance(record.thinking_on, bool))
    )


def _speech(content: Mapping[str, Any]) -> AnswerOptions:
    # What ends an answer stood by itself before answers were asked for more.
    asked = {"stop": content.get("stop", ()), **content.get("speech", {})}
    return unpack_answer_options(asked) if any(asked.values()) or len(asked) > 1 else PLAIN


def _thought(content: Any) -> Thought | None:
    return None if content is None else Thought(int(content["tokens"]), float(content["seconds"]))


def unpack_message(row: Sequence[Any]) -> Message:
    """A row of `MESSAGE_COLUMNS` as a message.

    Raises:
        RefusedError: a damaged row, which holds values of another kind.
    """
    if not all(map(isinstance, row, _TYPES)) or len(row[_IDS]) % 4:
        raise RefusedError(f"message {row[0]!s:.60} is damaged; exlchat sessions check --repair mends it")
    values: dict[str, Any] = dict(zip(_FIELDS, row, strict=True))
    persona, settings = values["persona"], values["settings"]
    values |= {
        "token_ids": unpack_ids(values["token_ids"]),
        "record": unpack_record(values["record"]),
        "pinned": bool(values["pinned"]),
        "persona": None if persona is None else unpack_object(persona),
        "deleted": values["deleted"] is not None,
        "foreign": unpack_object(values["foreign"]),
        "settings": None if settings is None else unpack_object(settings),
        "left_out": bool(values["left_out"]),
    }
    return Message(**values)


def shown_title(title: object) -> str:
    """A title as it is listed; of a damaged row none: what can be seen can be mended."""
    if not title or not isinstance(title, str):
        return UNTITLED
    # Another program may have written one of a megabyte.
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


def shown_time(seconds: object) -> float:
    """The same of a time; 0.0 where it is none."""
    return seconds if isinstance(seconds, int | float) else 0.0


def require_kinds(conversation_id: str, texts: Iterable[object], times: Iterable[object]) -> None:
    """Refuses the values of a conversation's row that are of another kind; a text may be missing.

    Raises:
        RefusedError: a damaged row.
    """
    whole = all(one is None or isinstance(one, str) for one in texts)
    if not whole or not all(isinstance(one, int | float) for one in times):
        raise RefusedError(f"conversation {conversation_id!s:.60} is damaged; exlchat sessions check --repair mends it")


def message_values(message: Message, deleted_at: float | None = None) -> tuple[object, ...]:
    """A message as the values of `MESSAGE_COLUMNS`, without what no UTF-8 file can hold; hidden since `deleted_at`.

    Raises:
        ValueError: what it carries of a persona or of another program cannot be written as JSON.
    """
    values = {name: getattr(message, name) for name in _FIELDS}
    values |= {
        "token_ids": pack_ids(message.token_ids),
        "record": pack_record(message.record),
        "persona": pack_object(message.persona),
        "deleted": deleted_at,
        "foreign": pack_object(message.foreign or None),
        "settings": pack_object(message.settings),
    }
    return tuple(storable(value) if isinstance(value, str) else value for value in values.values())


def pack_object(content: Mapping[str, Any] | None) -> str | None:
    """A JSON object as text.

    Raises:
        ValueError: it cannot be written as JSON.
    """
    if content is None:
        return None
    try:
        return json.dumps(dict(content))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"it is no JSON object ({error})") from None


def unpack_object(text: object) -> dict[str, Any]:
    """The inverse of `pack_object`; an empty object for what cannot be read."""
    try:
        content = json.loads(text) if text and isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _known(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in content.items() if name in names}
