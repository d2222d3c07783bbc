"""Who of those that wait may begin: by rows, and by pages that there are. Nothing is booked for what may be said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.pool import common_length
from exlchat.engine.kv.sizes import pages_of
from exlchat.engine.schedule.prompt_reader import PromptReader
from exlchat.engine.schedule.work import Work
from exlchat.ext.kv_formats import PAGE_TOKENS

_LEAVING = 4
"""Cancelled requests that are ended beside those that are carried out."""


class Admission:
    """Of one model's scheduler.

    Args:
        most: asked how many requests may be carried out together, at least 8.
    """

    def __init__(self, cache: KVCache, reader: PromptReader, most: Callable[[], int]) -> None:
        self._cache, self._reader, self._most = cache, reader, most

    def reads_for(self, work: Work, going: Sequence[Work]) -> bool:
        """Whether what is new of a request is being read for another: it begins behind that."""
        if work.cancelled or self._reader.knows(work.ids):
            return False
        reading = [one for one in going if one.reading and not one.cancelled]
        # Looked for once: whoever was found is waited for until that has been read.
        if work.behind not in reading:
            work.behind = next((one for one in reading if self._reads_new(one, work)), None)
        return work.behind is not None

    def fits(self, work: Work, going: Sequence[Work]) -> bool:
        if not going:
            return True
        if work.cancelled:
            return len(going) < self._most() + _LEAVING
        if work.guided and any(one.guided for one in going):
            return False
        return self._has_pages(work, going) and len(going) < self._most()

    def _reads_new(self, one: Work, work: Work) -> bool:
        common = common_length(one.ids, work.ids)
        whole = common == len(one.ids) == len(work.ids)
        return common > 0 and (whole or common - self._cache.known(work.ids) >= PAGE_TOKENS)

    def _has_pages(self, work: Work, going: Sequence[Work]) -> bool:
        """For what it begins with, beside what others still read, and one more for each."""
        cache = self._cache
        cache.close_retired()
        # Of what is known, only what somebody uses is there for nothing: what is idle is counted as room.
        shared = sum(page.users > 0 for page in cache.pool.find(work.ids, len(work.ids)).pages)
        wanted = pages_of(len(work.ids) + 1) - shared
        for one in going:
            wanted += 1 + (max(pages_of(len(one.ids) + 1) - len(one.sequence.pages), 0) if one.reading else 0)
        return wanted <= cache.pool.room and cache.fits(0, sum(self._windows_of(one) for one in (*going, work)))

    def _windows_of(self, work: Work) -> int:
        """Pages with memory in layers with a window: of a chunk and what it sees, or of what a token sees."""
        if work.reading:
            return self._cache.windows_of(pages_of(len(work.ids)))
        return self._cache.windows_of(0, answers=1, each=self._cache.pool.size)
