"""The requests of one model, each as turns: a chunk of its prompt, or a token of each of its answers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import islice

from torch import Tensor

from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.kv.sizes import pages_of
from exlchat.engine.sampling import NotNumbersError
from exlchat.engine.schedule.answer_clock import AnswerClock
from exlchat.engine.schedule.batch import may_run_ahead
from exlchat.engine.schedule.generation import GenerationParts, GenerationState
from exlchat.engine.schedule.guidance import Guidance
from exlchat.engine.schedule.prompt_reader import PromptReader
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.sampling_plan import SamplingPlan, SamplingPlans
from exlchat.engine.schedule.scoring import score_features
from exlchat.engine.schedule.token_sources import TokenSource
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.events import (
    Event,
    Finished,
    FinishReason,
    OneOfSeveral,
    PlaceChances,
    PrefillProgress,
    Scored,
    TextDelta,
)
from exlchat.llm.info import ModelError
from exlchat.llm.port import Failed
from exlchat.llm.request import GenerationRequest, RequestError, ScoreRequest

_LONG_ANSWER = 4096  # tokens that there is room for, where nothing bounds an answer: few get so long

Told = Event | OneOfSeveral | Scored
Turns = Generator[None, None, None]
"""What a request has to do, in pieces that those of others may come between."""
Tell = Callable[[Told | Failed], None]


class Work:
    """A request on its way. Its `cancel` may be called from any thread.

    Args:
        tell: gets its events.
        pages: of the pool that it is expected to fill, and what nobody else may have meanwhile.
        windows: of these, how many have memory in layers with a window at the same time.
        rows: answers that it makes at once.
        ahead: whether the host has to know nothing before a draw.
        guided: whether it leans away from another prompt.
        apart: whether nothing else may be answered while it is.
    """

    def __init__(
        self,
        tell: Tell,
        *,
        pages: int,
        windows: int,
        rows: int = 1,
        ahead: bool = False,
        guided: bool = False,
        apart: bool = False,
    ) -> None:
        self.tell = tell
        self.pages, self.windows, self.rows = pages, windows, rows
        self.ahead, self.guided, self.apart = ahead, guided, apart
        self.turns: Turns = _nothing()
        self.reading = True
        """Whether the next turn is a chunk of its prompt."""
        self.states: list[GenerationState] = []
        """The answers that are being made."""
        self.cancelled = self.ended = False
        self._rests = False

    @property
    def rests(self) -> bool:
        """Whether it stands still because who reads it cannot keep up."""
        return self._rests and not self.cancelled

    def cancel(self) -> None:
        """It ends within one token or chunk."""
        self.cancelled = True

    def rest(self) -> None:
        self._rests = True

    def go_on(self) -> None:
        self._rests = False

    def leave_sources(self) -> None:
        """What was begun to be computed for it is not wanted now."""
        for state in self.states:
            state.leave_source()

    def close(self) -> None:
        self.turns.close()

    def has_room(self) -> bool:
        """For its next turn. One of several answers takes what there is, and ends there."""
        if self.reading or self.rows > 1:
            return True
        try:
            for state in self.states:
                state.reserve()
        except PoolFullError:
            return False
        return True


class WorkMaker:
    """Of one model.

    Args:
        open_source: gives the tokens of an answer behind those that it has.
        other_cache: makes a second cache, for guidance; called once, when guidance is first asked for.
    """

    def __init__(
        self,
        runner: Runner,
        cache: KVCache,
        tokenizer: Tokenizer,
        *,
        plans: SamplingPlans,
        reader: PromptReader,
        open_source: Callable[[GenerationState], TokenSource],
        other_cache: Callable[[], KVCache] | None,
    ) -> None:
        self._runner, self._cache, self._tokenizer = runner, cache, tokenizer
        self._plans = plans
        self.reader = reader
        """Prompts into the cache."""
        self._open_source = open_source
        self._other_cache = other_cache
        self._guides: KVCache | None = None

    def answer(self, request: GenerationRequest, plan: SamplingPlan, tell: Tell, *, apart: bool) -> Work:
        pages = self._pages(request)
        work = Work(
            tell,
            pages=pages,
            windows=self._cache.windows_of(pages),
            ahead=may_run_ahead(request),
            guided=bool(request.guidance_ids),
            apart=apart,
        )
        work.turns = self._answer(work, request, plan, tell)
        return work

    def several(self, request: GenerationRequest, plans: Sequence[SamplingPlan], tell: Tell) -> Work:
        """Several answers to one prompt, a token of each in a turn; one behind the other where there is no room."""
        alone, prompt, answers = self._pages(request), len(request.prompt_ids), len(plans)
        each = alone - prompt // PAGE_TOKENS
        pages = pages_of(prompt) + answers * each
        windows = self._cache.windows_of(pages_of(prompt), answers=answers, each=each)
        if request.guidance_ids or not self._cache.fits(pages, windows):
            work = Work(tell, pages=alone, windows=self._cache.windows_of(alone), apart=True)
            work.turns = self._one_by_one(work, request, plans, tell)
            return work
        work = Work(tell, pages=pages, windows=windows, rows=answers, ahead=may_run_ahead(request))
        work.turns = self._several(work, request, plans, tell)
        return work

    def score(self, request: ScoreRequest, tell: Tell) -> Work:
        pages = pages_of(len(request.ids))
        work = Work(tell, pages=pages, windows=self._cache.windows_of(pages))
        work.turns = self._score(work, request, tell)
        return work

    def _pages(self, request: GenerationRequest) -> int:
        """That a prompt and its answer fill: all that it may say or, where that is not bounded, a long answer."""
        most = _LONG_ANSWER if request.max_new_tokens is None else request.max_new_tokens
        return pages_of(min(len(request.prompt_ids) + most, self._cache.max_seq_len))

    def _answer(self, work: Work, request: GenerationRequest, plan: SamplingPlan, tell: Tell) -> Turns:
        one = _Wanted(request, plan, AnswerClock(request, plan.seed), KVSequence(self._cache))
        state = None
        try:
            work.reading = True
            logits = yield from self._read(work, one.sequence, [one], tell)
            if logits is None:
                tell(self._unanswered(work, one))
            else:
                state = self._state(work, one, logits)
                work.states = [state]
                for told in state.events():
                    if told is not None:
                        tell(told)
                    yield
                work.states = []
                tell(one.finished(state))
            yield
            if request.keep_pages:
                self.reader.keep(one.sequence)
        finally:
            work.states = []
            if state is not None:
                state.close()
            one.sequence.retire()

    def _one_by_one(self, work: Work, request: GenerationRequest, plans: Sequence[SamplingPlan], tell: Tell) -> Turns:
        for index, plan in enumerate(plans):

            def tell_one(told: Told | Failed, index: int = index) -> None:
                if isinstance(told, TextDelta | Finished):
                    tell(OneOfSeveral(index, told))
                elif index == 0:
                    tell(told)

            yield from self._answer(work, request, plan, tell_one)

    def _several(self, work: Work, request: GenerationRequest, plans: Sequence[SamplingPlan], tell: Tell) -> Turns:
        """Each in a sequence of its own beside the one that the prompt was read in."""
        sequence = KVSequence(self._cache)
        wanted = [_Wanted(request, plan, AnswerClock(request, plan.seed), KVSequence(self._cache)) for plan in plans]
        try:
            logits = yield from self._read(work, sequence, wanted, tell)
            if logits is None:
                for index, one in enumerate(wanted):
                    tell(OneOfSeveral(index, self._unanswered(work, one)))
                return
            for one in wanted:
                work.states.append(self._beside(work, one, logits))
            yield from self._side_by_side(work, wanted, tell)
        finally:
            for state in work.states:
                state.close()
            work.states = []
            for one in wanted:
                one.sequence.close()
            sequence.retire()

    def _beside(self, work: Work, one: _Wanted, logits: Tensor) -> GenerationState:
        prompt = list(one.request.prompt_ids)
        there = one.sequence.begin(prompt, owner=one.request.owner)
        if there < len(prompt):
            self._runner.last_logits(one.sequence, prompt[there:])
        return self._state(work, one, logits)

    def _side_by_side(self, work: Work, wanted: Sequence[_Wanted], tell: Tell) -> Turns:
        """A token of each in a turn, until all have ended."""
        going = {index: (state, state.events()) for index, state in enumerate(work.states)}
        while going:
            for index, (state, events) in list(going.items()):
                state.take_room()
                for told in islice(events, 1):
                    if told is not None:
                        tell(OneOfSeveral(index, told))
                    break
                else:
                    del going[index]
                    tell(OneOfSeveral(index, wanted[index].finished(state)))
                    if wanted[index].request.keep_pages:
                        self.reader.keep(wanted[index].sequence)
                    wanted[index].sequence.close()
            yield

    def _score(self, work: Work, request: ScoreRequest, tell: Tell) -> Turns:
        sequence = KVSequence(self._cache)
        ids, start = list(request.ids), request.start
        following: list[int | None] = [*ids[1:], None]
        try:
            cached = done = self.reader.begin(
                sequence, ids, start - 1, owner=request.owner, cancelled=lambda: work.cancelled
            )
            tell(PrefillProgress(done, len(ids), cached))
            yield
            places: list[PlaceChances] = []
            while done < len(ids):
                if work.cancelled:
                    return
                end = min(done + self.reader.chunk, len(ids))
                first = max(start - 1, done)
                places += self._scores(sequence, ids[done:end], first - done, following[first:end], request.top)
                done = end
                tell(PrefillProgress(done, len(ids), cached))
                yield
            tell(Scored(tuple(places)))
        finally:
            sequence.retire()

    def _scores(
        self, sequence: KVSequence, chunk: list[int], first: int, taken: list[int | None], top: int
    ) -> list[PlaceChances]:
        """Adds a chunk to a sequence; the chances of what is `taken` behind its tokens from `first` on."""
        transformer = self._runner.transformer

        def compute(inputs: Tensor, start: int) -> list[PlaceChances]:
            features = transformer.features(inputs, sequence, start=start)[first:]
            return list(score_features(features, transformer.logits, transformer.spec.vocab_size, taken, top))

        try:
            return self._runner.feed(sequence, chunk, compute)
        except NotNumbersError as error:
            raise ModelError(f"{error}; the weights are damaged or overflow in {transformer.dtype}") from error

    def _read(
        self, work: Work, sequence: KVSequence, wanted: Sequence[_Wanted], tell: Tell
    ) -> Generator[None, None, Tensor | None]:
        """Reads the prompt of one answer or several; float32 logits `[vocab]`, or `None` where none may begin."""
        first, logits = wanted[0], None
        for progress, chunk_logits in self.reader.read(sequence, first.request, lambda: work.cancelled):
            for one in wanted:
                one.clock.looked_up(progress.cached if one is first else progress.total)
            tell(progress)
            logits = chunk_logits
            # What begins to answer is counted as an answer before it is one.
            work.reading = progress.done < progress.total
            yield
        for one in wanted:
            one.clock.prefilled()
        if self._no_answer(work, first.request) is not None:
            return None
        if logits is not None:
            self.reader.note(*first.clock.computed())
        return logits

    def _state(self, work: Work, one: _Wanted, logits: Tensor) -> GenerationState:
        request, plan = one.request, one.plan
        plan.sampler.begin(request.prompt_ids)
        guidance = None
        if request.guidance_ids and request.sampling.guidance_scale != 1.0:
            guidance = Guidance(self._runner, self._guide_sequence(), request.guidance_ids, self.reader.chunk)
        parts = GenerationParts(
            request=request,
            runner=self._runner,
            sequence=one.sequence,
            tokenizer=self._tokenizer,
            sampler=plan.sampler,
            rules=plan.rules,
            clock=one.clock,
            stop_ids=self._plans.stop_ids(request),
            cancelled=lambda: work.cancelled,
            guidance=guidance,
            healing=plan.healing,
            several=work.rows > 1,
        )
        return GenerationState(parts, logits, self._open_source)

    def _guide_sequence(self) -> KVSequence:
        if self._guides is None:
            if self._other_cache is None:
                raise RequestError("guidance needs a second cache, which this engine was made without")
            self._guides = self._other_cache()
        return KVSequence(self._guides)

    def _no_answer(self, work: Work, request: GenerationRequest) -> FinishReason | None:
        """Why not even one token may come."""
        if work.cancelled:
            return "cancelled"
        if request.max_new_tokens == 0:
            return "max_new_tokens"
        return "context_full" if len(request.prompt_ids) >= self._cache.max_seq_len else None

    def _unanswered(self, work: Work, one: _Wanted) -> Finished:
        return Finished(self._no_answer(work, one.request) or "cancelled", one.clock.stats(), "", ())


@dataclass(frozen=True, slots=True)
class _Wanted:
    request: GenerationRequest
    plan: SamplingPlan
    clock: AnswerClock
    sequence: KVSequence

    def finished(self, state: GenerationState) -> Finished:
        ended, healed = state.reason or "cancelled", int(self.plan.healing is not None)
        return Finished(ended, self.clock.stats(), state.text, tuple(state.ids), tuple(state.chances), healed)


def _nothing() -> Turns:
    yield from ()
