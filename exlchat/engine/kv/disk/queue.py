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
        prepare: done by the thread before the first item.
        work: done with each item.
        failed: told what either of them raised; the thread goes on with the next item. It must not raise.
        limit: the weights of waiting items sum up to this at most, whatever a weight is.
    """

    def __init__(
        self,
        prepare: Callable[[], None],
        work: Callable[[Item], None],
        failed: Callable[[Exception], None],
        limit: int,
    ) -> None:
        self._prepare = prepare
        self._work = work
        self._failed = failed
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
            if not self._fits(weight):
                return False
            self._items.append((item, weight))
            self._weight += weight
            self._change.notify_all()
            return True

    def has_room(self, weight: int) -> bool:
        with self._change:
            return self._fits(weight)

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

    def _fits(self, weight: int) -> bool:
        return not self._closed and (not self._weight or self._weight + weight <= self._limit)

    def _run(self) -> None:
        try:
            self._prepare()
        except Exception as error:
            # A thread that died here would leave everyone waiting for it.
            self._failed(error)
        while True:
            with self._change:
                self._busy = False
                self._change.notify_all()
                self._change.wait_for(lambda: self._items or self._closed)
                if not self._items:
                    return
                item, weight = self._items.popleft()
                self._busy = True
            try:
                self._work(item)
            except Exception as error:
                self._failed(error)
            del item
            with self._change:
                self._weight -= weight
