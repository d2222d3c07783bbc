"""How a signal ends the program: in order where that is possible, within two seconds, and with the terminal as it was.

ctrl+c has a meaning of its own in each mode. SIGTERM, SIGHUP and SIGQUIT mean the same in all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    import subprocess
    from types import FrameType

ENDING = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)

LEAVE_SECONDS = 2.0
"""How long an end in order may take."""
_SAME_SECONDS = 0.2
"""`timeout` and others send a signal twice in a row, to the process and to its group."""
_CHILD_SECONDS = 0.3
"""A child in the foreground has mostly got the signal as well, and is left to end by itself."""
_KILL_SECONDS = 1.2
_RESTORE_SECONDS = 0.5
_LAST_ACTS: list[Callable[[], None]] = []


class SignalledError(KeyboardInterrupt):
    """A signal has ended what was being done. Whatever undoes things for ctrl+c does so for this."""


def _raise(_: int) -> None:
    raise SignalledError


class Ending:
    """Waits for the signals that end the process; there is one at a time.

    What is done in order is done by the main thread: in the handler, or by a loop that the handler wakes. A thread of
    its own sees to it that this comes to an end even where the main thread hears nothing any more.
    """

    now: ClassVar[Ending | None] = None

    def __init__(self) -> None:
        self.heard: int | None = None
        self.leave: Callable[[int], None] = _raise
        self.restore: Callable[[], None] = lambda: None
        self.seconds = LEAVE_SECONDS
        self.children: set[subprocess.Popen[bytes]] = set()
        self._heard_at = 0.0
        self._source, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._watch = threading.Thread(target=self._see_to_it, name="end", daemon=True)
        self._before: dict[int, Any] = {}
        self._woke_before = -1
        self._held_back: set[int] = set()

    def begin(self) -> None:
        """Hear the signals, but those that whoever started the program wants to be ignored, as `nohup` does."""
        os.register_at_fork(before=self._hold_back, after_in_parent=self._let_go, after_in_child=self._be_forgotten)
        self._watch.start()
        self._woke_before = signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)

    def finish(self) -> None:
        """No longer; after a signal only the time that the end may take goes on."""
        if self.heard is not None:
            return
        for number, before in self._before.items():
            signal.signal(number, before)
        signal.set_wakeup_fd(self._woke_before)
        os.close(self._wakes)

    def _hold_back(self) -> None:
        if Ending.now is self:
            self._held_back = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)

    def _let_go(self) -> None:
        if Ending.now is self:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._held_back)

    def _be_forgotten(self) -> None:
        """In a child that runs on in Python: its signals are its own, and must not end the program by our pipe."""
        if Ending.now is self:
            signal.set_wakeup_fd(-1)
            for number in self._before:
                signal.signal(number, signal.SIG_DFL)
            self._let_go()
            Ending.now = None

    def code(self, code: int) -> int:
        """The exit code: that of the signal, if there was one, as shells count."""
        return code if self.heard is None else 128 + self.heard

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.heard is None:
            self.heard, self._heard_at = number, now
            # A loop may have put a file of its own in the place of ours, which C writes to.
            with contextlib.suppress(OSError):
                os.write(self._wakes, bytes([number]))
            self.leave(number)
        elif number != signal.SIGHUP and now - self._heard_at > _SAME_SECONDS:
            # A hang-up is told by the terminal and by the shell, each to everybody.
            self._end_now(number)

    def _see_to_it(self) -> None:
        number = self._next_signal()
        if number is None:
            return
        time.sleep(_CHILD_SECONDS)
        for child in tuple(self.children):
            child.terminate()
        time.sleep(_KILL_SECONDS - _CHILD_SECONDS)
        for child in tuple(self.children):
            child.kill()
        time.sleep(self.seconds - _KILL_SECONDS)
        self._end_now(number)

    def _next_signal(self) -> int | None:
        """The first that ends the program; `None` when it has ended without."""
        while data := os.read(self._source, 1):
            if data[0] in self._before:
                return data[0]
        os.close(self._source)
        return None

    def _end_now(self, number: int) -> None:
        # A terminal that takes nothing more must not hold up the end.
        restoring = threading.Thread(target=self.restore, daemon=True)
        restoring.start()
        restoring.join(_RESTORE_SECONDS)
        _end_at_once(number)


@contextlib.contextmanager
def signals_end_in_order() -> Iterator[Ending]:
    """Inside, the signals raise `SignalledError` in the main thread, unless something in it takes them."""
    ending = Ending()
    if threading.current_thread() is not threading.main_thread() or Ending.now is not None:
        # Only the main thread may; inside of another the other has them.
        yield ending
        return
    Ending.now = ending
    ending.begin()
    try:
        yield ending
    finally:
        ending.finish()
        Ending.now = None


@contextlib.contextmanager
def signals_taken(
    leave: Callable[[int], None], restore: Callable[[], None] = lambda: None, *, seconds: float = LEAVE_SECONDS
) -> Iterator[None]:
    """Inside, the first signal calls `leave` with its number, in a signal handler of the main thread.

    It is to begin an end in order. When that takes longer than `seconds`, at least `LEAVE_SECONDS`, or another signal
    comes, `restore` is called on some thread, and the process ends.
    """
    if (ending := Ending.now) is None:
        yield
        return
    before = ending.leave, ending.restore, ending.seconds
    ending.leave, ending.restore, ending.seconds = leave, restore, seconds
    try:
        yield
    finally:
        ending.leave, ending.restore, ending.seconds = before


@contextlib.contextmanager
def ends_with_program(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Inside, a signal that ends the program ends this child too, shortly after the program has heard it."""
    if (ending := Ending.now) is None:
        yield
        return
    ending.children.add(child)
    try:
        yield
    finally:
        ending.children.discard(child)


def is_ending() -> bool:
    return Ending.now is not None and Ending.now.heard is not None


def comes_of_signal(error: BaseException) -> bool:
    """Whether it stands for one: Python 3.11 wraps what is raised while a class names its attributes.

    What goes wrong while a signal is being followed is an error of its own.
    """
    cause = error.__cause__
    return isinstance(error, SignalledError) or (cause is not None and comes_of_signal(cause))


@contextlib.contextmanager
def ctrl_c_ends_at_once(before: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Inside, ctrl+c and the signals call `before` and end the program there and then; for stretches in which nothing
    can be lost.

    A `KeyboardInterrupt` raised inside the import of torch 2.13 is swallowed there, so that the program goes on, or
    aborts the process from C++.
    """

    def end(number: int) -> None:
        # A stream that is being written at this moment refuses a second writer.
        with contextlib.suppress(RuntimeError, OSError):
            before()
        _end_at_once(number)

    previous = signal.signal(signal.SIGINT, lambda number, _frame: end(number))
    try:
        with signals_taken(end):
            yield
    finally:
        signal.signal(signal.SIGINT, previous)


def at_a_sudden_end(act: Callable[[], None]) -> None:
    """Has `act` called where the process ends with nothing else undone, as for processes that it has started."""
    if act not in _LAST_ACTS:
        _LAST_ACTS.append(act)


def _end_at_once(number: int) -> None:
    for last in _LAST_ACTS:
        last()
    os._exit(128 + number)
