"""Who computes, where any thread may: one at a time, in the order in which they came.

A lock of Python's goes to whoever asks first, and the thread that gives it back asks again before another one is awake.
Beside 31 bulk rows whoever read a chat's answer got the lock one to three passes late, or its token: 38 ms between two
tokens that a device had computed 16 apart.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_BREATH = 20e-6
"""Seconds. Whoever wakes gets Python from a thread that naps, and else after up to 5 ms of others' rows."""


class StepLock:
    """Whoever holds it may ask for it again."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._looking = 0
        self._owner: int | None = None
        self._depth = 0

    @contextmanager
    def held(self, *, unless: Callable[[], object] = bool) -> Iterator[bool]:
        """Inside it is held; or not, where something came first.

        Args:
            unless: what is waited for instead; asked again as `until` of `wait`.
        """
        held = self._take(unless)
        try:
            yield held
        finally:
            if held:
                self._give_back()

    def wait(self, until: Callable[[], object]) -> None:
        """Without it, and without a place among those who wait for it.

        Args:
            until: asked again whenever it was given back, and whenever somebody calls `look`.
        """
        with self._changed:
            self._looking += 1
            try:
                self._changed.wait_for(until)
            finally:
                self._looking -= 1

    def look(self) -> None:
        """Those who wait for something else may have it now."""
        if self._waiting or self._looking:
            with self._changed:
                self._changed.notify_all()
            time.sleep(_BREATH)

    def _take(self, unless: Callable[[], object]) -> bool:
        me, place = threading.get_ident(), object()
        with self._changed:
            if self._owner == me:
                self._depth += 1
                return True
            self._waiting.append(place)
            try:
                self._changed.wait_for(lambda: unless() or (self._owner is None and self._waiting[0] is place))
                if unless():
                    return False
                self._owner, self._depth = me, 1
                return True
            finally:
                # Also where a signal ended the wait.
                self._waiting.remove(place)
                if self._owner is None:
                    self._changed.notify_all()

    def _give_back(self) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()
