"""The tokens of the message that is being typed in the line mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from exlchat.app.composer.typed_tokens import PAUSE_SECONDS, Typed, too_many, typed_tokens
from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from exlchat.ui.line.chat import LineChat


class TypedCount:
    """Belongs to one line mode and runs on its thread; what counts runs on others."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._waits = False
        self._counted = ("", Typed(None))

    def changed(self) -> None:
        if not self._waits:
            self._waits = True
            self._chat.later(PAUSE_SECONDS, self._count)

    def told(self) -> str:
        """What is to be said of it now; nothing of a command, and nothing before it is counted."""
        text, typed = self._counted
        if not text or text != self._chat.console.typed():
            return ""
        stays = self._chat.session.generation.context_policy == "stop"
        return printable(typed.told(too_many(typed, self._chat.facts, all_is_kept=stays)))

    def _count(self) -> None:
        self._waits = False
        text = self._chat.console.typed()
        if not text or text.startswith("/"):
            return
        folder = None if self._chat.editing.active else Path.cwd()

        def counted(typed: Typed) -> None:
            self._counted = (text, typed)
            if self._chat.console.typed() != text:
                self.changed()
            self._chat.console.refresh()

        self._chat.in_background(lambda: typed_tokens(text, self._chat.engine_jobs.count, folder), counted)
