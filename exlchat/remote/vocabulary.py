"""Text and ids of a model that is elsewhere: by its server's tokenizer, or by pieces of text where it has none.

Pieces are not the model's tokens. They stand for their text exactly, whoever made them, and about as many of them are
in a text as there are tokens: so prompts are built, counted and cut as those of a model that is here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

_MOST_REMEMBERED = 4096
_AT_ONCE = 8
"""Requests, where each is a connection and nothing waits for the one before."""
_PIECE = 4
"""Characters of ASCII in a piece; any other character is one of its own."""
_BEYOND_ASCII = 2**31
_WORD = re.compile(r"\s?[^\W_]+|\s+|[\W_]")
_PIECES = re.compile(rf"[\x00-\x7f]{{1,{_PIECE}}}|[^\x00-\x7f]", re.DOTALL)
MARK = re.compile(r"<\|[^\s<>|]{1,40}\|>|</?[a-z_]{1,20}>|\[/?[A-Z_]{2,20}\]|<[｜|][^\s<>]{1,40}[｜|]>")
"""What marks of turns and thoughts look like."""


class Vocabulary(Protocol):
    """As `llm.port.TextModel` says."""

    size: int

    def encode(self, text: str, *, special: bool = True) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str: ...


class PieceVocabulary:
    """Ids that are pieces of words: up to four characters of ASCII, how many of them in the upper bits, or another one.

    Args:
        guarded: a mark in a text that is not to hold any gets a character without width in its middle, because the
            server would take it for the token. Nothing else keeps what somebody writes from ending their own turn.
    """

    size = 2**32

    def __init__(self, *, guarded: bool) -> None:
        self._guarded = guarded

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        if self._guarded and not special:
            text = apart(text, "\u200c")
        return [_id(piece) for word in _WORD.findall(text) for piece in _PIECES.findall(word)]

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        del special
        return "".join(_piece(one) for one in ids)


class ServerVocabulary:
    """The tokenizer of a server, asked over the network and remembered.

    Args:
        ask_ids: text -> ids, with the marks in it as their tokens.
        ask_text: ids -> text, with that of all tokens.
        ask_plain: text -> ids in which no mark is a token; without it marks are asked for in halves.
        size: of the vocabulary.
        marks: texts of tokens that mark turns; their ids are left out where special tokens are not to be told.
    """

    def __init__(
        self,
        ask_ids: Callable[[str], list[int]],
        ask_text: Callable[[Sequence[int]], str],
        *,
        size: int,
        ask_plain: Callable[[str], list[int]] | None = None,
        marks: Sequence[str] = (),
    ) -> None:
        self._ask_ids, self._ask_text, self._ask_plain = ask_ids, ask_text, ask_plain
        self.size = size
        self._ids: dict[tuple[str, bool], list[int]] = {}
        self._texts: dict[tuple[int, ...], str] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            asked = zip(marks, pool.map(self.encode, marks), strict=True)
            self.marks = {text: ids[0] for text, ids in asked if len(ids) == 1}
        """Those of `marks` that are one token each."""
        self._special = frozenset(id_ for text, id_ in self.marks.items() if text.startswith(("<|", "[", "<s", "</s")))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        found = self._ids.get((text, special))
        if found is None:
            found = self._asked(text, special=special) if text else []
            _remember(self._ids, (text, special), found)
        return list(found)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        key = tuple(ids) if special else tuple(one for one in ids if one not in self._special)
        found = self._texts.get(key)
        if found is None:
            found = self._ask_text(key) if key else ""
            _remember(self._texts, key, found)
        return found

    def _asked(self, text: str, *, special: bool) -> list[int]:
        if special:
            return self._ask_ids(text)
        if self._ask_plain is not None:
            return self._ask_plain(text)
        return [one for half in apart(text, "\0").split("\0") if half for one in self._ask_ids(half)]


def apart(text: str, between: str) -> str:
    """`text` with something in the middle of each mark, behind its first character."""
    return MARK.sub(lambda found: f"{found[0][:1]}{between}{found[0][1:]}", text)


def _remember(known: dict, key: object, value: object) -> None:  # type: ignore[type-arg]
    if len(known) >= _MOST_REMEMBERED:
        # The oldest half goes: conversations ask for what they asked for last.
        for old in list(known)[: _MOST_REMEMBERED // 2]:
            known.pop(old, None)
    known[key] = value


def _id(piece: str) -> int:
    if not piece.isascii():
        return _BEYOND_ASCII + ord(piece)
    found = len(piece)
    for character in piece:
        found = found << 7 | ord(character)
    return found << 7 * (_PIECE - len(piece))


def _piece(id_: int) -> str:
    if id_ >= _BEYOND_ASCII:
        return chr(min(id_ - _BEYOND_ASCII, 0x10FFFF))
    count = min(id_ >> 7 * _PIECE, _PIECE)
    return "".join(chr(id_ >> 7 * (_PIECE - 1 - at) & 0x7F) for at in range(count))
