"""Where prompts are made: the composer, the commands and files it offers, and the prompts that wait."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from textual import getters, on
from textual.containers import Vertical
from textual.widgets import Static, TextArea

from exlchat.app.commands.actions import BY_ID, completions
from exlchat.app.composer.file_mentions import begun_mention, described_file, named_so_far
from exlchat.app.composer.file_names import FileNames
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.ui.tui.widgets.offer_menu import Offer, OfferMenu
from exlchat.ui.tui.widgets.queued_prompts import QueuedPrompts
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from exlchat.app.commands.action import Situation
    from exlchat.app.composer.file_mentions import BegunMention

_FILES = 30
_COUNTED = 9
"""As many files as the menu has rows are read and counted."""


class PromptArea(Vertical):
    """Keeps the menu in step with what is typed; what is sent goes up as `Composer.Submitted`."""

    queued = getters.query_one(QueuedPrompts)
    menu = getters.query_one(OfferMenu)
    composer = getters.query_one(Composer)
    editing = getters.query_one("#editing", Static)

    situation: Callable[[], Situation | None] = staticmethod(lambda: None)
    """What the commands that are offered depend on."""
    count: Callable[[str], int | None] = staticmethod(lambda _: None)
    """Tokens of a text; called on other threads."""
    arguments: Callable[[str], tuple[str, list[tuple[str, str]]]] = staticmethod(lambda _: ("", []))
    """What is typed behind the command of a line, and what can stand there; called on other threads."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self.files = FileNames(Path.cwd())
        self._mention: BegunMention | None = None
        """What the offered files would take the place of."""
        self._offered_for: BegunMention | None = None
        self._take_first = False
        """Whether Tab was pressed before the files for the last letter were there."""
        self.text_to_edit = ""
        """As a message was when it was put here to be changed."""

    def begin_edit(self, text: str, line: str) -> None:
        self.text_to_edit = text
        self.editing.update(line)
        self.editing.display = True
        self.composer.begin_edit(text)
        self.composer.focus()

    def end_edit(self) -> None:
        self.editing.display = False
        self.composer.end_edit()

    def compose(self) -> ComposeResult:
        yield QueuedPrompts(id="queued")
        yield Static("", id="editing", markup=False)
        yield OfferMenu(id="menu", markup=False)
        yield Composer(id="composer")

    def on_mount(self) -> None:
        self.queued.display = False
        self.editing.display = False
        self.menu.display = False

    @property
    def offering(self) -> bool:
        return self.is_mounted and bool(self.menu.display)

    def hide_menu(self) -> bool:
        """Stop offering; whether anything was offered."""
        shown = self.offering
        self._offer([])
        return shown

    def _offer(self, offers: list[Offer]) -> None:
        self.menu.offer(offers)
        self.composer.offering = bool(offers)

    @on(TextArea.Changed)
    def _typed(self) -> None:
        self.composer.chosen = False
        self._mention = None if self.editing.display else begun_mention(self.composer.text_before_cursor)
        if self._mention is not None:
            self.run_worker(self._offer_files(self._mention), exclusive=True, group="offers", exit_on_error=False)
            return
        self._offered_for, self._take_first = None, False
        line = self.composer.text
        if not self.editing.display and line.startswith("/") and " " in line and "\n" not in line:
            # As a function: a coroutine of a worker that is cancelled before it begins would never be awaited.
            self.run_worker(self._offer_arguments(line), group="arguments", exit_on_error=False)
            return
        now = self.situation()
        actions = [] if self.editing.display else completions(self.composer.text, now)
        reasons = {one.id: one.lacking(now.lacks) for one in actions} if now is not None else {}
        self._offer(
            [Offer(one.id, one.usage, reasons.get(one.id) or one.help, bool(reasons.get(one.id))) for one in actions]
        )

    @on(TextArea.SelectionChanged)
    def _moved(self) -> None:
        if self._mention is not None and begun_mention(self.composer.text_before_cursor) != self._mention:
            self._mention = None
            self._offer([])

    async def _offer_arguments(self, line: str) -> None:
        """What can follow a command. It is only offered: Enter sends what is typed, unless one of them was gone to."""
        if line != self.composer.text:
            return
        typed, offered = await asyncio.to_thread(self.arguments, line)
        if line == self.composer.text:
            before = line.removesuffix(typed)
            self._offer([Offer(f"{before}{value}", value, one_line(told, 200)) for value, told in offered])

    async def _offer_files(self, mention: BegunMention) -> None:
        names = await asyncio.to_thread(self.files.having, mention.name, _FILES)
        if mention is not self._mention:
            return
        if mention.name in names:
            # It is typed to its end: Enter sends.
            names = []
        self._offer([Offer(f"file:{name}", name) for name in names])
        self._offered_for = mention
        if self._take_first:
            self._take_first = False
            self._take(self.menu.chosen_id)
            return
        for name in names[:_COUNTED]:
            detail = await asyncio.to_thread(described_file, name, self.files.folder, self.count)
            if mention is not self._mention:
                return
            self.menu.change(Offer(f"file:{name}", name, detail))

    @on(Composer.CompletionMoved)
    def _move(self, event: Composer.CompletionMoved) -> None:
        self.menu.move(event.by)

    @on(Composer.CompletionTaken)
    def _complete(self) -> None:
        if self._offered_for is self._mention:
            self._take(self.menu.chosen_id)
        else:
            self._take_first = True

    @on(OfferMenu.OptionSelected)
    def _clicked(self, event: OfferMenu.OptionSelected) -> None:
        self._take(event.option_id)
        self.composer.focus()

    def _take(self, chosen: str | None) -> None:
        if chosen is None:
            return
        # Textual stops a message at the widget that caused it: what the composer says of a change made from here would
        # never come to the screen. So the composer makes it itself.
        if self._mention is not None:
            named = named_so_far(chosen.removeprefix("file:"))
            self.composer.call_next(self.composer.replace_before_cursor, self._mention.at, named)
            return
        if chosen.startswith("/"):
            self.composer.call_next(self.composer.set_text, chosen)
            return
        action = BY_ID[chosen]
        self.composer.call_next(self.composer.set_text, f"{action.slash} " if action.argument else f"{action.slash}")
