"""The chat as the user runs it: the open conversation, answers on their way, prompts that wait. No terminal library.

Every method belongs to one thread, the one that owns the screen; the engine's threads only ever see jobs.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat.answering import can_go_on
from exlchat.app.chat.list_history import ListChange, ListHistory
from exlchat.app.chat.open_conversation import OpenConversation
from exlchat.app.chat.own_settings import spoken_to
from exlchat.app.chat.under_way import UnderWay
from exlchat.app.generation_settings import NAMES
from exlchat.app.lacking import refused, why_not
from exlchat.app.runtime.jobs import JobEnded, JobEvent
from exlchat.app.runtime.requests import Questions, several_job, title_job, turn_job
from exlchat.chat.speaking import choose_line
from exlchat.chat.store.conversations import StoreError
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, OneAnswer, TitleMade
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.app.chat.open_conversation import Defaults
    from exlchat.app.chat.own_settings import OwnSettings, Spoken
    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.guide.quoting import Quoting
    from exlchat.app.runtime.requests import JobQueue
    from exlchat.chat.model import Conversation, Message
    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.chat.prompt.cost import PromptCost
    from exlchat.chat.store.conversations import ConversationStore
    from exlchat.chat.turn_plan import Beginning


_ASKED = ("constraint", "logit_bias", "banned_tokens", "dry_breakers")
"""What can be said that not every model can do."""
_TITLE_CELLS = 60


class NotPossibleError(Exception):
    """What was asked cannot be done now; one line that says why."""


class ChatSession(OpenConversation):
    """What can be done with conversations, whichever way it is asked for.

    A prompt for a conversation that is being answered waits (`waiting_prompts`) and is written to disk when its turn
    comes, because only then is it known which message it follows. All others are on disk before `send` returns.
    """

    def __init__(
        self,
        store: ConversationStore,
        jobs: JobQueue,
        *,
        defaults: Defaults,
        persona: FrozenPersona | None = None,
        titles: bool = False,
        quoting: Quoting | None = None,
    ) -> None:
        super().__init__(store, defaults=defaults, persona=persona)
        self._quoting = quoting
        self.questions = Questions(store, jobs)
        self._jobs = jobs
        self._under_way = UnderWay(jobs)
        self.list_history = ListHistory()
        """What was done to the list of conversations."""
        self.titles = titles
        self.on_refused: Callable[[str], None] = lambda _: None
        """Is told why the model cannot answer as was asked, when it has seen that, in one line."""
        self._problems_told: set[tuple[str, str]] = set()
        self._titled: set[str] = set()
        """Conversations about whose title a model has had its say."""
        self._being_titled: set[str] = set()

    # What is on its way

    @property
    def answering(self) -> PendingAnswer | None:
        """The answer on its way in the open conversation."""
        return self._under_way.of(self.conversation_id)

    @property
    def being_written(self) -> PendingAnswer | None:
        """An answer that grows right now: that of the open conversation, else of any."""
        written = self._under_way.written
        return next((one for one in written if one.conversation_id == self.conversation_id), next(iter(written), None))

    @property
    def being_answered(self) -> frozenset[str]:
        """The conversations in which an answer grows."""
        return frozenset(one.conversation_id for one in self._under_way.written)

    @property
    def busy(self) -> bool:
        """Whether an answer is written or waits, in whichever conversation."""
        return bool(self._under_way)

    def open(self, conversation_id: str) -> Conversation:
        conversation = super().open(conversation_id)
        if (problem := self.spoken.problem) and (conversation_id, problem) not in self._problems_told:
            self._problems_told.add((conversation_id, problem))
            self.on_refused(problem)
        return conversation

    # Deleting

    def delete_all(self, conversation_ids: Sequence[str]) -> tuple[list[str], str]:
        """Take conversations off the list; what is being answered in them is stopped. All are brought back together.

        Returns:
            The titles of those that are gone, and in one line why others are not; empty if all are.
        """
        gone: dict[str, str] = {}
        problem = ""
        for ident in conversation_ids:
            try:
                title = self.store.load(ident).title
                self.store.delete(ident)
            except StoreError as error:
                problem = str(error)
                continue
            gone[ident] = title
            self._under_way.drop(ident)
        if gone:
            back = [partial(self.store.undo_delete, ident) for ident in gone]
            (*_, last) = gone
            alone = f"“{one_line(gone[last], _TITLE_CELLS)}” is back"
            told = alone if len(gone) == 1 else f"{len(gone)} conversations are back"
            self.list_history.add(ListChange(back, told, opens=last))
        if self.conversation_id in gone:
            self.start_new()
        return list(gone.values()), problem

    # How answers are wanted

    def draw_by(self, generation: GenerationSettings) -> None:
        """As of `OpenConversation`; the model is asked as well, and what it cannot do is taken back when it says so."""
        before = self.spoken
        super().draw_by(generation)
        self._ask_whether_possible(before)

    def _ask_whether_possible(self, before: Spoken) -> None:
        ident, generation = self.conversation_id, self.generation
        asked = [name for name in NAMES if generation.value(name) != before.generation.value(name)]
        if not any(name in _ASKED for name in asked):
            return

        def take_back(line: str) -> None:
            self.on_refused(line)
            if ident != self.conversation_id:
                # It is another one that is open by now; its next answer says the same.
                return
            own = self.spoken.own
            for name in asked:
                if self.generation.value(name) != generation.value(name):
                    continue
                own = own.without([name])
                if name in before.own.values or self.spoken.held.source(name) == "persona":
                    own = own.saying({name: before.generation.value(name)}, before.own.presets)
            self._say(own, asked)

        self.questions.check(generation, take_back)

    # Saying something

    def send(self, text: str, *, generation: GenerationSettings | None = None) -> Message | None:
        """Put a prompt on disk and have it answered; `None` when it waits for the present answer.

        `generation` is how this answer is drawn, where none is on its way; `None` takes what holds.

        Raises:
            StoreError: it could not be written; nothing was sent.
        """
        if self.conversation is not None and self.answering is not None:
            self._under_way.queue(self.conversation.id, text)
            return None
        self.unkept.save()
        if self.conversation is None:
            self._create()
        ident = self.require_open()
        settings = None if self.draft_id is not None else self._begun_with()
        message = self.store.add_message(ident, "user", text, settings=settings)
        self.reload()
        self._submit(ident, prompt=message, generation=generation)
        return message

    def set_system(self, text: str) -> None:
        """Change who is speaking, from here on; recorded in the tree of the conversation.

        Raises:
            NotPossibleError: an answer is on its way.
        """
        if self.answering is not None:
            raise NotPossibleError("the system prompt can be changed when the answer has ended; Esc or ctrl+c stops it")
        if self.conversation is None:
            self._new_system, self._new_persona = text, None
        else:
            # What it says to a group is said to all of them.
            group = self.spoken.group
            persona = None if group is None else group.as_json()
            self.store.add_message(self.conversation.id, "system", text, persona=persona, change="system prompt")
            self.reload()
            self.list_history.is_newest = False

    def let_speak(self, persona: FrozenPersona) -> None:
        """Have a persona speak in the open conversation, with its format and its way of answering, from here on.

        It is recorded in the tree, where an undo takes it back.

        Raises:
            NotPossibleError: an answer is on its way.
            ValueError: it cannot answer as it wishes to beside what was said before, in one line.
            StoreError: it could not be written.
        """
        self.require_quiet()
        before = self.spoken
        decided = {**persona.sampling.decided(), **({"template": persona.template} if persona.template else {})}
        # What it wishes for stands over what was said before, but not over what is said from here on.
        own = before.own.without(decided)
        overruled = self._overruled_in(self.conversation) | decided.keys()
        # Before anything is written: its way of answering may not go with what holds.
        spoken = spoken_to(self.defaults.held, self.defaults.model, own, persona, overruled)
        wishes = {"template": persona.template or None, "think": persona.thinking}
        reasons = [why_not(self.lacks, name) for name, wish in wishes.items() if wish is not None]
        if reason := next(filter(None, reasons), "") or refused(self.lacks, spoken.generation, self.generation):
            raise ValueError(reason)
        if self.conversation is not None and self.draft_id is None:
            # Nobody has said anything: whoever speaks now begins it.
            self.conversation, self.places = None, {}
        if self.conversation is not None:
            self.store.add_message(
                self.conversation.id,
                "system",
                persona.system_text,
                persona=persona.as_json(),
                settings=None if own == before.own else own.as_json(),
                change="persona",
            )
            self.reload()
            self.list_history.is_newest = False
        else:
            self._new_persona, self._new_system, self._new_own = persona, persona.system_text, own
        self._overrule(decided)
        if self.conversation is None and persona.greetings:
            self._create()
        self._ask_whether_possible(before)

    def retry(self) -> None:
        """Have the last prompt answered again, beside the answer that is there.

        Raises:
            NotPossibleError: there is nothing to answer, or an answer is on its way.
            StoreError: the old answer cannot be written.
        """
        last = self.last_said
        self.require_quiet()
        self.unkept.save()
        if self.conversation is None or last is None:
            raise NotPossibleError("there is nothing to answer yet")
        if last.role == "user":
            self._require_speaker()
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
        self.require_quiet()
        self.unkept.save()
        if last is not None and self._is_full(last):
            raise NotPossibleError("the context is full; /set context_policy drop lets go of the oldest messages")
        if self.conversation is None or last is None or not self.can_continue:
            raise NotPossibleError("the last answer was not cut; there is nothing to continue")
        self._submit(self.conversation.id, prompt=None, continue_from=last.id)

    @property
    def can_continue(self) -> bool:
        """Whether the last answer was cut, and there is a message that it answers and room to go on."""
        last = self.last_said
        return last is not None and can_go_on(self.branch, last) and not self._is_full(last)

    def _is_full(self, message: Message) -> bool:
        """Whether the context ended an answer, and nothing may be left out to make room."""
        ended_by = message.record.finish_reason if message.record is not None else None
        return ended_by == "context_full" and self.generation.context_policy == "stop"

    def stop(self) -> bool:
        """Stop the answer of the open conversation, else the one being written elsewhere; whether there was one."""
        return self._under_way.stop(self.answering or self.being_written)

    def stop_in(self, conversation_id: str) -> bool:
        """Stop the answer of a conversation; whether there was one."""
        return self._under_way.stop(self._under_way.of(conversation_id))

    def waiting_prompts(self, conversation_id: str | None) -> tuple[str, ...]:
        return self._under_way.waiting(conversation_id)

    def ask_cost(self, tell: Callable[[PromptCost], None], system: str | None = None) -> None:
        """Ask what reading the open conversation again would cost; with another system prompt, if one is given."""
        self.questions.cost(
            self.conversation_id,
            tell,
            template=self.template,
            policy=self.generation.context_policy,
            system=system,
            thinking=self.generation.speech.think,
        )

    # What the engine's jobs report

    def job_event(self, report: JobEvent) -> PendingAnswer | None:
        """Keep what a job has produced; the answer it belongs to, or `None` when it was forgotten."""
        if isinstance(report.event, TitleMade):
            self._title_made(report.job.conversation_id)
            return None
        answering = self._under_way.take(report)
        if answering is None:
            return None
        match report.event:
            case AnswerStarted(message=message):
                self._show(answering, message)
            case AnswerClosed(message=message, kept=True, error=error):
                if error is not None:
                    self.unkept.add(message)
                self._show(answering, message)
            case AnswerClosed():
                if answering.conversation_id == self.conversation_id:
                    self.reload()
            case OneAnswer(event=AnswerClosed(message=message, kept=True, error=str())):
                self.unkept.add(message)
        return answering

    def job_ended(self, report: JobEnded) -> PendingAnswer | None:
        """Forget a job; the answer it belonged to, or `None` when that was forgotten."""
        if report.job.idle:
            self._being_titled.discard(report.job.conversation_id)
        answering = self._under_way.end(report)
        if answering is None:
            return None
        if answering.back_to is not None:
            self.store.set_tip(answering.conversation_id, answering.back_to)
        unfinished = answering.message is None or answering.message.status == "streaming"
        if unfinished and answering.conversation_id == self.conversation_id:
            self.reload()
        return answering

    def have_titled(self, conversation_id: str) -> None:
        """Have the model title a conversation that is called after its first line."""
        if self.titles and conversation_id not in self._titled | self._being_titled:
            self._being_titled.add(conversation_id)
            template = self._spoken_there(conversation_id).template
            self._jobs.submit(title_job(self.store, conversation_id, template=template))

    def _title_made(self, conversation_id: str) -> None:
        self._titled.add(conversation_id)
        if conversation_id == self.conversation_id:
            self.reload()

    def send_next_queued(self, conversation_id: str) -> Message | None:
        """Put the next waiting prompt of a conversation on disk and have it answered.

        Raises:
            StoreError: it could not be written; it goes on waiting.
        """
        waiting = self._under_way.waiting(conversation_id)
        if not waiting or self._under_way.of(conversation_id) is not None:
            return None
        self.unkept.save()
        message = self.store.add_message(conversation_id, "user", waiting[0])
        self._under_way.sent(conversation_id)
        if conversation_id == self.conversation_id:
            self.reload()
        self._submit(conversation_id, prompt=message)
        return message

    def take_back(self, answering: PendingAnswer) -> bool:
        """Let the branch end before a prompt that came to no answer; whether that was possible.

        Its text then belongs back into the composer; it is no alternative of what is said next.
        """
        if answering.prompt is None:
            return False
        if not self.store.withdraw(answering.prompt.id):
            return False
        if answering.conversation_id == self.conversation_id:
            self.reload()
        return True

    def require_quiet(self) -> None:
        """Refuse what cannot be done while the open conversation is being answered.

        Raises:
            NotPossibleError: it is.
        """
        if self.answering is not None:
            raise NotPossibleError("an answer is on its way; Esc or ctrl+c stops it")

    def require_open(self) -> str:
        """The id of the open conversation.

        Raises:
            NotPossibleError: it is new.
        """
        if self.conversation is None:
            raise NotPossibleError("this conversation is new; write in it first")
        return self.conversation.id

    def answer_tip(self, *, retry_of: str | None = None, own: OwnSettings | None = None) -> None:
        """Have the last message of the open branch answered, or an answer given again beside itself.

        `own` is what held before the branch was moved to that message, and goes on holding.
        """
        self._submit(self.require_open(), prompt=None, retry_of=retry_of, own=own)

    def have_speak(self, conversation_id: str, names: Sequence[str]) -> None:
        """Have these of a group answer what was said last, one after the other, as long as nobody stops them.

        Raises:
            StoreError: the conversation cannot be read.
        """
        self._submit(conversation_id, prompt=None, speaker=names[0])
        answering = self._under_way.of(conversation_id)
        if answering is not None:
            answering.then = names[1:]

    def go_round(self, ended: PendingAnswer) -> bool:
        """Have the next of a group speak behind an answer that came to its end; whether there is one."""
        if not ended.then or ended.message is None or ended.message.status != "complete":
            return False
        try:
            self.have_speak(ended.conversation_id, ended.then)
        except StoreError as error:
            self.on_refused(str(error))
            return False
        return True

    def answer_several(self, seeds: Sequence[int | None], *, retry_of: str | None) -> PendingAnswer:
        """Have the last message of the open branch answered several times over, or an answer given again so.

        Args:
            seeds: of each answer.
            retry_of: the id of the answer that they stand beside.

        Returns:
            What stands for all of them while they grow.

        Raises:
            NotPossibleError: an answer is on its way, or the conversation is new.
            StoreError: the old answer cannot be written.
        """
        self.require_quiet()
        conversation_id = self.require_open()
        if retry_of is None:
            self._require_speaker()
        self.unkept.save()
        job = several_job(
            self.store, conversation_id, self.generation, template=self.template, seeds=seeds, retry_of=retry_of
        )
        return self._under_way.begin(job, prompt=None, replaces=retry_of, for_several=True)

    def take_token(self, message_id: str, beginning: Beginning) -> None:
        """Have an answer go on from another token, beside itself.

        Raises:
            NotPossibleError: an answer is on its way.
            StoreError: the old answer cannot be written.
        """
        self.require_quiet()
        self.unkept.save()
        self.list_history.is_newest = False
        self._submit(self.require_open(), prompt=None, continue_from=message_id, beginning=beginning)

    def under_way_in(self, conversation_id: str) -> PendingAnswer | None:
        return self._under_way.of(conversation_id)

    def _submit(
        self,
        conversation_id: str,
        *,
        prompt: Message | None,
        retry_of: str | None = None,
        continue_from: str | None = None,
        beginning: Beginning | None = None,
        speaker: str | None = None,
        generation: GenerationSettings | None = None,
        own: OwnSettings | None = None,
    ) -> None:
        spoken = self._spoken_there(conversation_id)
        if spoken.chosen and speaker is None and retry_of is None and continue_from is None:
            self.on_refused(_choose(spoken))
            return
        settings = None
        if own is not None and own != spoken.own:
            overruled = self._overruled_in(self.conversation)
            spoken = spoken_to(self.defaults.held, self.defaults.model, own, spoken.persona, overruled)
            settings = own.as_json()
        job = turn_job(
            self.store,
            conversation_id,
            generation or spoken.generation,
            template=spoken.template,
            settings=settings,
            retry_of=retry_of,
            continue_from=continue_from,
            beginning=beginning,
            speaker=speaker,
            quoting=self._quoting,
        )
        self._under_way.begin(job, prompt=prompt, replaces=retry_of or continue_from)

    def _require_speaker(self) -> None:
        """Refuse to answer where the user chooses who does.

        Raises:
            NotPossibleError: so it is.
        """
        if self.spoken.chosen:
            raise NotPossibleError(_choose(self.spoken))

    def _spoken_there(self, conversation_id: str) -> Spoken:
        """How a conversation is spoken to, whether it is the open one or not."""
        here = conversation_id == self.conversation_id
        return self.spoken if here else self._spoken_in(self.store.load(conversation_id))

    def _show(self, answering: PendingAnswer, message: Message) -> None:
        """Bring the open branch up to date with an answer that has begun or ended, without reading all of it again."""
        if self.conversation is None or answering.conversation_id != self.conversation.id:
            return
        branch = self.conversation.branch
        last_id = branch[-1].id if branch else None
        if last_id == message.id:
            self.conversation = replace(self.conversation, branch=(*branch[:-1], message))
        elif last_id == message.parent_id:
            self.conversation = replace(self.conversation, branch=(*branch, message), tip_id=message.id)
            self.places = self.store.places(self.conversation.id)
        else:
            self.reload()


def _choose(spoken: Spoken) -> str:
    return choose_line(() if spoken.group is None else spoken.group.names)
