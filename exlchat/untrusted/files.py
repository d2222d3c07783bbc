"""Files of strangers: plain ones only, within a bound, read once. No other module opens them (`tests/untrusted`)."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, BufferedWriter
from pathlib import Path

from exlchat.untrusted.text import one_line

_LONGEST_PATH = 500
_PIECE = 2**20
_NOT_PLAIN = "not a plain file; give one"
# Without O_NONBLOCK, opening a pipe waits for the other end. To plain files the flag means nothing.
_AT_ONCE = os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class UntrustedFileError(Exception):
    """One line that names the file, says why it cannot be read, and how to mend it.

    Args:
        path: of the file.
        clause: what is wrong with it, for callers that name the file themselves. It ends in what mends it, so that
            " or do something else" may follow.
    """

    def __init__(self, path: Path, clause: str) -> None:
        super().__init__(f"{one_line(str(path), _LONGEST_PATH)}: {clause}")
        self.clause = clause


class NoSuchFileError(UntrustedFileError):
    """There is no such file, which may be no error to the caller."""


def check_plain(path: Path) -> None:
    """Sees that `path` is a plain file, or a link to one, and opens nothing: for libraries that open by path alone.

    Raises:
        UntrustedFileError: it is none; `NoSuchFileError` if it is not there.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise _told(path, error) from None
    if not stat.S_ISREG(mode):
        raise UntrustedFileError(path, _NOT_PLAIN)


def open_plain(path: Path) -> BufferedReader:
    """A plain file, opened for reading. Pipes, devices, sockets and folders are refused without waiting for them.

    Raises:
        UntrustedFileError: not a plain file, or it cannot be opened; `NoSuchFileError` if it is not there.
    """
    # Opening alone makes some devices act.
    check_plain(path)
    return open(_descriptor(path, os.O_RDONLY), "rb")


def open_to_append(path: Path) -> BufferedWriter:
    """A plain file that is written at its end, made for its owner alone where there is none.

    Raises:
        UntrustedFileError: not a plain file, or it cannot be opened.
    """
    return open(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab")


def read_bytes(path: Path, *, largest: int, kind: str) -> bytes:
    """What a file holds.

    Args:
        path: of the file.
        largest: bytes it may have; no more than one further byte is read.
        kind: what the file is meant to be, as in "card".

    Raises:
        UntrustedFileError: not a plain file, too large, or it cannot be read; `NoSuchFileError` if it is not there.
    """
    try:
        with open_plain(path) as file:
            data = _read(file, largest)
    except OSError as error:
        raise _told(path, error) from None
    if data is None:
        raise UntrustedFileError(path, f"larger than {_bytes(largest)}, which no {kind} is; give another")
    return data


def read_text(path: Path, *, largest: int, kind: str) -> str:
    """As `read_bytes`, of a text in UTF-8, with or without a byte order mark.

    Raises:
        UntrustedFileError: as `read_bytes`, or another encoding.
    """
    try:
        return read_bytes(path, largest=largest, kind=kind).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UntrustedFileError(path, f"byte {error.start} is not UTF-8; save the file as UTF-8") from None


def _read(file: BufferedReader, largest: int) -> bytes | None:
    """All of a file; `None` if that is too much."""
    # A file may claim gigabytes that take no room on the disk; most are told by their size alone.
    size = os.fstat(file.fileno()).st_size
    pieces: list[bytes] = []
    left = largest - size
    # What is asked for is taken from the system at once, be it there or not.
    asked = size + 1
    # Nothing, or `None` where a file of the kernel has nothing to give for now, is the end.
    while left >= 0 and (piece := file.read(asked)):
        pieces.append(piece)
        left -= len(piece) - size
        size, asked = 0, min(left + 1, _PIECE)
    return b"".join(pieces) if left >= 0 else None


def _descriptor(path: Path, flags: int) -> int:
    """Of a plain file, told by what was opened: whatever has the name may have changed since it was looked at."""
    try:
        descriptor = os.open(path, flags | _AT_ONCE, 0o600)
    except (OSError, ValueError) as error:
        raise _told(path, error, "written" if flags & os.O_WRONLY else "read") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UntrustedFileError(path, _NOT_PLAIN)
    return descriptor


def _told(path: Path, error: Exception, what: str = "read") -> UntrustedFileError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NoSuchFileError(path, "there is no such file")
    if not isinstance(error, OSError):
        return UntrustedFileError(path, "no file can have this name; give another")
    if error.errno in (errno.ENXIO, errno.EISDIR):
        return UntrustedFileError(path, _NOT_PLAIN)
    reason = (error.strerror or type(error).__name__).lower()
    return UntrustedFileError(path, f"cannot be {what} ({reason}); mend its permissions")


def _bytes(count: int) -> str:
    for unit, name in ((10**6, "MB"), (2**20, "MiB")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count:,} bytes"
