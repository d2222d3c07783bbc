"""How many tokens the message that is being typed has, on the frame of the composer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from textual.content import Content

from exlchat.chat.plain_text import one_line
from exlchat.ui.file_mentions import MentionError, mentioned_files, with_files

if TYPE_CHECKING:
    from exlchat.ui.tui.screens.chat import ChatScreen

_PAUSE_SECONDS = 0.15
"""Counting waits for a pause in typing, so that it is not done for each letter."""
_FILES_NAMED = 3
_NAME_CELLS = 24


class TypedTokens:
    """Belongs to one screen and runs on its thread; what counts runs on others."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._waits = False

    def changed(self) -> None:
        """Something was typed, or the model is another one."""
        composer = self._screen.composer
        if not composer.text or composer.text.startswith("/"):
            composer.border_subtitle = ""
        elif not self._waits:
            self._waits = True
            self._screen.set_timer(_PAUSE_SECONDS, self._count)

    def _count(self) -> None:
        self._waits = False
        self._screen.run_worker(self._show(), exclusive=True, group="typed-tokens", exit_on_error=False)

    async def _show(self) -> None:
        screen = self._screen
        text = screen.composer.text
        editing = screen.message_commands.editing
        told, tokens = await asyncio.to_thread(self._counted, text, not editing)
        if screen.composer.text != text:
            self.changed()
        elif text:
            screen.composer.border_subtitle = self._line(told, tokens)

    def _counted(self, text: str, files: bool) -> tuple[str, int | None]:
        """What is to be said before the number, and the number."""
        if not files:
            return "", self._screen.prompt.count(text)
        folder = Path.cwd()
        try:
            names = mentioned_files(text, folder)
            tokens = self._screen.prompt.count(with_files(text, folder))
        except MentionError as error:
            return one_line(str(error), 60), None
        shown = [one_line(name, _NAME_CELLS) for name in names[:_FILES_NAMED]]
        more = [f"{len(names) - _FILES_NAMED} more"] if len(names) > _FILES_NAMED else []
        return (f"with {', '.join([*shown, *more])} · " if names else ""), tokens

    def _line(self, told: str, tokens: int | None) -> Content:
        if tokens is None:
            return Content.styled(told, "$warning")
        number = f"{told}{'1 token' if tokens == 1 else f'{tokens:,} tokens'}"
        over = self._over(tokens)
        if over <= 0:
            return Content.styled(number, "$quiet")
        return Content.styled(f"{number}, {over:,} too many", "$warning")

    def _over(self, tokens: int) -> int:
        """How many too many there are, at least: the marks of the template come on top."""
        screen = self._screen
        facts = screen.status.facts
        if facts.context_max is None:
            return 0
        kept = (facts.context_used or 0) if screen.session.generation.context_policy == "stop" else 0
        return kept + tokens - facts.context_max
