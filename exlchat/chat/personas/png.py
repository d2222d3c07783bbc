"""The text chunks of a PNG file (ISO/IEC 15948), read without a picture library and written back.

Everything in the file is untrusted: sizes, checksums and what compressed text grows to are bounded.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from exlchat.chat.personas.persona import PersonaError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LARGEST_FILE = 256_000_000
"""Bytes; a card can carry other pictures along."""

LARGEST_TEXT = 24_000_000
MOST_CHUNKS = 100_000
_MOST_TRIED = 3
_LONGEST_KEYWORD = 79
_LOOKED_AT = 1_200
_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt")


@dataclass(frozen=True, slots=True)
class Chunk:
    kind: bytes
    data: bytes
    whole: bool = True


@dataclass(frozen=True, slots=True)
class PngText:
    """A text chunk: the keyword in lower case, and the text as bytes, or why it cannot be read."""

    keyword: str
    text: bytes
    problem: str | None = None


def chunks(data: bytes, where: str) -> tuple[list[Chunk], str | None]:
    """The chunks up to the end of the picture, and a line about a file that ends before that.

    Raises:
        PersonaError: not a PNG file, too large, or too many chunks.
    """
    if not data.startswith(SIGNATURE):
        raise PersonaError(f"{where}: not a PNG file")
    if len(data) > LARGEST_FILE:
        raise PersonaError(f"{where}: larger than {LARGEST_FILE // 10**6} MB, which no card is")
    found: list[Chunk] = []
    view = memoryview(data)
    place = len(SIGNATURE)
    while place + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        end = place + 12 + length
        if end > len(data) or not kind.isalpha():
            break
        (checksum,) = struct.unpack_from(">I", data, end - 4)
        found.append(Chunk(kind, data[place + 8 : end - 4], zlib.crc32(view[place + 4 : end - 4]) == checksum))
        if kind == b"IEND":
            return found, None
        if len(found) > MOST_CHUNKS:
            raise PersonaError(f"{where}: more than {MOST_CHUNKS:,} chunks, which no picture has")
        place = end
    return found, f"{where}: the picture is cut off or broken behind byte {place:,}"


def texts(found: Iterable[Chunk], keyword: str) -> list[PngText]:
    """The first text chunks with this keyword, in whatever case. One that is damaged says so in `problem`."""
    named = (chunk for chunk in found if keyword_of(chunk).lower() == keyword.lower())
    # Each may grow to megabytes, so not all that somebody cares to put in are unpacked.
    return [_text(chunk) for chunk in islice(named, _MOST_TRIED)]


def with_texts(found: Sequence[Chunk], added: Sequence[tuple[str, bytes]]) -> bytes:
    """The file with `tEXt` chunks of these keywords in the place of all that had them, before the picture's end."""
    keywords = {keyword.lower() for keyword, _ in added}
    others = (chunk for chunk in found if chunk.kind != b"IEND" and keyword_of(chunk).lower() not in keywords)
    pieces = [SIGNATURE, *(_written(chunk.kind, chunk.data) for chunk in others)]
    pieces += [_written(b"tEXt", keyword.encode("latin-1") + b"\0" + text) for keyword, text in added]
    return b"".join([*pieces, _written(b"IEND", b"")])


def keyword_of(chunk: Chunk) -> str:
    """The keyword of a text chunk, also one that is too long; "" for all other chunks."""
    if chunk.kind not in _TEXT_CHUNKS:
        return ""
    return chunk.data[:_LOOKED_AT].partition(b"\0")[0].decode("latin-1")


def is_keyword(text: str) -> bool:
    try:
        return 0 < len(text.encode("latin-1")) <= _LONGEST_KEYWORD and text.isprintable()
    except UnicodeEncodeError:
        return False


def plain_picture(width: int = 256, height: int = 384, grey: int = 96) -> list[Chunk]:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = (b"\0" + bytes([grey]) * width) * height
    return [Chunk(b"IHDR", header), Chunk(b"IDAT", zlib.compress(rows, 9)), Chunk(b"IEND", b"")]


def _written(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _text(chunk: Chunk) -> PngText:
    keyword, rest = keyword_of(chunk).lower(), chunk.data.partition(b"\0")[2]
    if not chunk.whole:
        return PngText(keyword, b"", "its checksum is wrong")
    if chunk.kind == b"tEXt":
        return PngText(keyword, rest) if len(rest) <= LARGEST_TEXT else PngText(keyword, b"", "it is too large")
    if chunk.kind == b"zTXt":
        return _unpacked(keyword, rest[1:]) if rest[:1] == b"\0" else PngText(keyword, b"", "its packing is unknown")
    packed, method, tail = rest[:1], rest[1:2], rest[2:]
    _language, _, tail = tail.partition(b"\0")
    _translated, _, text = tail.partition(b"\0")
    if packed == b"\1":
        return _unpacked(keyword, text) if method == b"\0" else PngText(keyword, b"", "its packing is unknown")
    return PngText(keyword, text) if len(text) <= LARGEST_TEXT else PngText(keyword, b"", "it is too large")


def _unpacked(keyword: str, data: bytes) -> PngText:
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, LARGEST_TEXT)
    except zlib.error:
        return PngText(keyword, b"", "its compressed text is broken")
    if unpacker.unconsumed_tail:
        return PngText(keyword, b"", f"it grows to more than {LARGEST_TEXT // 10**6} MB")
    if not unpacker.eof:
        return PngText(keyword, b"", "its compressed text is cut off")
    return PngText(keyword, text)
