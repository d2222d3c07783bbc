"""The tokens of the message that is being typed, on the frame of the composer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from exlchat.app.composer.typed_tokens import PAUSE_SECONDS, too_many, typed_tokens

if TYPE_CHECKING:
    from exlchat.ui.tui.chat_view import ChatView


class TypedTokens:
    """Belongs to one screen and runs on its thread; what counts runs on others."""

    def __init__(self, screen: ChatView) -> None:
        self._screen = screen
        self._waits = False

    def changed(self) -> None:
        composer = self._screen.composer
        if not composer.text or composer.text.startswith("/"):
            composer.border_subtitle = ""
        elif not self._waits:
            self._waits = True
            self._screen.set_timer(PAUSE_SECONDS, self._count)

    def _count(self) -> None:
        self._waits = False
        self._screen.run_worker(self._show(), exclusive=True, group="typed-tokens", exit_on_error=False)

    async def _show(self) -> None:
        screen = self._screen
        text = screen.composer.text
        folder = None if screen.editing else Path.cwd()
        typed = await asyncio.to_thread(typed_tokens, text, screen.count_tokens, folder)
        if screen.composer.text != text:
            self.changed()
        elif text:
            stays = screen.session.generation.context_policy == "stop"
            over = too_many(typed, screen.status.facts, all_is_kept=stays)
            screen.composer.border_subtitle = Content.styled(
                typed.told(over), "$warning" if over or typed.problem else "$quiet-text"
            )
