"""Slash commands that match what is being typed, above the composer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.ui.actions import Action

_USAGE_CELLS = 18


class CommandMenu(OptionList):
    """Shown while a slash command is being typed. The composer keeps the focus and moves the highlight."""

    can_focus = False

    def offer(self, actions: Sequence[Action]) -> None:
        """Show these commands, or hide when there is none."""
        self.clear_options()
        self.add_options(Option(_row(action), id=action.id) for action in actions)
        self.display = bool(actions)
        self.highlighted = 0 if actions else None

    def move(self, by: int) -> None:
        """Move the highlight up (-1) or down (+1), around the ends."""
        if self.option_count:
            self.highlighted = ((self.highlighted or 0) + by) % self.option_count

    @property
    def chosen_id(self) -> str | None:
        """Id of the highlighted action."""
        return self.highlighted_option.id if self.highlighted_option else None


def _row(action: Action) -> Content:
    return Content.assemble(
        Content.styled(action.usage.ljust(_USAGE_CELLS), "$primary"), Content.styled(action.help, "$quiet-text")
    )
