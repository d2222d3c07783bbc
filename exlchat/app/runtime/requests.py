"""What the session gives the engine's threads: turns as jobs, and questions. No terminal library."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from exlchat import paths
from exlchat.app.runtime.jobs import EngineJob, Question
from exlchat.chat.turn_events import TitleMade
from exlchat.llm.port import Cancellation, HasCache, HoldsMemory
from exlchat.llm.request import GenerationRequest, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from exlchat.app.generation_settings import GenerationSettings
    from exlchat.app.guide.quoting import Quoting
    from exlchat.chat.answer_chances import AnswerChances
    from exlchat.chat.prompt.context_policy import ContextPolicy
    from exlchat.chat.prompt.cost import PromptCost
    from exlchat.chat.prompt.inspection import Inspected
    from exlchat.chat.store.conversations import ConversationStore
    from exlchat.chat.turn_events import SeveralEvent, Titling, TurnEvent
    from exlchat.chat.turn_plan import Beginning, TurnOptions
    from exlchat.llm.info import CacheReport, MemoryReport
    from exlchat.llm.port import Engine


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """What an engine says of itself, as far as it has a cache and memory here."""

    cache: CacheReport | None
    memory: MemoryReport | None


class JobQueue(Protocol):
    def submit(self, job: EngineJob) -> None:
        """Run `job` beside those that run."""

    def ask(self, question: Question) -> None:
        """Ask, behind what is being done to the conversation that it is about."""

    def stop(self, job: EngineJob) -> None: ...


def turn_job(
    store: ConversationStore,
    conversation_id: str,
    generation: GenerationSettings,
    *,
    template: str | None,
    settings: Mapping[str, Any] | None = None,
    retry_of: str | None = None,
    continue_from: str | None = None,
    beginning: Beginning | None = None,
    speaker: str | None = None,
    quoting: Quoting | None = None,
) -> EngineJob:
    """The job that answers a conversation; arguments as of `turn.answer` and its options.

    Args:
        quoting: what the bundled guide says, should it answer; it says what it learnt unless given.
    """

    def work(engine: Engine, cancellation: Cancellation) -> Iterator[TurnEvent]:
        # No start needs it, here and below.
        from exlchat.chat.turn import answer

        options = replace(_options(generation, template), settings=settings)
        if quoting is not None and beginning is None and speaker is None:
            speech = quoting.held(
                store,
                engine,
                conversation_id,
                options.speech,
                earlier=retry_of or continue_from,
                goes_on=continue_from is not None,
            )
            options = replace(options, speech=speech)
        return answer(
            store,
            engine,
            conversation_id,
            options,
            retry_of=retry_of,
            continue_from=continue_from,
            beginning=beginning,
            speaker=speaker,
            only_another=retry_of is not None,
            cancellation=cancellation,
        )

    return EngineJob(conversation_id, work, kept=store.is_kept)


def several_job(
    store: ConversationStore,
    conversation_id: str,
    generation: GenerationSettings,
    *,
    template: str | None,
    seeds: Sequence[int | None],
    retry_of: str | None,
) -> EngineJob:
    """The job that answers a conversation several times over; arguments as of `several_answers`."""

    def work(engine: Engine, cancellation: Cancellation) -> Iterator[SeveralEvent]:
        from exlchat.chat.several_answers import several_answers

        options = _options(generation, template)
        return several_answers(
            store, engine, conversation_id, options, seeds=seeds, retry_of=retry_of, cancellation=cancellation
        )

    return EngineJob(conversation_id, work, kept=store.is_kept)


def _options(generation: GenerationSettings, template: str | None) -> TurnOptions:
    from exlchat.chat.turn_plan import TurnOptions

    return TurnOptions(
        template=template,
        sampling=generation.sampling,
        seed=generation.seed,
        max_new_tokens=generation.max_tokens,
        context_policy=generation.context_policy,
        speech=generation.speech,
    )


def title_job(store: ConversationStore, conversation_id: str, *, template: str | None) -> EngineJob:
    """The job that has the model title a conversation, beside whatever is answered meanwhile."""

    def work(engine: Engine, cancellation: Cancellation) -> Iterator[Titling | TitleMade]:
        if Path(engine.info.path) == paths.bundled_model():
            # It is small and knows this program only.
            return iter((TitleMade(None),))
        from exlchat.chat.titling import make_title

        return make_title(store, engine, conversation_id, template=template, cancellation=cancellation)

    return EngineJob(conversation_id, work, idle=True, kept=store.is_kept)


@dataclass(slots=True)
class Computing:
    """A long question on its way. Its thread writes `done` and `total`, who asked may cancel."""

    cancellation: Cancellation
    done: int = 0
    total: int = 0


class Questions:
    """What is asked of the engine; `answered` is to be told of each answer, also of one that is an error."""

    def __init__(self, store: ConversationStore, jobs: JobQueue) -> None:
        self._store = store
        self._jobs = jobs
        self._about_cache: Question | None = None
        self._about_figures: Question | None = None
        self.figures: EngineFigures | None = None
        """What an engine said of itself last."""

    def cost(
        self,
        conversation_id: str | None,
        tell: Callable[[PromptCost], None],
        *,
        template: str | None,
        policy: ContextPolicy,
        system: str | None = None,
        thinking: bool | None = None,
    ) -> None:
        """Ask what reading a conversation would cost when its present answer has ended; arguments of `prompt_cost`.

        `None` is a conversation that nobody has written in.
        """

        def ask(engine: Engine) -> PromptCost:
            from exlchat.chat.prompt.cost import prompt_cost

            branch = self._store.load(conversation_id).branch if conversation_id is not None else ()
            return prompt_cost(engine, branch, template=template, system=system, policy=policy, thinking=thinking)

        self._jobs.ask(Question(ask, tell, kept=self._store.is_kept, conversation_id=conversation_id))

    def prompt(
        self,
        conversation_id: str,
        tell: Callable[[Inspected], None],
        *,
        template: str | None,
        policy: ContextPolicy,
        thinking: bool | None = None,
    ) -> None:
        def ask(engine: Engine) -> Inspected:
            from exlchat.chat.prompt.inspection import inspected

            branch = self._store.load(conversation_id).branch
            return inspected(engine, branch, template=template, policy=policy, thinking=thinking)

        self._jobs.ask(Question(ask, tell, kept=self._store.is_kept, conversation_id=conversation_id))

    def chances(
        self,
        conversation_id: str,
        message_id: str,
        tell: Callable[[AnswerChances | None], None],
        fail: Callable[[str], None] | None = None,
        *,
        template: str | None,
        policy: ContextPolicy,
    ) -> Computing:
        """Ask how likely each token of an answer is; arguments of `answer_chances`. `None` is told if it was given up.

        It is given up within a chunk of its tokens.
        """
        computing = Computing(Cancellation())

        def ask(engine: Engine) -> AnswerChances | None:
            from exlchat.chat.answer_chances import AnswerChances, answer_chances

            for event in answer_chances(
                self._store, engine, message_id, template=template, policy=policy, cancellation=computing.cancellation
            ):
                if isinstance(event, AnswerChances):
                    return event
                computing.done, computing.total = event.done, event.total
            return None

        kept = self._store.is_kept
        self._jobs.ask(Question(ask, tell, fail, kept, computing.cancellation, conversation_id))
        return computing

    def check(self, generation: GenerationSettings, refuse: Callable[[str], None]) -> None:
        """Have the model say whether answers can be drawn so, and be so; `refuse` is told in one line if not.

        Where no model is there, nothing is said: whoever answers then says it.
        """

        def ask(engine: Engine) -> str:
            try:
                engine.check(GenerationRequest((), generation.sampling, constraint=generation.speech.constraint))
            except RequestError as error:
                return str(error)
            return ""

        def told(line: str) -> None:
            if line:
                refuse(line)

        self._jobs.ask(Question(ask, told, lambda _: None, self._store.is_kept))

    def cache(self, tell: Callable[[CacheReport], None]) -> None:
        """Ask about the pages of the cache, if that is not asked already."""
        if self._about_cache is None:
            self._about_cache = Question(_cache_report, tell)
            self._jobs.ask(self._about_cache)

    def ask_figures(self) -> None:
        """Ask about memory and the pages of the cache, if that is not asked already; `figures` has it then."""
        if self._about_figures is not None:
            return

        def ask(engine: Engine) -> EngineFigures:
            cache = engine.cache_report() if isinstance(engine, HasCache) else None
            memory = engine.memory_report() if isinstance(engine, HoldsMemory) else None
            return EngineFigures(cache, memory)

        def keep(figures: EngineFigures) -> None:
            self.figures = figures

        self._about_figures = Question(ask, keep)
        self._jobs.ask(self._about_figures)

    def answered(self, question: Question) -> None:
        """It can be asked again."""
        if question is self._about_cache:
            self._about_cache = None
        elif question is self._about_figures:
            self._about_figures = None


def _cache_report(engine: Engine) -> CacheReport:
    if not isinstance(engine, HasCache):
        raise RequestError("this model says nothing of a cache")
    return engine.cache_report()
