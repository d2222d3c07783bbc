"""What the program tells the shell when it ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The documented exit codes; `STOPPED` and `BROKEN_PIPE` are 128 plus the signal's number, as shells count."""

    OK = 0
    ERROR = 1
    USAGE = 2
    DOES_NOT_FIT = 3
    STOPPED = 130
    BROKEN_PIPE = 141
