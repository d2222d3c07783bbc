"""Several characters in one conversation: who they are, who speaks next, and what it looks like to each of them."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exlchat.chat.model import Conversation, ConversationTree, Message
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.lore_of_turn import KeepsTold
from exlchat.chat.personas.opening import BeginningStore
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.prompt.ids import OPENER
from exlchat.chat.speakers import GROUP, SpeaksNext, label_of, said_by, speaks_as

MOST = 16
"""Members: each of them can end an answer by its name, and has a prompt of its own in the cache."""
_TOLD = "told"
"""What of lorebooks was told with a message, by who was told it."""


@dataclass(frozen=True, slots=True)
class Group:
    """At least two members who are called differently, in the order in which they take turns.

    Raises:
        PersonaError: they are fewer, too many, or cannot be told apart by what they are called; one line.
    """

    members: tuple[FrozenPersona, ...]

    def __post_init__(self) -> None:
        if len(self.members) < 2:
            raise PersonaError("a group needs two characters; /persona NAME has one speak alone")
        if len(self.members) > MOST:
            raise PersonaError(f"a group has at most {MOST} characters, and these are {len(self.members)}")
        taken = {label_of(self.user).casefold(): f"as you are ({label_of(self.user)})"}
        for one in self.members:
            name = label_of(one.char)
            if not name:
                raise PersonaError(f"{one.source} has no name to be called by; give its file another")
            if (other := taken.get(name.casefold())) is not None:
                raise PersonaError(f"a character of the group is called {other}; give one of them another name")
            taken[name.casefold()] = f"{name} already"

    @property
    def user(self) -> str:
        """What `{{user}}` stands for."""
        return self.members[0].user

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(label_of(one.char) for one in self.members)

    def as_json(self) -> dict[str, Any]:
        return {GROUP: [one.as_json() for one in self.members], "user": self.user}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Group:
        """What `as_json` wrote.

        Raises:
            PersonaError: it did not.
        """
        members = content.get(GROUP)
        if not isinstance(members, list) or len(members) > MOST or not all(isinstance(one, dict) for one in members):
            raise PersonaError("the group of this conversation is damaged; /group NAME NAME begins one anew")
        try:
            return cls(tuple(FrozenPersona.from_json(one) for one in members))
        except PersonaError as error:
            raise PersonaError(f"the group of this conversation is damaged: {error}") from None

    def member(self, name: str) -> FrozenPersona | None:
        """The one that is called so, else the only one whose name begins so."""
        wanted = label_of(name).casefold()
        begun = []
        for one, called in zip(self.members, self.names, strict=True):
            if called.casefold() == wanted:
                return one
            if wanted and called.casefold().startswith(wanted):
                begun.append(one)
        return begun[0] if len(begun) == 1 else None

    def named_in(self, text: str, *, but: str | None = None) -> FrozenPersona | None:
        """Whoever is named first in a text: by the whole name, or by its first word where that is no other's."""
        places: list[tuple[int, FrozenPersona]] = []
        firsts = [name.split()[0].casefold() for name in self.names]
        for one, name, first in zip(self.members, self.names, firsts, strict=True):
            called = [name, first] if firsts.count(first) == 1 and len(first) > 1 else [name]
            found = [re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) for word in called]
            begins = [match.start() for match in found if match is not None]
            if begins and (but is None or name.casefold() != but.casefold()):
                places.append((min(begins), one))
        return min(places, key=lambda place: place[0])[1] if places else None

    def next(self, branch: Sequence[Message], speaks: SpeaksNext) -> FrozenPersona:
        """Who speaks behind a branch when nobody says who."""
        return next_speaker(branch, self, "turn" if speaks == "chosen" else speaks) or self.members[0]

    def after(self, name: str | None) -> FrozenPersona:
        """Whose turn it is when the one that is called so has spoken; `None` is before all of them."""
        called = [one.casefold() for one in self.names]
        place = called.index(name.casefold()) if name is not None and name.casefold() in called else -1
        return self.members[(place + 1) % len(self.members)]


def group_of(branch: Sequence[Message]) -> Group | None:
    """Which group speaks at the end of a branch; `None` where none does.

    Raises:
        PersonaError: what was kept of it is damaged.
    """
    newest = next((one.persona for one in reversed(branch) if one.role == "system"), None)
    return Group.from_json(newest) if newest is not None and GROUP in newest else None


