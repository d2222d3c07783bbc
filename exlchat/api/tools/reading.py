"""An answer's text with calls in it, told apart while it streams."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.api.tools.families import Family, ToolCall
from exlchat.api.tools.offered import Tool
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.port import TextModel
from exlchat.llm.thought_splitter import overlap


@dataclass(frozen=True, slots=True)
class CallReader:
    """What calls in an answer are.

    Args:
        forced: the answer is nothing but calls.
        opening: the text that the prompt has begun them with.
        opening_id: the family's mark, where it is one token; its text may not be shown.
        behind: the mark that closes thoughts, behind which calls are.
    """

    model: TextModel
    family: Family
    tools: tuple[Tool, ...]
    forced: bool = False
    opening: str = ""
    opening_id: int | None = None
    behind: str = ""

    def held(self) -> HeldText:
        return HeldText(self)

    def calls(self, finished: Finished) -> list[ToolCall]:
        said = self.model.decode(finished.token_ids, special=True)
        if self.behind:
            said = said.rpartition(self.behind)[2]
        return self.family.calls(self.opening + said, self.tools)[1]


class HeldText:
    """What of one answer's text is certainly no call. The rest waits for the end."""

    def __init__(self, reader: CallReader) -> None:
        self._reader = reader
        self._waiting = ""
        self._calling = reader.forced
        self._begun = False

    def feed(self, delta: TextDelta) -> str:
        self._waiting += delta.text
        if self._reader.opening_id in delta.token_ids:
            self._calling = True
        if self._calling:
            return ""
        mark = self._reader.family.opening
        if not mark:
            return self._unless_an_object()
        at = self._waiting.find(mark)
        if at >= 0:
            self._calling = True
            return self._take(at)
        return self._take(len(self._waiting) - overlap(self._waiting, mark))

    def rest(self) -> str:
        return self._take(len(self._waiting))

    def _unless_an_object(self) -> str:
        """Of a family whose calls are the whole answer."""
        if not self._begun and self._waiting.lstrip()[:1] in ("", "{", "["):
            return ""
        self._begun = True
        return self.rest()

    def _take(self, count: int) -> str:
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken


def as_told(calls: Sequence[ToolCall], *, counted: bool) -> list[dict[str, Any]]:
    """In OpenAI's words. `counted`: with their places, as chunks have them."""
    return [
        {
            **({"index": index} if counted else {}),
            "id": f"call_{secrets.token_hex(12)}",
            "type": "function",
            "function": {"name": one.name, "arguments": one.arguments},
        }
        for index, one in enumerate(calls)
    ]
