"""What an action of the registry is, and what its availability depends on. No terminal library here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

Place = Literal["everywhere", "composer", "message", "sidebar"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What the availability of an action depends on."""

    answering: bool = False
    has_messages: bool = False
    has_answer: bool = False
    can_retry: bool = False
    answer_was_cut: bool = False
    can_undo_delete: bool = False


def _always(_: Situation) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    Args:
        id: stable name, lower case with hyphens; the app's `Commands`, composer and sidebar look it up.
        title: a few words, as in the palette.
        help: one sentence, as on the help screen.
        keys: keys that do it, as written for people ("ctrl+n"); the first is the one to show.
        slash: the command, with its slash.
        argument: what may follow the command, such as "TITLE"; brackets mean that it may be left out.
        place: where the keys work.
        available: whether it can be done now.
        in_palette: whether the command palette lists it (what needs an argument to be useful is not listed).
    """

    id: str
    title: str
    help: str
    keys: tuple[str, ...] = ()
    slash: str | None = None
    argument: str = ""
    place: Place = "everywhere"
    available: Callable[[Situation], bool] = _always
    in_palette: bool = True

    @property
    def usage(self) -> str:
        """The slash command with its argument: "/rename TITLE"; empty without one."""
        return f"{self.slash} {self.argument}".strip() if self.slash else ""

    @property
    def argument_required(self) -> bool:
        """Whether the slash command is useless without its argument."""
        return bool(self.argument) and not self.argument.startswith("[")
