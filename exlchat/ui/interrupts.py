"""ctrl+c while torch is being imported."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from exlchat.ext.compiling import end_compilers
from exlchat.ui.exit_codes import ExitCode

if TYPE_CHECKING:
    from types import FrameType


@contextlib.contextmanager
def ctrl_c_ends_at_once(before: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Inside, ctrl+c calls `before` and ends the program there and then; for stretches in which nothing can be lost.

    A `KeyboardInterrupt` raised inside the import of torch 2.13 is swallowed there, so that the program goes on, or
    aborts the process from C++.
    """

    def on_ctrl_c(_signal: int, _frame: FrameType | None) -> None:
        # A stream that is being written at this moment refuses a second writer.
        with contextlib.suppress(RuntimeError, OSError):
            before()
        end_compilers()
        os._exit(ExitCode.STOPPED)

    previous = signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
