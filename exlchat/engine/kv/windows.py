"""Memory for layers that see a window only: a page has some while its tokens may still be seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from exlchat.engine.kv.pool import Page, PoolFullError


class WindowSlots:
    """Which pages have memory in these layers. A sequence holds those of its window; others keep theirs until it is
    wanted, so that a sequence which begins alike can go on there.

    Args:
        slots: how many pages have memory at the same time.
    """

    def __init__(self, slots: int) -> None:
        self.size = slots
        self._free = list(range(slots - 1, -1, -1))
        self._slots: dict[Page, int] = {}
        self._holders: Counter[Page] = Counter()

    def slot(self, page: Page) -> int | None:
        """Where a page's memory is, if it has any."""
        return self._slots.get(page)

    def hold(self, pages: Sequence[Page]) -> None:
        """One more holder of each. A page that had no memory has some now, with nothing in it.

        Raises:
            PoolFullError: everything is held; nothing has changed for the pages from the one on that found no memory.
        """
        for index, page in enumerate(pages):
            self._holders[page] += 1
            slot = self._slots.pop(page, None)
            try:
                self._slots[page] = self._take() if slot is None else slot
            except PoolFullError:
                self.release(pages[: index + 1])
                raise

    def release(self, pages: Sequence[Page]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]

    def _take(self) -> int:
        """Of a page that is forgotten, else of the one that was held longest ago."""
        if self._free:
            return self._free.pop()
        idle = [page for page in self._slots if page not in self._holders]
        victim = next((page for page in idle if not page.listed and not page.users), idle[0] if idle else None)
        if victim is None:
            raise PoolFullError
        return self._slots.pop(victim)
