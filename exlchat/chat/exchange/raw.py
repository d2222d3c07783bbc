"""Bytes of a file, bounded, and the text that they are."""

from __future__ import annotations

import codecs
import io
import lzma
import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO

from exlchat.chat.exchange.limits import (
    FILE_BYTES,
    ZIP_DIRECTORY_BYTES,
    ZIP_FREE_BYTES,
    ZIP_RATIO,
    ExchangeError,
    Problems,
)
from exlchat.untrusted import files
from exlchat.untrusted.files import UntrustedFileError, open_plain

ZIP_MAGIC = b"PK\x03\x04"
SQLITE_MAGIC = b"SQLite format 3\x00"

_CHUNK = 1 << 20
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_ENCRYPTED = 1
_LONGEST_END = 65_535 + 22 + 20 + 56
"""Of an archive: a comment and three records."""
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    IndexError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""What the library raises for archives that are damaged in one way or another."""

_CONVERSATIONS = re.compile(r"(?:[^/]+/)?conversations(?:-\d+)?\.json")
_OTHERS = re.compile(r"(?:[^/]+/)?(?:projects|memories|projects/[^/]+)\.json")
"""What claude.ai's export has beside conversations and somebody may miss."""

_EMPTY = len("[]\n")


def read_bytes(path: Path) -> bytes:
    """The file's bytes.

    Raises:
        ExchangeError: it cannot be read, is no plain file, or is too large.
    """
    try:
        return files.read_bytes(path, largest=FILE_BYTES, kind="export")
    except UntrustedFileError as error:
        raise ExchangeError(str(error)) from None


def first_bytes(path: Path) -> bytes:
    """Enough of the file to know a database or an archive by.

    Raises:
        ExchangeError: as `read_bytes`.
    """
    try:
        with open_plain(path) as file:
            return file.read(len(SQLITE_MAGIC))
    except UntrustedFileError as error:
        raise ExchangeError(str(error)) from None
    except OSError as error:
        raise ExchangeError(f"{path}: cannot be read ({reason_of(error)}); fetch it once more") from None


def decode(content: bytes, problems: Problems) -> str:
    """Text in UTF-8, with or without a mark, in UTF-16 with one or guessed, else in Latin-1, which is said."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            text = content[len(mark) :].decode(encoding, "replace")
            if "\ufffd" in text and "\ufffd".encode(encoding) not in content:
                problems.add("", f"bytes that are no {encoding.upper()} were replaced by \ufffd")
            return text
    guessed = _utf16_without_mark(content)
    if guessed is not None:
        return content.decode(guessed, "replace")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return _mixed(content, problems)


def _utf16_without_mark(content: bytes) -> str | None:
    """What begins with an ASCII character and a zero byte, either way round, is UTF-16: JSON begins with ASCII."""
    head = content[:2]
    if len(head) < 2 or (head[0] == 0) == (head[1] == 0):
        return None
    return "utf-16-le" if head[1] == 0 else "utf-16-be"


def _mixed(content: bytes, problems: Problems) -> str:
    """Line for line UTF-8 or Latin-1: files to which several programs append can be of both."""
    lines = []
    others = 0
    for line in content.split(b"\n"):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError:
            others += 1
            lines.append(line.decode("latin-1"))
    problems.add("", f"{others} of {len(lines)} lines are not UTF-8; they were read as Latin-1")
    return "\n".join(lines)


def archive_members(path: Path, problems: Problems) -> list[bytes]:
    """The conversation files of ChatGPT's or claude.ai's export, unpacked in memory.

    Nothing is written, names are only compared.

    Raises:
        ExchangeError: no such archive, or one that is encrypted, damaged, or would be too large.
    """
    try:
        with open_plain(path) as file, zipfile.ZipFile(_bounded_list(path, file)) as archive:
            found = sorted({i.filename for i in archive.infolist() if _CONVERSATIONS.fullmatch(i.filename)})
            if not found:
                raise ExchangeError(
                    f"{path} is an archive without conversations.json; of archives only the exports of ChatGPT "
                    "and claude.ai are read here"
                )
            contents: list[bytes] = []
            left = FILE_BYTES
            for name in found:
                contents.append(_member(path, archive, archive.getinfo(name), left))
                left -= len(contents[-1])
            others = [i for i in archive.infolist() if _OTHERS.fullmatch(i.filename) and i.file_size > _EMPTY]
            if others:
                what = "file is" if len(others) == 1 else "files are"
                problems.add("", f"{len(others)} other {what} not read, as {others[0].filename}: no conversations")
    except UntrustedFileError as error:
        raise ExchangeError(str(error)) from None
    except _ZIP_ERRORS as error:
        raise ExchangeError(f"{path} cannot be unpacked ({reason_of(error)}); fetch it once more") from None
    return contents


def _bounded_list(path: Path, file: BinaryIO) -> BinaryIO:
    """An archive whose list of files, which the library reads as a whole, can be one of an export."""
    if _directory_bytes(file) > ZIP_DIRECTORY_BYTES:
        raise ExchangeError(f"{path} lists more files than an export has; unpack it and import conversations.json")
    return file


def _directory_bytes(file: BinaryIO) -> int:
    """Bytes of an archive's list of files, as it says at its end; 0 where there is no end, which the library tells."""
    file.seek(max(0, file.seek(0, io.SEEK_END) - _LONGEST_END))
    tail = file.read()
    place = tail.rfind(b"PK\x05\x06")
    if place < 0 or place + 22 > len(tail):
        return 0
    (size,) = struct.unpack_from("<I", tail, place + 12)
    large = tail.rfind(b"PK\x06\x06", 0, place)
    if size == 0xFFFFFFFF and 0 <= large <= len(tail) - 48:
        (size,) = struct.unpack_from("<Q", tail, large + 40)
    return int(size)


def _member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, left: int) -> bytes:
    if info.flag_bits & _ENCRYPTED:
        raise ExchangeError(f"{path} is encrypted; unpack it and import conversations.json")
    most = min(left, max(ZIP_FREE_BYTES, info.compress_size * ZIP_RATIO))
    with archive.open(info) as member:
        content = _bounded(member, most)
    if content is None:
        raise ExchangeError(f"{path}: {info.filename} is unpacked to more than {most >> 20} MiB; it is not read")
    return content


def _bounded(member: IO[bytes], most: int) -> bytes | None:
    """What the archive says of its sizes is not believed."""
    pieces: list[bytes] = []
    size = 0
    while piece := member.read(_CHUNK):
        size += len(piece)
        if size > most:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def reason_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
