"""Several characters in one conversation: who they are, how it is settled who speaks next, and who speaks now."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from exlchat.app.chat import group_actions
from exlchat.app.chat.own_settings import SETTLED
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.commands.speaking import show_from

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.view import View
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.speakers import SpeaksNext

command = partial(action.command, topic="Personas and prompt formats")

BY: Final[dict[str, SpeaksNext]] = {"name": "named", "turn": "turn", "choice": "chosen"}
"""What is typed behind `by`, and how it is then settled who speaks next."""


@command(
    "group",
    "Group chat",
    "Have several personas speak: NAME NAME…; also `add NAME`, `remove NAME`, `by name`, `by turn`, `by choice`, `-`.",
    "/group",
    "[NAMES]",
    is_typed=True,
    after="persona",
    aliases=("/members",),
)
def group(view: View, text: str) -> None:
    session = view.session
    names = _names(text)
    match names:
        case []:
            view.note(_told(session))
        case ["-"]:
            group_actions.end(session)
            view.show_messages()
            view.tell("The group has ended: nobody plays anybody from here on")
        case ["by", *how]:
            _settle(view, how)
        case ["add", *new] if new:
            there, now = session.spoken.group, session.persona
            before = there.members if there is not None else () if now is None else (now,)
            _gather(view, (*before, *_frozen(view, new, user=before[0].user if before else None)))
        case ["remove", *gone] if gone:
            there = group_actions.group_here(session)
            leaving = [group_actions.member_called(there, name) for name in gone]
            _gather(view, tuple(one for one in there.members if one not in leaving))
        case ["add"] | ["remove"]:
            raise NotPossibleError(f"/group {names[0]} needs the NAME of a persona")
        case _:
            _gather(view, _frozen(view, names))


@command(
    "speak",
    "Who speaks now",
    "Have NAME of the group answer now, several one after the other, or `all`; without NAME, whose turn it is.",
    "/speak",
    "[NAMES]",
    after="group",
    aliases=("/trigger",),
)
def speak(view: View, text: str) -> None:
    there = group_actions.group_here(view.session)
    alone = "," not in text and there.member(text) is not None
    group_actions.speak(view.session, [text] if alone else _names(text))
    view.show_messages()


def _names(text: str) -> list[str]:
    """With commas between them names may have spaces."""
    first, _, rest = text.partition(" ")
    if "," not in text:
        return text.split()
    leads = first in ("add", "remove")
    return [*([first] if leads else []), *(one.strip() for one in (rest if leads else text).split(",") if one.strip())]


def _told(session: ChatSession) -> str:
    there = session.spoken.group
    usage = "/group NAME NAME begins one of these, /group add NAME, /group by name, turn or choice"
    if there is None:
        return f"No group speaks here; {usage}"
    from exlchat.chat.speakers import label_of

    spoken = session.spoken
    due = "" if spoken.chosen else f", {label_of(there.next(session.branch, spoken.speaks).char)} next"
    return (
        f"Group: {spoken.who}; {SETTLED[spoken.speaks]}{due}\n/speak NAME has one speak now, {usage.split(', ', 1)[1]}"
    )


def _frozen(view: View, names: list[str], *, user: str | None = None) -> tuple[FrozenPersona, ...]:
    from exlchat.app.speaking import chosen_persona
    from exlchat.chat.personas.persona import PersonaError

    seed, called = view.session.generation.seed, user or view.shelf.settings.user_name
    try:
        return tuple(chosen_persona(name, seed=seed, user=called) for name in names)
    except PersonaError as error:
        raise NotPossibleError(str(error)) from error


def _gather(view: View, members: tuple[FrozenPersona, ...]) -> None:
    from exlchat.chat.personas.group import Group
    from exlchat.chat.personas.persona import PersonaError

    session = view.session
    try:
        together = Group(members)
    except PersonaError as error:
        raise NotPossibleError(str(error)) from error
    before = session.conversation_id
    group_actions.gather(session, together)
    show_from(view, before)
    view.tell(f"{', '.join(together.names)} speak from here on; {SETTLED[session.spoken.speaks]}")


def _settle(view: View, how: list[str]) -> None:
    group_actions.group_here(view.session)
    speaks = BY.get(how[0]) if len(how) == 1 else None
    if speaks is None:
        raise NotPossibleError("who speaks next is settled by name, by turn or by choice: /group by name")
    view.session.settle_speaker_by(speaks)
    view.tell(f"From now on {SETTLED[speaks]}")
