"""Prompts that wait for the present answer, dimmed, between transcript and composer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from textual.app import RenderResult

_SHOWN = 3


class QueuedPrompts(Widget):
    """One row for each waiting prompt, three at most; hidden when there is none."""

    prompts: reactive[tuple[str, ...]] = reactive((), layout=True)

    def watch_prompts(self, prompts: tuple[str, ...]) -> None:
        self.display = bool(prompts)

    def render(self) -> RenderResult:
        rows = [f"waits  {printable(' '.join(prompt.split()))}" for prompt in self.prompts[:_SHOWN]]
        if len(self.prompts) > _SHOWN:
            rows.append(f"and {len(self.prompts) - _SHOWN} more")
        return Content("\n").join([Content(row) for row in rows])
