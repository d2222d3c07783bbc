"""The conversation that is open, and how the next one begins: who speaks, and how answers are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.app.chat.unkept import UnkeptAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.chat.model import Conversation, Message
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.store.conversations import ConversationStore
    from exlchat.llm.sampling import SamplingSettings


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    template: str | None
    system: str | None
    generation: GenerationSettings


def _takes_all(_: SamplingSettings) -> str:
    return ""


class OpenConversation:
    """The part of the session that asks nothing of the engine; runs on the session's thread."""

    def __init__(
        self,
        store: ConversationStore,
        *,
        template: str | None,
        system: str | None,
        generation: GenerationSettings,
        persona: FrozenPersona | None,
    ) -> None:
        self.store = store
        self.template = template
        self.generation = generation
        self.refusal: Callable[[SamplingSettings], str] = _takes_all
        """Why the model cannot draw so, in one line; empty if it can. Whoever knows the model says it."""
        self.unkept = UnkeptAnswers(store)
        self.conversation: Conversation | None = None
        self.places: Mapping[str, tuple[int, int]] = {}
        """Which of how many alternatives each message of the open conversation is that has any; from 1."""
        self._persona = persona
        self._default_system = system
        self._new_system = system

    # What is there

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

    @property
    def persona(self) -> FrozenPersona | None:
        """Who speaks in new conversations, and in the open one unless a plain system prompt came after it."""
        return self._persona

    def draw_by(self, generation: GenerationSettings) -> None:
        """Draw the next answers so.

        Raises:
            ValueError: the model cannot, in one line; how they were drawn before goes on.
        """
        if refused := self.refusal(generation.sampling):
            raise ValueError(refused)
        self.generation = generation

    # What goes with a model

    @property
    def defaults(self) -> ModelDefaults:
        return ModelDefaults(self.template, self._default_system, self.generation)

    def use(self, template: str | None, system: str | None, generation: GenerationSettings | None) -> ModelDefaults:
        """Go on with what belongs to another model; `None` for `generation` leaves that. Conversations stay."""
        self.template = template
        if self.conversation is None and self._new_system == self._default_system:
            self._new_system = system
        self._default_system = system
        if generation is not None:
            self.generation = generation
        return self.defaults

    # Which conversation is open

    def start_new(self) -> None:
        """Leave the open conversation for a new one, which is made on disk with its first prompt or its greeting.

        Raises:
            StoreError: the greeting could not be written; the new conversation is open without it.
        """
        self.conversation, self.places = None, {}
        self._new_system = self._default_system
        if self._persona is not None and self._persona.greetings:
            self.conversation = self._create()

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

    def _create(self) -> Conversation:
        if self._persona is not None:
            # Most starts have no persona.
            from exlchat.chat.personas.opening import begin_conversation

            return begin_conversation(self.store, self._persona, system=self._new_system)
        conversation = self.store.create_conversation()
        if self._new_system:
            self.store.add_message(conversation.id, "system", self._new_system)
        return self.store.load(conversation.id)
