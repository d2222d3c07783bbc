"""Work that one thread does in the background, with a bound on what waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class BackgroundQueue(Generic[Item]):
    """Items in order, worked off by one daemon thread.

    Args:
        prepare: done by the thread before the first item. Like `work`, it must not raise.
        work: done with each item.
        limit: the weights of waiting items sum up to this at most, whatever a weight is.
    """

    def __init__(self, prepare: Callable[[], None], work: Callable[[Item], None], limit: int) -> None:
        self._prepare = prepare
        self._work = work
        self._limit = limit
        self._change = threading.Condition()
        self._items: deque[tuple[Item, int]] = deque()
        self._weight = 0
        self._busy = True
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pages on disk", daemon=True)
        self._thread.start()

    def offer(self, item: Item, weight: int) -> bool:
        """Whether the item was taken. An idle queue takes any; a closed one none. Never waits for work."""
        with self._change:
            if self._closed or (self._weight and self._weight + weight > self._limit):
                return False
            self._items.append((item, weight))
            self._weight += weight
            self._change.notify_all()
            return True

    def flush(self, timeout: float) -> bool:
        """Waits until everything is done, at most so many seconds; whether it is."""
        with self._change:
            return self._change.wait_for(lambda: not self._items and not self._busy, timeout)

    def close(self, timeout: float) -> bool:
        """As `flush`, and takes no more; what is not done by then is dropped, but for the item that is worked on."""
        with self._change:
            self._closed = True
            self._change.notify_all()
        done = self.flush(timeout)
        with self._change:
            self._items.clear()
        if done:
            self._thread.join()
        return done

    def _run(self) -> None:
        self._prepare()
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    return
                item, weight = self._items.popleft()
                self._busy = True
            self._work(item)
            del item
            with self._change:
                self._weight -= weight
