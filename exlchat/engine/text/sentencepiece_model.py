"""A SentencePiece `tokenizer.model` as plain values.

The file is one protobuf message, and of protobuf only its wire format is needed: a few lines here, where a library
would bring a compiler's output for a schema of a hundred fields. Field numbers: `sentencepiece_model.proto` of
google/sentencepiece.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

SPACE = "\u2581"
"""What stands for a space in pieces."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_Value = int | bytes
_Message = dict[int, list[_Value]]


class PieceKind(IntEnum):
    """What a piece is to the model."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its place is its id. Of two that fit, the higher score counts."""

    text: str
    score: float
    kind: PieceKind


@dataclass(frozen=True, slots=True)
class SentencePieceModel:
    """What `tokenizer.model` says.

    Args:
        pieces: the vocabulary by id.
        algorithm: how text is cut.
        byte_fallback: whether a character that no piece has becomes pieces of its UTF-8 bytes.
        unknown_id, bos_id, eos_id: -1 where the model has none.
        add_dummy_prefix: whether a space is put before a text.
        remove_extra_whitespaces: whether runs of spaces become one and those at both ends none.
        character_map: the normalizer's compiled rules; empty where text stays as it is.
    """

    pieces: tuple[Piece, ...]
    algorithm: Literal["unigram", "bpe"]
    byte_fallback: bool
    unknown_id: int
    bos_id: int
    eos_id: int
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    character_map: bytes

    def text_of(self, index: int) -> str:
        """The piece with this id; empty where there is none."""
        return self.pieces[index].text if 0 <= index < len(self.pieces) else ""


def parse(data: bytes) -> SentencePieceModel:
    """The model in the bytes of a `tokenizer.model`.

    Raises:
        ValueError: these are not the bytes of one, or of a kind that has no pieces to cut text into.
    """
    model = _message(data)
    pieces = tuple(_piece(_bytes(entry)) for entry in model.get(1, []))
    if not pieces:
        raise ValueError("it has no pieces")
    if len({piece.text for piece in pieces}) < len(pieces):
        raise ValueError("it has the same piece twice")
    trainer, normalizer = _part(model, 2), _part(model, 3)
    algorithm = _number(trainer, 3, 1)
    if algorithm not in {1, 2}:
        name = {3: "whole words", 4: "single characters"}.get(algorithm, f"algorithm {algorithm}")
        raise ValueError(f"it cuts text into {name}, and exlchat knows unigram and BPE")
    unknown = _number(trainer, 40, 0)
    if not 0 <= unknown < len(pieces):
        raise ValueError(f"its unknown piece is {unknown} of {len(pieces)}")
    return SentencePieceModel(
        pieces=pieces,
        algorithm="unigram" if algorithm == 1 else "bpe",
        byte_fallback=bool(_number(trainer, 35, 0)),
        unknown_id=unknown,
        bos_id=_number(trainer, 41, 1),
        eos_id=_number(trainer, 42, 2),
        add_dummy_prefix=bool(_number(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_number(normalizer, 4, 1)),
        character_map=_bytes(normalizer.get(2, [b""])[-1]),
    )


def _piece(data: bytes) -> Piece:
    fields = _message(data)
    text = _bytes(fields.get(1, [b""])[-1]).decode("utf-8")
    score = _bytes(fields.get(2, [bytes(4)])[-1])
    if not text or len(score) != 4 or not math.isfinite(struct.unpack("<f", score)[0]):
        raise ValueError("it has a piece without text or score")
    return Piece(text, struct.unpack("<f", score)[0], PieceKind(_number(fields, 3, 1)))


def _part(message: _Message, number: int) -> _Message:
    return _message(_bytes(message.get(number, [b""])[-1]))


def _number(message: _Message, number: int, default: int) -> int:
    """A whole number; int32 travels as 64 bits in two's complement."""
    value = message.get(number, [default])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value - (1 << 64) if value >= 1 << 63 else value


def _bytes(value: _Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number stands where text belongs")
    return value


def _message(data: bytes) -> _Message:
    """All values of a message by field number: numbers as they are, everything else as bytes."""
    found: _Message = {}
    for number, value in _fields(data):
        found.setdefault(number, []).append(value)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, _Value]]:
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        wire = key & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in {_FIXED_64, _FIXED_32}:
            size = 8 if wire == _FIXED_64 else 4
        else:
            raise ValueError(f"byte {position} is none of a protobuf message")
        if position + size > len(data):
            raise ValueError(f"it ends before the value at byte {position}")
        yield key >> 3, data[position : position + size]
        position += size


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number that begins at `position`, seven bits a byte, lowest first; and where it ends."""
    value = 0
    for count in range(_LONGEST_VARINT):
        if position + count >= len(data):
            raise ValueError("it ends in the middle of a number")
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, position + count + 1
    raise ValueError(f"byte {position} begins a number without end")
