"""Who speaks at the end of a branch, and what the model is told because of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from exlchat.chat.model import Message, settings_of
from exlchat.chat.prompt.note import Note, note_in
from exlchat.chat.speakers import GROUP, char_of, label_of, speaks_next

if TYPE_CHECKING:
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.personas.group import Group
    from exlchat.chat.personas.lore_of_turn import KeepsTold


class TurnError(Exception):
    """A turn that makes no sense at this point of the conversation; one line."""


def speaker_name(branch: Sequence[Message]) -> str | None:
    name = _spoken(branch).get("name")
    return name if isinstance(name, str) else None


def speaker_names(branch: Sequence[Message]) -> dict[str, str]:
    """What templates call those who speak at the end of a branch; nothing where no persona does."""
    spoken = _spoken(branch)
    names = {"user_name": spoken.get("user"), "assistant_name": spoken.get("char")}
    return {key: name for key, name in names.items() if isinstance(name, str) and name.strip()}


def note_told(branch: Sequence[Message], settings: Mapping[str, Any] | None = None) -> Note | None:
    """The author's note at the end of a branch, with the names of those who speak there.

    `settings` is how the conversation is spoken to, where the branch does not say it.
    """
    note = note_in(settings_of(branch) if settings is None else settings)
    return None if note is None else note.resolved(speaker_names(branch))


def speaker_thinks(branch: Sequence[Message]) -> bool | None:
    wanted = _spoken(branch).get("thinking")
    return wanted if isinstance(wanted, bool) else None


@dataclass(frozen=True, slots=True)
class Heard:
    """A branch as whoever is to answer it hears it.

    Args:
        branch: of a group its messages as `personas.group.heard_by` puts them, else as they are.
        whole: as it is on disk.
        speaker: who of a group answers; `None` where none speaks.
        others: what ends an answer, because somebody else of the group would begin to speak.
    """

    branch: tuple[Message, ...]
    whole: tuple[Message, ...]
    speaker: str | None = None
    others: tuple[str, ...] = ()


def heard(
    branch: Sequence[Message],
    *,
    speaker: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Heard:
    """A branch as it is heard by whoever is to answer its end.

    Args:
        branch: oldest message first.
        speaker: who of its group; `None` takes whose turn it is.
        settings: how the conversation is spoken to, where the branch does not say it.

    Raises:
        TurnError: no group is there, it has nobody of that name, it is damaged, or who speaks is to be chosen.
    """
    group = group_at(branch)
    if group is None:
        if speaker is not None:
            raise TurnError("no group speaks here; /group NAME NAME begins one")
        return Heard(tuple(branch), tuple(branch))
    from exlchat.chat.personas.group import next_speaker

    member: FrozenPersona | None
    if speaker is not None:
        member = group.member(speaker)
        if member is None:
            raise TurnError(f"there is no {label_of(speaker)} in this group; there are {', '.join(group.names)}")
    else:
        held = settings_of(branch) if settings is None else settings
        member = next_speaker(branch, group, speaks_next(held) or "named")
        if member is None:
            raise TurnError(choose_line(group.names))
    return _as_heard(branch, group, member)


def choose_line(names: Sequence[str]) -> str:
    """What to say where nobody answers by itself."""
    return f"you choose who speaks in this group, one of {', '.join(names)}: /speak NAME, or exlchat ask --speaker NAME"


def heard_at_end(branch: Sequence[Message]) -> Heard:
    """A branch for looking at: up to an answer as whoever gave it hears it, else as of whose turn it is.

    Raises:
        TurnError: what was kept of its group is damaged.
    """
    group = group_at(branch)
    if group is None:
        return Heard(tuple(branch), tuple(branch))
    last = next((one for one in reversed(branch) if one.role != "system"), None)
    name = None if last is None else char_of(last)
    member = None if name is None else group.member(name)
    if member is not None:
        return _as_heard(branch, group, member, asks=False)
    return _as_heard(branch, group, group.next(branch, speaks_next(settings_of(branch)) or "named"))


def group_at(branch: Sequence[Message]) -> Group | None:
    """Which group speaks at the end of a branch; `None` where none does.

    Raises:
        TurnError: what was kept of it is damaged.
    """
    if GROUP not in _spoken(branch):
        return None
    # Most conversations have one persona, or none.
    from exlchat.chat.personas.group import group_of
    from exlchat.chat.personas.persona import PersonaError

    try:
        return group_of(branch)
    except PersonaError as error:
        raise TurnError(str(error)) from error


def _as_heard(branch: Sequence[Message], group: Group, member: FrozenPersona, *, asks: bool = True) -> Heard:
    from exlchat.chat.personas.group import heard_by, others_begin

    told = heard_by(branch, group, member, asks=asks)
    return Heard(told, tuple(branch), label_of(member.char), others_begin(group, member))


def with_lore_told(store: KeepsTold, told: Heard, count_tokens: Callable[[str], int]) -> tuple[Message, ...]:
    """See `personas.lore_of_turn`, which is only read where a persona with a lorebook speaks.

    Raises:
        TurnError: what was kept of the persona is damaged.
    """
    branch = told.branch
    if _spoken(branch).get("lorebook") is None:
        return branch
    if told.speaker is not None:
        from exlchat.chat.personas.group import GroupLore

        store = GroupLore(store, told.whole, told.speaker)
    from exlchat.chat.personas.lore_of_turn import with_lore
    from exlchat.chat.personas.persona import PersonaError

    try:
        return with_lore(store, branch, count_tokens=count_tokens)
    except PersonaError as error:
        raise TurnError(str(error)) from error


class KeepsNothing:
    """In the place of a store, for looking at a prompt: what would be told is not noted."""

    def keep_told(self, message_id: str, note: Mapping[str, Any]) -> None:
        """Nothing."""


def _spoken(branch: Sequence[Message]) -> Mapping[str, Any]:
    newest = next((one.persona for one in reversed(branch) if one.role == "system"), None)
    return {} if newest is None else newest
