"""What is done to the group of the open conversation, whichever way it is asked for. No terminal library.

Every function raises `NotPossibleError` where it makes no sense now, and `StoreError` where it cannot be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.personas.group import Group


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
    session.deleted_last = False


def end(session: ChatSession) -> None:
    """Have nobody play anybody from here on, which an undo takes back."""
    session.require_quiet()
    group_here(session)
    session.store.add_message(session.require_open(), "system", session.system_prompt or "", change="group")
    session.reload()
    session.deleted_last = False


def speak(session: ChatSession, name: str) -> None:
    """Have one of the group answer what was said last, whoever said that; without a name whose turn it is."""
    session.require_quiet()
    group = group_here(session)
    session.unkept.save()
    member = member_called(group, name) if name else group.next(session.branch, session.spoken.speaks)
    session.answer_tip(speaker=member.char)
