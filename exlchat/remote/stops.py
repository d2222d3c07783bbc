"""Stop strings looked for here too: a server may know few of them, or none."""

from __future__ import annotations

from collections.abc import Sequence

from exlchat.llm.thought_splitter import overlap


class StopWatch:
    """Text as it comes, without what may still become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [one for one in stops if one]
        self._held = ""
        self.stopped = False

    def feed(self, text: str) -> str:
        """What may be shown now; nothing behind a stop string, which is never shown itself."""
        if self.stopped:
            return ""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._take(min(found))
        kept = max((overlap(self._held, stop) for stop in self._stops), default=0)
        return self._take(len(self._held) - kept)

    def finish(self) -> str:
        return "" if self.stopped else self._take(len(self._held))

    def _take(self, count: int) -> str:
        shown, self._held = self._held[:count], self._held[count:]
        return shown
