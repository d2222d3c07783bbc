"""Tokenizers that come without `tokenizer.json`, built from the files that models had before it.

What a SentencePiece model says about itself is followed: its normalizer, its space before a text, its byte pieces. For
the models of Llama's and Gemma's kind that is id for id what transformers 5 makes of them.

A `tokenizer.model` is one protobuf message, and of protobuf only its wire format is needed: a few lines here, where a
library would bring a compiler's output for a schema of a hundred fields. Field numbers: `sentencepiece_model.proto` of
google/sentencepiece.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from exlchat.untrusted.json_reader import read_json

SPACE = "\u2581"
"""What stands for a space in pieces."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_Value = int | bytes
_Message = dict[int, list[_Value]]


class PieceKind(IntEnum):
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


# Where the model families of a byte-level vocabulary cut text before merging. GPT-2's is the library's own.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITTING = {
    "GPT2Tokenizer": "GPT-2",
    "Qwen2Tokenizer": "Qwen2",
    "gpt2": "GPT-2",
    "qwen2": "Qwen2",
    "qwen2_moe": "Qwen2",
    "qwen3": "Qwen2",
    "qwen3_moe": "Qwen2",
}
"""Whose splitting belongs to a `tokenizer_class` of `tokenizer_config.json` or a `model_type` of `config.json`."""
END_OF_TEXT = "<|endoftext|>"
"""What ends a text in GPT-2's and Qwen2's vocabularies, where no file says otherwise."""


def from_sentencepiece(model: SentencePieceModel, config: Mapping[str, Any], renamed: Mapping[int, str]) -> Tokenizer:
    """A tokenizer of the same pieces.

    Args:
        model: `tokenizer.model`.
        config: `tokenizer_config.json`, of which `add_prefix_space` and `legacy` count: a legacy tokenizer puts a space
            before the text behind each special token, others before the first text alone. (One with a normalizer of its
            own is always of the legacy kind.)
        renamed: pieces that got another text after training, by id, as unused ones do that become markers.

    Raises:
        Exception: the library refuses what is in the file.
    """
    texts = [renamed.get(index, piece.text) for index, piece in enumerate(model.pieces)]
    tokenizer = Tokenizer(_unigram(model, texts) if model.algorithm == "unigram" else _bpe(model, texts))
    prefix = config.get("add_prefix_space")
    prefix = prefix if isinstance(prefix, bool) else model.add_dummy_prefix
    steps: list[normalizers.Normalizer] = []
    if model.character_map:
        steps.append(normalizers.Precompiled(model.character_map))
    if model.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    scheme = "never" if not prefix else "always" if config.get("legacy") is True else "first"
    if steps and prefix:
        # A text whose beginning was normalized is no first text any more to the library.
        steps.append(normalizers.Prepend(SPACE))
        scheme = "never"
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        parts.append(decoders.Strip(" ", 1, 0))
    tokenizer.decoder = decoders.Sequence(parts)
    special = {PieceKind.UNKNOWN, PieceKind.CONTROL}
    tokenizer.add_tokens(
        [
            AddedToken(text, normalized=False, special=piece.kind in special)
            for text, piece in zip(texts, model.pieces, strict=True)
            if piece.kind in special or piece.kind is PieceKind.USER_DEFINED
        ]
    )
    return tokenizer


def from_vocabulary(vocabulary: bytes, merges: bytes, splitting: str, config: Mapping[str, Any]) -> Tokenizer:
    """A byte-level BPE of `vocab.json` and `merges.txt`.

    Args:
        vocabulary, merges: what the two files hold.
        splitting: "GPT-2" or "Qwen2".
        config: `tokenizer_config.json`, of which `add_prefix_space` counts.

    Raises:
        Exception: the library refuses what is in the files, or they hold something else.
    """
    ids = read_json(vocabulary, most=len(vocabulary))
    tokenizer = Tokenizer(models.BPE(ids, list(_pairs(merges.decode("utf-8")))))
    prefix = config.get("add_prefix_space") is True
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if splitting == "Qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_QWEN2_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
            ]
        )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pairs(merges: str) -> Iterator[tuple[str, str]]:
    """The pairs of a `merges.txt`, one in a line, below a line with the version."""
    # Only "\n" ends a line: tokens may hold what else Unicode calls a line's end.
    for number, line in enumerate(io.StringIO(merges), start=1):
        if line.startswith("#version"):
            continue
        left, space, right = line.rstrip("\r\n").partition(" ")
        if not space or " " in right:
            raise ValueError(f"merges.txt: line {number} is no pair")
        yield left, right


def _unigram(model: SentencePieceModel, texts: list[str]) -> models.Model:
    scored = [(text, piece.score) for text, piece in zip(texts, model.pieces, strict=True)]
    return models.Unigram(scored, model.unknown_id, model.byte_fallback)


def _bpe(model: SentencePieceModel, texts: list[str]) -> models.Model:
    ids = {text: index for index, text in enumerate(texts)}
    return models.BPE(
        ids,
        list(_merges(model, ids)),
        unk_token=texts[model.unknown_id],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _merges(model: SentencePieceModel, ids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Pairs that become one piece, the earliest piece first.

    SentencePiece merges whatever pair makes the piece with the best score, and numbers pieces by score. Of the pairs
    that make one piece the order is transformers': a shorter left half first.
    """
    mergeable = {PieceKind.NORMAL, PieceKind.USER_DEFINED}
    for piece in model.pieces:
        text = piece.text
        if piece.kind not in mergeable or text not in ids:
            continue
        for cut in range(1, len(text)):
            if text[:cut] in ids and text[cut:] in ids:
                yield text[:cut], text[cut:]
