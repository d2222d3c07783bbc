"""What the program tells the shell when it ends."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The documented exit codes; `STOPPED` and `BROKEN_PIPE` are 128 plus the signal's number, as shells count.

    A program that another signal ends has 128 plus its number too: 129 for SIGHUP, 131 for SIGQUIT, 143 for SIGTERM.
    """

    OK = 0
    ERROR = 1
    USAGE = 2
    DOES_NOT_FIT = 3
    STOPPED = 130
    BROKEN_PIPE = 141
