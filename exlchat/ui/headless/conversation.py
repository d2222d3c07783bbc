"""Where an answer of `exlchat ask` goes: a new conversation with the prompt, or one that is there, at its tip."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from exlchat import paths
from exlchat.app.chat.answering import was_cut
from exlchat.app.chat.list_order import ASKED, FOLDER_MARK
from exlchat.chat.speakers import is_group
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore, StoreError

if TYPE_CHECKING:
    from exlchat.chat.model import Conversation, Message
    from exlchat.chat.personas.frozen import FrozenPersona

Again = Literal["retry", "continue"]


@dataclass(frozen=True, slots=True)
class AskedPrompt:
    """What is put into the conversation before the answer.

    Args:
        prompt: what is asked; `None` where an answer that is there is given again or goes on.
        system: who is speaking from here on, as text; `None` leaves that as it is.
        persona: who is speaking from here on, with all that was frozen of it.
    """

    prompt: str | None
    system: str | None = None
    persona: FrozenPersona | None = None


@dataclass(frozen=True, slots=True)
class AnsweredConversation:
    """A conversation that is to be answered.

    Args:
        store, conversation_id: where.
        retry_of, continue_from: as of `turn.answer`.
        prompt_id: the prompt that was just put there, if there is one.
        before: what the conversation ended with before.
        new: whether it was begun for this prompt.
    """

    store: ConversationStore
    conversation_id: str
    retry_of: str | None = None
    continue_from: str | None = None
    prompt_id: str | None = None
    before: str | None = None
    new: bool = False

    def take_back(self) -> None:
        """Undo the beginning, as the app does: a prompt that could not even be asked is still with who asked.

        In a conversation that was there, the prompt stays in the tree.
        """
        if self.new:
            self.store.delete(self.conversation_id)
        elif self.prompt_id is not None and self.store.load(self.conversation_id).tip_id == self.prompt_id:
            self.store.set_tip(self.conversation_id, self.before)


def open_store() -> ConversationStore:
    """The conversations on disk.

    Raises:
        StoreError, FolderError: they cannot be used.
    """
    where = paths.folders().conversations
    paths.ensure_folder(where.parent)
    return ConversationStore(where)


def begin(store: ConversationStore, said: AskedPrompt) -> AnsweredConversation:
    """A new conversation with the prompt.

    Raises:
        StoreError: it could not be written.
    """
    if said.persona is not None:
        # Most questions are asked of no persona.
        from exlchat.chat.personas.opening import begin_conversation

        # Who asks speaks first, so that nobody is greeted.
        conversation_id = begin_conversation(store, said.persona, system=said.system, greets=False).id
    else:
        conversation_id = store.create_conversation().id
        if said.system:
            store.add_message(conversation_id, "system", said.system)
    prompt = store.add_message(conversation_id, "user", said.prompt or "")
    store.set_tags(conversation_id, [f"{ASKED}{FOLDER_MARK}"], undoable=False)
    return AnsweredConversation(store, conversation_id, prompt_id=prompt.id, new=True)


def find(store: ConversationStore, wanted: str) -> Conversation:
    """The conversation that is meant by the beginning of an id, or by `last`.

    Raises:
        StoreError: there is none, or several, or it was deleted.
    """
    from exlchat.app.chat.finding import SHORT, conversation

    ident = conversation(store, wanted)
    if any(one.id == ident for one in store.list_conversations("deleted")):
        short = ident[:SHORT]
        raise StoreError(f"conversation {short} was deleted; bring it back first: exlchat sessions restore {short}")
    return store.load(ident)


def check(conversation: Conversation, again: Again | None) -> None:
    """See that an answer can be asked for in a conversation as it is now.

    Raises:
        TurnError: another program is writing an answer there, or there is none to give again or to go on with.
    """
    if conversation.branch and conversation.branch[-1].status == "streaming":
        raise TurnError("another program is writing an answer in this conversation; ask when it has ended")
    if again is None:
        return
    last = _last_said(conversation)
    if last is None:
        raise TurnError("there is nothing to answer in this conversation yet; give a prompt")
    if again == "continue" and not was_cut(last):
        raise TurnError("the last answer was not cut or edited; there is nothing to go on with")


def go_on(
    store: ConversationStore, conversation_id: str, said: AskedPrompt, again: Again | None
) -> AnsweredConversation:
    """A conversation that is there, with the prompt at its tip, or with the answer that is to be given again.

    What another program does to it meanwhile costs nothing: the prompt stands under what was seen here, and all else
    stays in the tree beside it.

    Raises:
        TurnError: another program is writing an answer there, or there is none to give again or to go on with.
        StoreError: it cannot be read or written.
    """
    conversation = store.load(conversation_id)
    check(conversation, again)
    if again is not None:
        return _again(store, conversation, again)
    parent_id = conversation.tip_id
    if said.persona is not None or _is_new(said.system, conversation):
        now = next((one for one in reversed(conversation.branch) if one.role == "system"), None)
        # What a system prompt says to a group is said to all of them.
        group = None if now is None or not is_group(now) else now.persona
        frozen = group if said.persona is None else said.persona.as_json()
        told = store.add_message(conversation_id, "system", said.system or "", parent_id=parent_id, persona=frozen)
        parent_id = told.id
    prompt = store.add_message(conversation_id, "user", said.prompt or "", parent_id=parent_id)
    return AnsweredConversation(store, conversation_id, prompt_id=prompt.id, before=conversation.tip_id)


def _is_new(system: str | None, conversation: Conversation) -> bool:
    """Whether a system prompt is not yet the one that holds; a script that says it each time says it once."""
    if system is None:
        return False
    now = next((one for one in reversed(conversation.branch) if one.role == "system"), None)
    return bool(system) if now is None else now.text != system or (now.persona is not None and not is_group(now))


def _again(store: ConversationStore, conversation: Conversation, again: Again) -> AnsweredConversation:
    last = _last_said(conversation)
    assert last is not None
    if again == "continue":
        return AnsweredConversation(store, conversation.id, continue_from=last.id)
    return AnsweredConversation(store, conversation.id, retry_of=None if last.role == "user" else last.id)


def _last_said(conversation: Conversation) -> Message | None:
    return next((one for one in reversed(conversation.branch) if one.role != "system"), None)
