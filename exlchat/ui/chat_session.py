"""The chat as the user runs it: the open conversation, answers on their way, prompts that wait. No terminal library.

Every method belongs to one thread, the one that owns the screen; the engine thread only ever sees jobs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from exlchat.chat import turn
from exlchat.chat.titling import TitleMade
from exlchat.ui.answering import Answering, was_cut
from exlchat.ui.engine_jobs import JobEnded, JobEvent
from exlchat.ui.engine_requests import Questions, title_job, turn_job
from exlchat.ui.unkept import UnkeptAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.chat.conversation import Conversation, Message
    from exlchat.chat.cost import PromptCost
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.store import ConversationStore
    from exlchat.ui.engine_requests import JobQueue
    from exlchat.ui.generation_settings import GenerationSettings


class NotPossibleError(Exception):
    """What was asked cannot be done now; one line that says why."""


@dataclass(frozen=True, slots=True)
class ModelDefaults:
    """What goes with a model: prompt format, system prompt of new conversations, and how answers are drawn."""

    template: str | None
    system: str | None
    generation: GenerationSettings


class ChatSession:
    """What can be done with conversations, whichever way it is asked for.

    A prompt for a conversation that is being answered waits (`waiting_prompts`) and is written to disk when its turn
    comes, because only then is it known which message it follows. All others are on disk before `send` returns.
    """

    def __init__(
        self,
        store: ConversationStore,
        jobs: JobQueue,
        *,
        template: str | None,
        system: str | None,
        generation: GenerationSettings,
        persona: FrozenPersona | None = None,
        titles: bool = False,
    ) -> None:
        self.store = store
        self._persona = persona
        self.template = template
        self.generation = generation
        self.unkept = UnkeptAnswers(store)
        self.questions = Questions(store, jobs)
        self.conversation: Conversation | None = None
        self._jobs = jobs
        self._default_system = system
        self._new_system = system
        self._answering: dict[str, Answering] = {}
        self._queued: dict[str, list[str]] = {}
        self._deleted: list[tuple[str, str]] = []
        self._titles = titles
        self._titled: set[str] = set()
        """Conversations about whose title a model has had its say."""

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
        """Messages of the open conversation as they are on disk."""
        return self.conversation.branch if self.conversation else ()

    @property
    def system_prompt(self) -> str | None:
        """Who is speaking in the open conversation."""
        return self.conversation.system_prompt if self.conversation else self._new_system

    @property
    def answering(self) -> Answering | None:
        """The answer on its way in the open conversation."""
        return self._answering.get(self.conversation_id or "")

    @property
    def being_written(self) -> Answering | None:
        """The answer that grows right now, in whichever conversation."""
        return next((one for one in self._answering.values() if one.message is not None), None)

    @property
    def busy(self) -> bool:
        """Whether an answer is written or waits, in whichever conversation."""
        return bool(self._answering)

    @property
    def can_undo_delete(self) -> bool:
        """Whether something was deleted in this run."""
        return bool(self._deleted)

    @property
    def last_answer(self) -> Message | None:
        """The newest answer on the open branch."""
        return next((one for one in reversed(self.branch) if one.role == "assistant"), None)

    @property
    def last_said(self) -> Message | None:
        """The newest message that is not a system prompt."""
        return next((one for one in reversed(self.branch) if one.role != "system"), None)

    # What goes with a model

    @property
    def defaults(self) -> ModelDefaults:
        """What holds now."""
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
        self.conversation = None
        self._new_system = self._default_system
        if self._persona is not None and self._persona.greetings:
            self.conversation = self._create()

    def open(self, conversation_id: str) -> Conversation:
        """Open a conversation.

        Raises:
            StoreError: it cannot be read; the one open before stays open.
        """
        self.conversation = self.unkept.whole(self.store.load(conversation_id))
        return self.conversation

    def reload(self) -> None:
        """Read the open conversation again after something was written into it."""
        if self.conversation is not None:
            self.conversation = self.unkept.whole(self.store.load(self.conversation.id))

    def rename(self, conversation_id: str, title: str) -> None:
        """Give a title."""
        self.store.rename(conversation_id, title)
        self.reload()

    def delete(self, conversation_id: str) -> str:
        """Take a conversation off the list and return its title; what is being answered in it is stopped."""
        title = self.store.load(conversation_id).title
        self.store.delete(conversation_id)
        self._deleted.append((conversation_id, title))
        self._queued.pop(conversation_id, None)
        if (answering := self._answering.get(conversation_id)) is not None:
            self._jobs.stop(answering.job)
        if conversation_id == self.conversation_id:
            self.start_new()
        return title

    def undo_delete(self) -> tuple[str, str]:
        """Bring back what was deleted last: its id and title.

        Raises:
            NotPossibleError: nothing was deleted.
        """
        if not self._deleted:
            raise NotPossibleError("nothing was deleted since the start")
        self.store.undo_delete(self._deleted[-1][0])
        return self._deleted.pop()

    # Saying something

    def send(self, text: str) -> Message | None:
        """Put a prompt on disk and have it answered; `None` when it waits for the present answer.

        Raises:
            StoreError: it could not be written; nothing was sent.
        """
        if self.conversation is not None and self.conversation.id in self._answering:
            self._queued.setdefault(self.conversation.id, []).append(text)
            return None
        self.unkept.save()
        if self.conversation is None:
            self.conversation = self._create()
        message = self.store.add_message(self.conversation.id, "user", text)
        self.reload()
        self._submit(self.conversation.id, prompt=message)
        return message

    def set_system(self, text: str) -> None:
        """Change who is speaking, from here on; recorded in the tree of the conversation.

        Raises:
            NotPossibleError: an answer is on its way.
        """
        if self.answering is not None:
            raise NotPossibleError("the system prompt can be changed when the answer has ended; Esc stops it")
        if self.conversation is None:
            self._new_system = text
        else:
            self.store.add_message(self.conversation.id, "system", text)
            self.reload()

    @property
    def persona(self) -> FrozenPersona | None:
        """Who speaks in new conversations, and in the open one unless a plain system prompt came after it."""
        return self._persona

    def let_speak(self, persona: FrozenPersona) -> None:
        """Have a persona speak, with its format and its way of answering; recorded in the tree of the conversation.

        Raises:
            NotPossibleError: an answer is on its way.
            StoreError: it could not be written.
        """
        self._require_quiet()
        if self.conversation is not None:
            self.store.add_message(self.conversation.id, "system", persona.system_text, persona=persona.as_json())
        self._persona = persona
        self._new_system = self._default_system = persona.system_text
        self.template = persona.template or self.template
        wanted = persona.sampling
        self.generation = replace(
            self.generation,
            sampling=wanted.apply(self.generation.sampling),
            max_tokens=self.generation.max_tokens if wanted.max_tokens is None else wanted.max_tokens,
        )
        if self.conversation is not None:
            self.reload()
        elif persona.greetings:
            self.conversation = self._create()

    def pin(self, back: int, pinned: bool) -> Message:
        """Have the model go on seeing a message, or no longer; `back` counts from the end, where 1 is the last one.

        Raises:
            NotPossibleError: there is no such message, or an answer is on its way.
            StoreError: it could not be written.
        """
        self._require_quiet()
        said = [message for message in self.branch if message.role != "system"]
        if not 1 <= back <= len(said):
            raise NotPossibleError(f"there is no message {back} counted from the end; there are {len(said)}")
        self.unkept.save()
        message = self.store.pin(said[-back].id, pinned)
        self.reload()
        return message

    def retry(self) -> None:
        """Have the last prompt answered again, beside the answer that is there.

        Raises:
            NotPossibleError: there is nothing to answer, or an answer is on its way.
            StoreError: the old answer cannot be written.
        """
        last = self.last_said
        self._require_quiet()
        self.unkept.save()
        if self.conversation is None or last is None:
            raise NotPossibleError("there is nothing to answer yet")
        if last.role == "user":
            self._submit(self.conversation.id, prompt=None)
        else:
            self._submit(self.conversation.id, prompt=None, retry_of=last.id)

    def continue_answer(self) -> None:
        """Go on with an answer that was cut.

        Raises:
            NotPossibleError: there is none, or an answer is on its way.
            StoreError: its text cannot be written.
        """
        last = self.last_said
        self._require_quiet()
        self.unkept.save()
        if self.conversation is None or last is None or not was_cut(last):
            raise NotPossibleError("the last answer was not cut; there is nothing to continue")
        self._submit(self.conversation.id, prompt=None, continue_from=last.id)

    def stop(self) -> bool:
        """Stop the answer of the open conversation, else the one being written elsewhere; whether there was one."""
        answering = self.answering or self.being_written
        if answering is None:
            return False
        self._jobs.stop(answering.job)
        return True

    def waiting_prompts(self, conversation_id: str | None) -> tuple[str, ...]:
        """Prompts of a conversation that wait for the answer before them."""
        return tuple(self._queued.get(conversation_id or "", ()))

    def ask_cost(self, tell: Callable[[PromptCost], None], system: str | None = None) -> None:
        """Ask what reading the open conversation again would cost; with another system prompt, if one is given."""
        self.questions.cost(
            self.conversation_id, tell, template=self.template, policy=self.generation.context_policy, system=system
        )

    # What the engine thread reports

    def job_event(self, report: JobEvent) -> Answering | None:
        """Keep what a job has produced; the answer it belongs to, or `None` when it was forgotten."""
        if isinstance(report.event, TitleMade):
            self._title_made(report.job.conversation_id)
            return None
        answering = self._answering.get(report.job.conversation_id)
        if answering is None or answering.job is not report.job:
            return None
        match report.event:
            case turn.AnswerStarted(message=message):
                answering.begin(message)
                self._show(answering, message)
            case turn.AnswerClosed(message=message, kept=True, error=error):
                if error is not None:
                    self.unkept.add(message)
                answering.end(message)
                self._show(answering, message)
            case turn.AnswerClosed():
                if answering.conversation_id == self.conversation_id:
                    self.reload()
            case turn.TextDelta(text=text):
                answering.add(text)
        return answering

    def job_ended(self, report: JobEnded) -> Answering | None:
        """Forget a job, and send the next prompt that waited for it."""
        conversation_id = report.job.conversation_id
        answering = self._answering.get(conversation_id)
        if answering is None or answering.job is not report.job:
            return None
        del self._answering[conversation_id]
        unfinished = answering.message is None or answering.message.status == "streaming"
        if unfinished and conversation_id == self.conversation_id:
            self.reload()
        return answering

    def title_when_idle(self, conversation_id: str) -> None:
        """Have the model title a conversation that is called after its first line, unless there is anything to do."""
        if self._titles and not self.busy and conversation_id not in self._titled:
            self._jobs.submit(title_job(self.store, conversation_id, template=self.template))

    def _title_made(self, conversation_id: str) -> None:
        self._titled.add(conversation_id)
        if conversation_id == self.conversation_id:
            self.reload()

    def send_next_queued(self, conversation_id: str) -> Message | None:
        """Put the next waiting prompt of a conversation on disk and have it answered.

        Raises:
            StoreError: it could not be written; it goes on waiting.
        """
        waiting = self._queued.get(conversation_id)
        if not waiting or conversation_id in self._answering:
            return None
        self.unkept.save()
        message = self.store.add_message(conversation_id, "user", waiting[0])
        waiting.pop(0)
        if conversation_id == self.conversation_id:
            self.reload()
        self._submit(conversation_id, prompt=message)
        return message

    def take_back(self, answering: Answering) -> bool:
        """Let the branch end before a prompt that came to no answer; whether that was possible.

        Its text then belongs back into the composer; the message itself stays in the tree.
        """
        if answering.prompt is None:
            return False
        if self.store.load(answering.conversation_id).tip_id != answering.prompt.id:
            return False
        self.store.set_tip(answering.conversation_id, answering.prompt.parent_id)
        if answering.conversation_id == self.conversation_id:
            self.reload()
        return True

    def _create(self) -> Conversation:
        if self._persona is not None:
            # Most starts have no persona.
            from exlchat.chat.personas.opening import begin_conversation

            return begin_conversation(self.store, self._persona, system=self._new_system)
        conversation = self.store.create_conversation()
        if self._new_system:
            self.store.add_message(conversation.id, "system", self._new_system)
        return self.store.load(conversation.id)

    def _require_quiet(self) -> None:
        if self.answering is not None:
            raise NotPossibleError("an answer is on its way; Esc stops it")

    def _submit(
        self,
        conversation_id: str,
        *,
        prompt: Message | None,
        retry_of: str | None = None,
        continue_from: str | None = None,
    ) -> None:
        job = turn_job(
            self.store,
            conversation_id,
            self.generation,
            template=self.template,
            retry_of=retry_of,
            continue_from=continue_from,
        )
        self._answering[conversation_id] = Answering(job, prompt, retry_of or continue_from)
        self._jobs.submit(job)

    def _show(self, answering: Answering, message: Message) -> None:
        """Bring the open branch up to date with an answer that has begun or ended, without reading all of it again."""
        if self.conversation is None or answering.conversation_id != self.conversation.id:
            return
        branch = self.conversation.branch
        last_id = branch[-1].id if branch else None
        if last_id == message.id:
            self.conversation = replace(self.conversation, branch=(*branch[:-1], message))
        elif last_id == message.parent_id:
            self.conversation = replace(self.conversation, branch=(*branch, message), tip_id=message.id)
        else:
            self.reload()
