"""The ids that a model generated, where they still stand for the text of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from exlchat.chat.model import Message
from exlchat.llm.info import ModelInfo
from exlchat.llm.port import TextModel

_ANCHOR = "x"
_REPLACEMENT = "\ufffd"
_MOST_BROKEN = 3
"""Bytes of UTF-8 that can be a character in the making."""
_STEPS_BACK = 16
"""How many tokens may hold parts of one character or of one stop string; UTF-8 needs 4."""


def answer_ids(engine: TextModel, text: str, ids: Sequence[int], *, stripped: bool = False) -> tuple[int, ...]:
    """Ids for an answer's `text`: as many of the generated `ids` as agree with it, then the encoded rest.

    A cut answer can have ids whose text was never shown (half a character, half a stop string). White space at the
    beginning is not compared: some decoders drop it. `stripped` says that the template drops the white space at the
    end of `text`: what of it was generated stays nevertheless, because it is in the cache.
    """
    count, rest = agreement(engine, text, ids)
    if stripped:
        rest = rest.rstrip()
    return (*ids[:count], *(encode_after(engine, rest) if rest else ()))


def begun_text(engine: TextModel, ids: Sequence[int]) -> str:
    """The text of an answer's first `ids`, without a character that only later ones make whole."""
    text = engine.decode(ids)
    broken = len(text) - len(text.rstrip(_REPLACEMENT))
    return text[: len(text) - min(broken, _MOST_BROKEN)]


def ids_behind(engine: TextModel, text: str, ids: Sequence[int], start: int) -> tuple[int, ...]:
    """Those of an answer's `ids` that spell its `text` from character `start` on; none where a token spans that place.

    White space at the beginning is not compared: some decoders drop it.
    """
    before = text[:start].lstrip()
    count = _count_within(engine, ids, len(before))
    return tuple(ids[count:]) if engine.decode(ids[:count]).lstrip() == before else ()


def with_own_ids(message: Message, info: ModelInfo) -> Message:
    """`message` without ids that another model generated: they may be control tokens of this one, or none at all.

    Their decoded text would not tell: what a tokenizer does not know or takes for a control token decodes to nothing.
    """
    foreign = message.record is not None and message.record.model != info.name
    if message.token_ids and (foreign or max(message.token_ids) >= info.vocab_size):
        return replace(message, token_ids=())
    return message


def agreement(engine: TextModel, text: str, ids: Sequence[int]) -> tuple[int, str]:
    """How many of `ids`, from the first, spell a beginning of `text`, and the text that is left."""
    decoded = engine.decode(ids)
    rest = _after(text, decoded)
    if rest is not None:
        return len(ids), rest
    pairs = zip(text.lstrip(), decoded.lstrip(), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    count = _count_within(engine, ids, shared)
    for candidate in range(count, max(count - _STEPS_BACK, 0), -1):
        rest = _after(text, engine.decode(ids[:candidate]))
        if rest is not None:
            return candidate, rest
    return 0, text


def encode_after(engine: TextModel, text: str, *, special: bool = False) -> list[int]:
    """Ids of `text` as they are in the middle of a line: without the space that some tokenizers put before a text."""
    alone = engine.encode(_ANCHOR, special=special)
    joined = engine.encode(_ANCHOR + text, special=special)
    if joined[: len(alone)] == alone:
        return joined[len(alone) :]
    return engine.encode(text, special=special)


def _count_within(engine: TextModel, ids: Sequence[int], length: int) -> int:
    """The largest number of `ids` whose text is at most `length` long, by halving: a decode costs its whole length."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        if len(engine.decode(ids[:middle]).lstrip()) <= length:
            low = middle
        else:
            high = middle - 1
    return low


def _after(text: str, decoded: str) -> str | None:
    """What follows `decoded` in `text`, or `None` when `text` does not begin with it."""
    if text.startswith(decoded):
        return text[len(decoded) :]
    bare_text, bare = text.lstrip(), decoded.lstrip()
    return bare_text[len(bare) :] if bare and bare_text.startswith(bare) else None
