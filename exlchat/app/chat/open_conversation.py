"""The conversation that is open, how it is spoken to, and how the next one begins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exlchat.app.chat.own_settings import OwnSettings, Spoken, begun_with, layered, spoken_to
from exlchat.app.chat.unkept import UnkeptAnswers
from exlchat.app.generation_settings import NAMES
from exlchat.app.lacking import refused
from exlchat.chat.model import settings_of
from exlchat.chat.speakers import is_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.chat.model import Conversation, Message
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.personas.group import Group
    from exlchat.chat.prompt.note import Note
    from exlchat.chat.speakers import SpeaksNext
    from exlchat.chat.store.conversations import ConversationStore
    from exlchat.config.layers import Resolved


@dataclass(frozen=True, slots=True)
class Defaults:
    """What conversations that say nothing themselves are spoken to by.

    Args:
        held: what holds for the model, in this start.
        model: its folder; `None` where that is not known.
        system: the system prompt of new conversations.
    """

    held: Resolved
    model: Path | None
    system: str | None


class OpenConversation:
    """The part of the session that asks nothing of the engine; runs on the session's thread."""

    def __init__(
        self,
        store: ConversationStore,
        *,
        defaults: Defaults,
        persona: FrozenPersona | None,
    ) -> None:
        self.store = store
        self.defaults = defaults
        self.first_persona = persona
        """Who speaks in new conversations."""
        self.lacks: Mapping[str, str] = {}
        """What the model that is there cannot do, and why: as of `ModelInfo`. Whoever knows the model says it."""
        self.unkept = UnkeptAnswers(store)
        self._conversation: Conversation | None = None
        self._spoken: Spoken | None = None
        self.places: Mapping[str, tuple[int, int]] = {}
        """Which of how many alternatives each message of the open conversation is that has any; from 1."""
        self._new_persona = persona
        self._new_system = defaults.system
        self._new_own = OwnSettings()
        """What was said of a conversation in which there is no message yet."""
        self._overruled: dict[str | None, frozenset[str]] = {}
        """By conversation, what was said in it in this run, whatever this start was given."""

    # What is there

    @property
    def conversation(self) -> Conversation | None:
        return self._conversation

    @conversation.setter
    def conversation(self, conversation: Conversation | None) -> None:
        self._conversation, self._spoken = conversation, None

    @property
    def conversation_id(self) -> str | None:
        """Id of the open conversation; `None` for a new one that nobody has written in."""
        return self.conversation.id if self.conversation else None

    @property
    def draft_id(self) -> str | None:
        """Whose draft is in the composer; `None`, as for a new one, until the user has said something in it."""
        return self.conversation_id if any(one.role == "user" for one in self.branch) else None

    @property
    def branch(self) -> Sequence[Message]:
        return self.conversation.branch if self.conversation else ()

    @property
    def system_prompt(self) -> str | None:
        return self.conversation.system_prompt if self.conversation else self._new_system

    @property
    def last_answer(self) -> Message | None:
        return next((one for one in reversed(self.branch) if one.role == "assistant"), None)

    @property
    def last_said(self) -> Message | None:
        """The newest message that is not a system prompt."""
        return next((one for one in reversed(self.branch) if one.role != "system"), None)

    # How it is spoken to

    @property
    def spoken(self) -> Spoken:
        """How the open conversation is spoken to."""
        if self._spoken is None:
            self._spoken = self._spoken_in(self.conversation)
        return self._spoken

    @property
    def persona(self) -> FrozenPersona | None:
        """Who speaks in the open conversation; `None` where nobody does, or a plain system prompt came after it."""
        return self.spoken.persona

    @property
    def generation(self) -> GenerationSettings:
        return self.spoken.generation

    @property
    def template(self) -> str | None:
        return self.spoken.template

    @property
    def as_usual(self) -> GenerationSettings:
        """How answers would be drawn had nobody said anything of that in this conversation."""
        defaults = self.defaults
        return spoken_to(defaults.held, defaults.model, OwnSettings(), self.persona).generation

    def draw_by(self, generation: GenerationSettings) -> None:
        """Draw the next answers of this conversation so.

        Raises:
            ValueError: the model cannot, in one line; how they were drawn before goes on.
            StoreError: it could not be written.
        """
        now = self.generation
        if reason := refused(self.lacks, generation, now):
            raise ValueError(reason)
        said = {
            name: generation.value(name)
            for name in NAMES
            if (generation.value(name), generation.source(name)) != (now.value(name), now.source(name))
        }
        presets = {name: one for name in said if (one := generation.source(name)).startswith("preset ")}
        if said:
            self._say(self.spoken.own.saying(said, presets), said)

    def set_back(self, names: Iterable[str]) -> None:
        """Have values be as usual again in this conversation.

        Raises:
            ValueError: they contradict those that stay, in one line.
            StoreError: it could not be written.
        """
        gone, ident = frozenset(names), self.conversation_id
        own = self.spoken.own.without(gone)
        overruled = self._overruled_in(self.conversation) - gone
        spoken_to(self.defaults.held, self.defaults.model, own, self.persona, overruled)
        self._overruled[ident] = overruled
        self._say(own, ())

    def choose_template(self, name: str | None) -> None:
        """Have the next prompts of this conversation be in another format; `None` is the model's own.

        Raises:
            StoreError: it could not be written.
        """
        self._say(self.spoken.own.saying({"template": name}), ("template",))

    def take_note(self, note: Note | None) -> None:
        """Have an author's note stand in the prompts of this conversation; `None` takes it away.

        Raises:
            StoreError: it could not be written.
        """
        self._say(replace(self.spoken.own, note=note), ())

    def settle_speaker_by(self, speaks: SpeaksNext) -> None:
        """Have it settled so who of the group speaks next.

        Raises:
            StoreError: it could not be written.
        """
        self._say(replace(self.spoken.own, speaks=speaks), ())

    def _say(self, own: OwnSettings, names: Iterable[str]) -> None:
        conversation, branch = self.conversation, self.branch
        if conversation is None or not branch:
            self._new_own = own
        elif own != self.spoken.own:
            content = own.as_json()
            kept = self.store.keep_settings(conversation.id, content)
            changed = tuple(replace(one, settings=content) if one.id == kept else one for one in branch)
            self.conversation = replace(conversation, branch=changed)
        self._overrule(names)

    def _overrule(self, names: Iterable[str]) -> None:
        self._overruled[self.conversation_id] = self._overruled_in(self.conversation) | frozenset(names)
        self._spoken = None

    def _overruled_in(self, conversation: Conversation | None) -> frozenset[str]:
        return self._overruled.get(None if conversation is None else conversation.id, frozenset())

    def _spoken_in(self, conversation: Conversation | None) -> Spoken:
        branch = conversation.branch if conversation is not None else ()
        own = OwnSettings.from_json(settings_of(branch)) if branch else self._new_own
        persona = _persona_of(branch) if conversation is not None else self._new_persona
        defaults = self.defaults
        group = _group_of(branch)
        try:
            spoken = spoken_to(defaults.held, defaults.model, own, persona, self._overruled_in(conversation))
            return replace(spoken, group=group)
        except ValueError as error:
            # What can be read of it is not lost: it holds again where it goes with the rest.
            problem = f"how this conversation is spoken to does not go with what holds now: {error}"
        try:
            spoken = spoken_to(defaults.held, defaults.model, OwnSettings(), persona)
        except ValueError:
            spoken = spoken_to(defaults.held, defaults.model, OwnSettings(), None)
        return replace(spoken, own=own, problem=problem, group=group)

    def _begun_with(self) -> Mapping[str, Any] | None:
        """What a conversation in which nobody has said anything says itself from its first prompt on."""
        own = begun_with(self.defaults.held, self.spoken.own, self._overruled_in(self.conversation))
        return own.as_json() if own else None

    def layered(self, defaults: Defaults) -> Resolved:
        """What would hold in the open conversation with other defaults."""
        return layered(defaults.held, self.spoken.own, self.persona, self._overruled_in(self.conversation))

    def require_fit(self, defaults: Defaults) -> None:
        """Refuse what does not go with what the open conversation says.

        Raises:
            ValueError: it does not, in one line.
        """
        overruled = self._overruled_in(self.conversation)
        if not self.spoken.problem:
            spoken_to(defaults.held, defaults.model, self.spoken.own, self.persona, overruled)

    def use(self, defaults: Defaults) -> None:
        """Go on with what belongs to another model, or with other settings; what conversations say themselves stays."""
        if self.conversation is None and self._new_system == self.defaults.system:
            self._new_system = defaults.system
        self.defaults, self._spoken = defaults, None

    # Which conversation is open

    def start_new(self) -> None:
        """Leave the open conversation for a new one, which is made on disk with its first prompt or its greeting.

        Raises:
            StoreError: the greeting could not be written; the new conversation is open without it.
        """
        self.conversation, self.places = None, {}
        self._new_system, self._new_persona = self.defaults.system, self.first_persona
        self._new_own = OwnSettings()
        self._overruled.pop(None, None)
        if self._new_persona is not None and self._new_persona.greetings:
            self._create()

    def show_new(self) -> None:
        """Go back to the new conversation, as it was left."""
        self.conversation, self.places = None, {}

    def open(self, conversation_id: str) -> Conversation:
        """Open a conversation.

        Raises:
            StoreError: it cannot be read; the one open before stays open.
        """
        self.conversation = self.unkept.whole(self.store.load(conversation_id))
        self.places = self.store.places(conversation_id)
        return self.conversation

    def reload(self) -> None:
        if self.conversation is not None:
            self.open(self.conversation.id)

    def save_anew(self) -> None:
        """Go on with what lies where the database was, with the open conversation and what is not on disk.

        No answer may be on its way.

        Raises:
            StoreError: that cannot be done; all is as it was.
        """
        opened = [] if self.conversation_id is None else [self.conversation_id]
        others = self.store.conversations_of(self.unkept.ids).difference(opened)
        trees = [self.unkept.in_tree(self.store.read_tree(ident)) for ident in (*opened, *sorted(others))]
        ids = self.store.begin_anew(trees)
        self.unkept.forget()
        if opened:
            self.open(ids[0])

    def rename(self, conversation_id: str, title: str) -> None:
        self.store.rename(conversation_id, title)
        self.reload()

    def gather(self, group: Group, scene: str) -> None:
        """Have a group speak from here on, in a new conversation where nobody has said anything in this one.

        `scene` is what all of them are told.

        Raises:
            StoreError: it could not be written.
        """
        from exlchat.chat.personas.group import begin_group

        if self.conversation is not None and any(one.role == "user" or one.record for one in self.branch):
            self.store.add_message(
                self.conversation.id,
                "system",
                scene,
                persona=group.as_json(),
                change="group",
            )
            self.reload()
            return
        own = self.spoken.own
        settings = own.as_json() if own else None
        said = self._overruled_in(self.conversation)
        self._overruled.pop(None, None)
        conversation = begin_group(self.store, group, scene=scene, settings=settings)
        self._overruled[conversation.id] = said
        self.open(conversation.id)

    def _create(self) -> None:
        """Open what has been a new conversation as one on disk."""
        own = self._new_own.as_json() if self._new_own else None
        if self._new_persona is not None:
            # Most starts have no persona.
            from exlchat.chat.personas.opening import begin_conversation

            conversation = begin_conversation(self.store, self._new_persona, system=self._new_system, settings=own)
        else:
            conversation = self.store.create_conversation()
            if self._new_system:
                self.store.add_message(conversation.id, "system", self._new_system, settings=own)
        self._overruled[conversation.id] = self._overruled.pop(None, frozenset())
        self.open(conversation.id)


def _persona_of(branch: Sequence[Message]) -> FrozenPersona | None:
    """Who speaks at the end of a branch; nobody where what was kept of it is damaged, which the next answer says."""
    newest = next((one for one in reversed(branch) if one.role == "system"), None)
    if newest is None or newest.persona is None:
        return None
    # Most conversations have no persona.
    from exlchat.chat.personas.opening import persona_of
    from exlchat.chat.personas.persona import PersonaError

    try:
        return persona_of(branch)
    except PersonaError:
        return None


def _group_of(branch: Sequence[Message]) -> Group | None:
    """Which group speaks at the end of a branch; none where it is damaged, which the next answer says."""
    if not any(is_group(one) for one in branch):
        return None
    # Most conversations have none.
    from exlchat.chat.speaking import TurnError, group_at

    try:
        return group_at(branch)
    except TurnError:
        return None
