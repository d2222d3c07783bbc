"""Files of strangers, read within a bound."""

from __future__ import annotations

from pathlib import Path

from exlchat.chat.plain_text import one_line


class UntrustedFileError(Exception):
    """One line that names the file, says why it cannot be read, and how to mend it."""


def read_bytes(path: Path, *, largest: int, kind: str) -> bytes:
    """What a file holds.

    Args:
        path: of the file.
        largest: bytes it may have, in whole megabytes; no more than one further byte is read.
        kind: what the file is meant to be, as in "card".

    Raises:
        UntrustedFileError: not a file, too large, or it cannot be read.
    """
    name = one_line(str(path), 120)
    try:
        if not path.is_file():
            wrong = "not a plain file; give one" if path.exists() else "there is no such file"
            raise UntrustedFileError(f"{name}: {wrong}")
        with path.open("rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise UntrustedFileError(f"{name}: cannot be read ({reason}); mend its permissions") from None
    except ValueError:
        raise UntrustedFileError(f"{name}: no file can have this name") from None
    if len(data) > largest:
        raise UntrustedFileError(f"{name}: larger than {largest // 10**6} MB, which no {kind} is")
    return data
