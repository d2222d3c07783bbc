"""Bounds of time that hold on a slow or busy machine and still break where an algorithm does.

A bound is there to tell a second from a minute: work that grows with the square of a hostile file, a pattern that
never ends. A wall clock also tells a shared CI machine from an idle one, and that is nobody's mistake. So what counts
is the process's own CPU time, against what the machine can do at that moment.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE = 30.0
"""Seconds of the clock after which what should come is taken not to come: long, because only a failing test waits."""

_LOOKS_A_SECOND = 7
MARGIN = 2.0
YARDSTICK_ROUNDS = 5
YARDSTICK_SECONDS = 0.020  # of one round, on the idle 2-core machine where the bounds were set


class Patience:
    """Of whoever looks again and again: over after so many seconds in which it could look often.

    Where the whole machine stands still for half a minute, as shared ones do, the clock has gone on and nothing else.
    """

    def __init__(self, seconds: float = PATIENCE) -> None:
        self._end = time.monotonic() + seconds
        self._left = int(seconds * _LOOKS_A_SECOND)

    def is_over(self) -> bool:
        self._left -= 1
        return self._left < 0 and time.monotonic() > self._end


def _yardstick() -> dict[str, int]:
    """The interpreter's daily bread: small texts, a table, a sort."""
    counted: dict[str, int] = {}
    for number in range(40_000):
        word = f"w{number % 977}"
        counted[word] = counted.get(word, 0) + number
    return dict(sorted(counted.items(), key=lambda item: item[1]))


def slowness() -> float:
    """How many times as long as on the machine of the bounds things take here and now, at least 1."""
    began = time.process_time()
    for _ in range(YARDSTICK_ROUNDS):
        _yardstick()
    return max(1.0, (time.process_time() - began) / (YARDSTICK_ROUNDS * YARDSTICK_SECONDS))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is inside spends at most this CPU time of the process (all threads), as the machine of the bounds counts it.

    `seconds` has room already (several times what was measured). The yardstick is only used where it was not enough.
    What other tests have left in the process is kept from the collector meanwhile: making lists for 0.2 s took 2.2
    behind thousands of tests, and 0.9 behind three million dictionaries, 0.3 where those were kept from it.
    """
    gc.freeze()
    began = time.process_time()
    try:
        yield
        spent = time.process_time() - began
    finally:
        gc.unfreeze()
    if spent > seconds:
        slow = slowness()
        assert spent <= seconds * MARGIN * slow, f"took {spent:.2f} s of CPU on a machine {slow:.1f} times slower"