def next_speaker(branch: Sequence[Message], group: Group, speaks: SpeaksNext) -> FrozenPersona | None:
    """Who answers the end of a branch; `None` where that is chosen each time."""
    if speaks == "chosen":
        return None
    said = [(one, name) for one, name in zip(branch, said_by(branch), strict=True) if one.role != "system"]
    if speaks == "named" and said:
        last, name = said[-1]
        named = group.named_in(answer_parts(last).answer, but=name)
        if named is not None:
            return named
    theirs = {one.casefold() for one in group.names}
    spoken = (name for one, name in reversed(said) if one.role == "assistant" and name is not None)
    return group.after(next((name for name in spoken if name.casefold() in theirs), None))


def heard_by(
    branch: Sequence[Message], group: Group, speaker: FrozenPersona, *, asks: bool = True
) -> tuple[Message, ...]:
    """A branch as one of the group hears it: its own words are answers, what all others say begins with their name.

    Args:
        branch: oldest message first; its newest system message is the group's.
        group: of that message.
        speaker: one of its members.
        asks: whether it is to answer: where nobody else spoke last, a word is put behind.
    """
    name = label_of(speaker.char)
    newest = max(place for place, one in enumerate(branch) if one.role == "system")
    heard: list[Message] = []
    for place, (message, who) in enumerate(zip(branch, said_by(branch), strict=True)):
        if message.role == "system":
            told = _system(message.text, group, speaker)
            own = replace(message, text=told, persona=speaker.as_json()) if place == newest else message
            heard.append(own)
        elif message.role == "assistant" and who is not None and who.casefold() == name.casefold():
            heard.append(message)
        else:
            other = who or (label_of(group.user) if message.role == "user" else "Assistant")
            text = f"{other}: {answer_parts(message).answer}"
            lore = _told_to(message, name)
            heard.append(
                replace(message, role="user", text=text, token_ids=(), record=None, thinking=None, persona=lore)
            )
    said = [one for one in heard if one.role != "system"]
    if asks and (not said or said[-1].role != "user"):
        heard.append(Message("", branch[-1].id, "user", f"[{name} goes on.]" if said else OPENER, 0.0))
    return tuple(heard)


def _system(scene: str, group: Group, speaker: FrozenPersona) -> str:
    names = [*group.names, label_of(group.user)]
    told = (
        f"This is a group chat of {', '.join(names[:-1])} and {names[-1]}. What others say begins with their name. "
        f"Write only what {label_of(speaker.char)} says next, without a name before it, and speak for nobody else."
    )
    return "\n\n".join(part for part in (speaker.system_text, scene.strip(), told) if part)


def others_begin(group: Group, speaker: FrozenPersona) -> tuple[str, ...]:
    """How the words of all others would begin: what ends an answer."""
    names = [*(one for one, member in zip(group.names, group.members, strict=True) if member is not speaker)]
    return tuple(f"\n{one}:" for one in (*names, label_of(group.user)) if one)


class GroupLore:
    """Keeps what of its lorebook one of a group was told, beside what the others were.

    Args:
        keep: of the store, as of `KeepsTold`.
        branch: as it is on disk.
        name: of who is told.
    """

    def __init__(self, keep: KeepsTold, branch: Sequence[Message], name: str) -> None:
        self._keep = keep
        self._messages = {one.id: one for one in branch}
        self._name = name

    def keep_told(self, message_id: str, note: Mapping[str, Any]) -> None:
        kept = self._messages[message_id].persona or {}
        told = kept.get(_TOLD)
        others = told if isinstance(told, dict) else {}
        self._keep.keep_told(message_id, {**kept, _TOLD: {**others, self._name: note["lore"]}})


def _told_to(message: Message, name: str) -> dict[str, Any] | None:
    told = message.persona.get(_TOLD) if message.persona is not None else None
    return {"lore": told[name]} if isinstance(told, dict) and name in told else None


def begin_group(
    store: BeginningStore, group: Group, *, scene: str = "", settings: Mapping[str, Any] | None = None
) -> Conversation:
    """A new conversation of a group, in which all who greet have done so, one after the other.

    `scene` is what all of them are told, `settings` how it is spoken to, as of `Message`.
    """
    now = time.time()
    messages = [replace(gathers(group, scene=scene, parent_id=None, now=now), settings=settings)]
    for one in group.members:
        if one.greetings:
            messages.append(
                Message(
                    uuid.uuid4().hex, messages[-1].id, "assistant", one.greetings[0], now, persona=speaks_as(one.char)
                )
            )
    tree = ConversationTree(None, now, now, messages[-1].id, tuple(messages))
    return store.load(store.write_tree(tree))


def gathers(group: Group, *, scene: str, parent_id: str | None, now: float) -> Message:
    """The system message from which on a group speaks; its text is what all of them are told."""
    return Message(uuid.uuid4().hex, parent_id, "system", scene, now, persona=group.as_json())
