"""Where an answer's thoughts are while it is generated, and when they have been long enough."""

from __future__ import annotations

from exlchat.llm.thought_splitter import Thoughts, ThoughtSplitter


class ThoughtWatch:
    """Watches the text of one answer; `None` has no thoughts."""

    def __init__(self, thoughts: Thoughts | None) -> None:
        self._most = None if thoughts is None else thoughts.tokens
        self._splitter = None if thoughts is None else ThoughtSplitter(thoughts.marks, thoughts.begun)
        self._tokens = 0

    @property
    def inside(self) -> bool:
        return self._splitter is not None and self._splitter.thinking

    @property
    def over(self) -> bool:
        """Whether thoughts have to be closed now."""
        return self._most is not None and self.inside and self._tokens >= self._most

    def push(self, text: str) -> None:
        if self._splitter is None:
            return
        self._splitter.feed(text)
        self._tokens += 1
        # Thoughts stand at the beginning only.
        if self._splitter.ended:
            self._splitter = None

    def back(self, count: int) -> None:
        """The last tokens, none of which had a text yet, have not come."""
        self._tokens -= count

    def close(self) -> None:
        """They are closed from outside."""
        self._splitter = None
