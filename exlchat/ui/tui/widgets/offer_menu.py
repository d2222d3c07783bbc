"""What can stand in the place of what is being typed, above the composer: slash commands, names of files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

_TEXT_CELLS = 18


@dataclass(frozen=True, slots=True)
class Offer:
    """A line of the menu.

    Args:
        id: what it is chosen by.
        text: shown first.
        detail: shown behind it, quieter.
        dimmed: whether the text is as quiet, because it cannot be done now.
    """

    id: str
    text: str
    detail: str = ""
    dimmed: bool = False


class OfferMenu(OptionList):
    """The composer keeps the focus and moves the highlight."""

    can_focus = False

    def offer(self, offers: Sequence[Offer]) -> None:
        """Show these, or hide when there is none."""
        self.clear_options()
        self.add_options(Option(_row(one), id=one.id) for one in offers)
        self.display = bool(offers)
        self.highlighted = 0 if offers else None

    def change(self, offer: Offer) -> None:
        self.replace_option_prompt(offer.id, _row(offer))

    def move(self, by: int) -> None:
        """Move the highlight up (-1) or down (+1), around the ends."""
        if self.option_count:
            self.highlighted = ((self.highlighted or 0) + by) % self.option_count

    @property
    def chosen_id(self) -> str | None:
        return self.highlighted_option.id if self.highlighted_option else None


def _row(offer: Offer) -> Content:
    text = printable(offer.text).ljust(_TEXT_CELLS)
    gap = "" if len(offer.text) < _TEXT_CELLS else " "
    quiet = "$quiet-text"
    return Content.assemble(
        Content.styled(text, quiet if offer.dimmed else "$primary"), Content.styled(f"{gap}{offer.detail}", quiet)
    )
