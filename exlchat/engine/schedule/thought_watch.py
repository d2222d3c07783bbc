"""Where an answer's thoughts are while it is generated, and when they have been long enough."""

from __future__ import annotations

from exlchat.llm.request import ThoughtLimit


class ThoughtWatch:
    """Watches the text of one answer.

    Args:
        limit: marks and length; `None` watches nothing.
    """

    def __init__(self, limit: ThoughtLimit | None) -> None:
        self._limit = limit
        self._text = ""
        self._tokens = 0
        self._closed = limit is None

    @property
    def inside(self) -> bool:
        """Whether the text goes on inside thoughts."""
        if self._limit is None or self._closed:
            return False
        return self._limit.opened or self._text.lstrip().startswith(self._limit.opening)

    @property
    def over(self) -> bool:
        """Whether thoughts have to be closed now."""
        limit = self._limit
        return limit is not None and limit.tokens is not None and self.inside and self._tokens >= limit.tokens

    def push(self, text: str) -> None:
        """A token, and the text that came with it."""
        if self._limit is None or self._closed:
            return
        self._text += text
        self._tokens += 1
        # Thoughts stand at the beginning only.
        begun = self._limit.opened or self._limit.opening.startswith(self._text.lstrip()[: len(self._limit.opening)])
        self._closed = self._limit.closing in self._text or not begun

    def back(self, count: int) -> None:
        """The last tokens, none of which had a text yet, have not come."""
        self._tokens -= count

    def close(self) -> None:
        """They are closed from outside."""
        self._closed = True
