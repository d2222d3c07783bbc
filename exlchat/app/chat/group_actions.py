"""What is done to the group of the open conversation, whichever way it is asked for. No terminal library.

Every function raises `NotPossibleError` where it makes no sense now, and `StoreError` where it cannot be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.speakers import label_of
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.app.chat.session import ChatSession
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.personas.group import Group


EVERYBODY = "all"


def group_here(session: ChatSession) -> Group:
    group = session.spoken.group
    if group is None:
        raise NotPossibleError("no group speaks here; /group NAME NAME begins one")
    return group


def member_called(group: Group, name: str) -> FrozenPersona:
    member = group.member(name)
    if member is None:
        raise NotPossibleError(f"there is no {one_line(name, 40)} in this group; there are {', '.join(group.names)}")
    return member


def gather(session: ChatSession, group: Group) -> None:
    """Have several characters speak from here on, which an undo takes back; who of them is settled each time.

    What all of a group were told, they go on being told.
    """
    session.require_quiet()
    session.unkept.save()
    scene = (session.system_prompt or "") if session.persona is None else ""
    session.gather(group, scene)
    session.list_history.is_newest = False


def end(session: ChatSession) -> None:
    """Have nobody play anybody from here on, which an undo takes back."""
    session.require_quiet()
    group_here(session)
    session.store.add_message(session.require_open(), "system", session.system_prompt or "", change="group")
    session.reload()
    session.list_history.is_newest = False


def speak(session: ChatSession, names: Sequence[str]) -> None:
    """Have some of the group answer what was said last, whoever said that; without a name whose turn it is.

    `EVERYBODY` alone is all of them, from whose turn it is on.
    """
    session.require_quiet()
    group = group_here(session)
    due = group.next(session.branch, session.spoken.speaks)
    if list(names) == [EVERYBODY] and group.member(EVERYBODY) is None:
        place = group.members.index(due)
        members = [*group.members[place:], *group.members[:place]]
    else:
        members = [member_called(group, name) for name in names] or [due]
    session.unkept.save()
    session.have_speak(session.require_open(), [label_of(one.char) for one in members])
