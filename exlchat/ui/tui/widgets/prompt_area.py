"""Where prompts are made: the composer, the commands it offers, and the prompts that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual import getters, on
from textual.containers import Vertical
from textual.widgets import Static, TextArea

from exlchat.ui.actions import BY_ID, completions
from exlchat.ui.tui.widgets.command_menu import CommandMenu
from exlchat.ui.tui.widgets.composer import Composer
from exlchat.ui.tui.widgets.queued_prompts import QueuedPrompts

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from exlchat.ui.actions import Situation


class PromptArea(Vertical):
    """Keeps the menu of commands in step with what is typed; what is sent goes up as `Composer.Submitted`."""

    queued = getters.query_one(QueuedPrompts)
    menu = getters.query_one(CommandMenu)
    composer = getters.query_one(Composer)
    editing = getters.query_one("#editing", Static)

    situation: Callable[[], Situation | None] = staticmethod(lambda: None)
    """What the commands that are offered depend on."""

    def begin_edit(self, text: str, line: str) -> None:
        """Put a message into the composer to be changed, with a line above it that says so."""
        self.editing.update(line)
        self.editing.display = True
        self.composer.begin_edit(text)
        self.composer.focus()

    def end_edit(self) -> None:
        """Put back what was typed before."""
        self.editing.display = False
        self.composer.end_edit()

    def compose(self) -> ComposeResult:
        """Top to bottom, each as high as it needs."""
        yield QueuedPrompts(id="queued")
        yield Static("", id="editing", markup=False)
        yield CommandMenu(id="menu", markup=False)
        yield Composer(id="composer")

    def on_mount(self) -> None:
        """Nothing waits and nothing is offered at first."""
        self.queued.display = False
        self.editing.display = False
        self.menu.display = False

    @property
    def offering(self) -> bool:
        """Whether commands are being offered."""
        return self.is_mounted and bool(self.menu.display)

    def hide_menu(self) -> bool:
        """Stop offering commands; whether any were offered."""
        shown = self.offering
        self.menu.offer([])
        self.composer.offering = False
        return shown

    @on(TextArea.Changed)
    def _offer(self) -> None:
        offered = [] if self.editing.display else completions(self.composer.text, self.situation())
        self.menu.offer(offered)
        self.composer.offering = bool(offered)

    @on(Composer.CompletionMoved)
    def _move(self, event: Composer.CompletionMoved) -> None:
        self.menu.move(event.by)

    @on(Composer.CompletionTaken)
    def _complete(self) -> None:
        self._take(self.menu.chosen_id)

    @on(CommandMenu.OptionSelected)
    def _clicked(self, event: CommandMenu.OptionSelected) -> None:
        self._take(event.option_id)
        self.composer.focus()

    def _take(self, action_id: str | None) -> None:
        if action_id is not None:
            action = BY_ID[action_id]
            self.composer.set_text(f"{action.slash} " if action.argument else f"{action.slash}")
