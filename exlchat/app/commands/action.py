"""What a command is: what is told of it, when it can be given, and what carries it out. No terminal library here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.store.conversations import StoreError
from exlchat.paths import FolderError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exlchat.app.view import View

Place = Literal["everywhere", "composer", "message", "sidebar"]
Topic = Literal[
    "Writing",
    "Conversations",
    "Answers",
    "Messages and branches",
    "Personas and prompt formats",
    "How answers are drawn",
    "What an answer has to be",
    "Models",
    "Memory",
    "The program",
]
"""What a command is about; help lists them in this order."""
Handler = Callable[["View", str], None]
"""Carries a command out, given what was typed behind it. What cannot be done is raised, as `attempt` takes it."""


@dataclass(frozen=True, slots=True)
class Situation:
    answering: bool = False
    can_stop: bool = False
    has_messages: bool = False
    has_answer: bool = False
    can_retry: bool = False
    answer_was_cut: bool = False
    can_undo_in_list: bool = False
    lacks: Mapping[str, str] = field(default_factory=dict)
    """What the model cannot do, and why: as of `ModelInfo`."""


def _always(_: Situation) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    Args:
        id: stable name, lower case with hyphens, as in `[keys]`.
        title: a few words, as in the palette.
        help: one sentence, as on the help screen.
        slash: the command, with its slash.
        argument: what may follow the command, such as "TITLE"; brackets mean that it may be left out.
        keys: keys that do it, as written for people ("ctrl+n"); the first is the one to show.
        place: where the keys work.
        available: whether it can be done now.
        in_palette: whether the command palette lists it (what needs an argument to be useful is not listed).
        is_typed: whether the palette only begins the command, for somebody to type what follows it.
        in_lines: the sentence of the help in the line mode, where that does it otherwise.
        after: id of the action behind which it is listed; empty for the one that is declared before it.
        topic: what it is about.
        aliases: further slash commands that mean it, with their slashes, as people know them of other programs.
        needs: what a model has to be able to do for it, by the keys of `ModelInfo.lacks`; empty where any will do.
        lets_go: arguments that ask nothing of the model, so that any lets go of what another one was asked for.
        handler: carries it out, unless a view has a way of its own; `None` where only those have.
    """

    id: str
    title: str
    help: str
    slash: str | None = None
    argument: str = ""
    keys: tuple[str, ...] = ()
    place: Place = "everywhere"
    available: Callable[[Situation], bool] = _always
    in_palette: bool = True
    is_typed: bool = False
    in_lines: str = ""
    after: str = ""
    topic: Topic = "The program"
    aliases: tuple[str, ...] = ()
    needs: str = ""
    lets_go: tuple[str, ...] = ("off", "none")
    handler: Handler | None = None

    @property
    def usage(self) -> str:
        """The slash command with its argument: "/rename TITLE"; empty without one."""
        return f"{self.slash} {self.argument}".strip() if self.slash else ""

    @property
    def also(self) -> str:
        """A sentence on the other names of the command; empty without any."""
        return f" Also {', '.join(self.aliases)}." if self.aliases else ""

    def lacking(self, lacks: Mapping[str, str]) -> str:
        """Why the model cannot do it, and what would mend that; empty where it can."""
        return lacks.get(self.needs, "")

    @property
    def argument_required(self) -> bool:
        return bool(self.argument) and not self.argument.startswith("[")


DECLARED: dict[str, Action] = {}
"""By id; grows as the files of commands are imported. `actions` has them in order."""


def command(
    name: str,
    title: str,
    told: str,
    slash: str | None = None,
    argument: str = "",
    *,
    keys: tuple[str, ...] = (),
    place: Place = "everywhere",
    when: Callable[[Situation], bool] = _always,
    in_palette: bool = True,
    is_typed: bool = False,
    in_lines: str = "",
    after: str = "",
    topic: Topic,
    aliases: tuple[str, ...] = (),
    needs: str = "",
    lets_go: tuple[str, ...] = ("off", "none"),
) -> Callable[[Handler], Handler]:
    """Declare an action, which the decorated function carries out; arguments as of `Action`.

    Called without decorating anything, it declares what only views do that have a way of their own.
    """
    if name in DECLARED:
        raise ValueError(f"there is an action {name} already")
    action = Action(
        name,
        title,
        told,
        slash,
        argument,
        keys,
        place,
        available=when,
        in_palette=in_palette,
        is_typed=is_typed,
        in_lines=in_lines,
        after=after,
        topic=topic,
        aliases=aliases,
        needs=needs,
        lets_go=lets_go,
    )
    DECLARED[name] = action

    def carried_out_by(handler: Handler) -> Handler:
        DECLARED[name] = replace(action, handler=handler)
        return handler

    return carried_out_by


def attempt(view: View, what: Callable[[], None]) -> bool:
    """Do something; what cannot be done is told in one line and changes nothing. Whether it was done."""
    try:
        what()
    except (StoreError, PromptError, NotPossibleError, FolderError, ValueError) as error:
        view.tell(str(error), warning=True)
        return False
    return True
