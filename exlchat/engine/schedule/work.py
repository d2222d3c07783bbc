"""The requests of one model, each as turns: a chunk of its prompt, or a token of its answer.

Between two turns a request may be paused: its pages go back to the pool, and its next turns read again what has been
evicted meanwhile. What was drawn stays, and so do the draws that follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count

from torch import Tensor

from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling import NotNumbersError
from exlchat.engine.schedule.answer_clock import AnswerClock
from exlchat.engine.schedule.device_time import ForHost
from exlchat.engine.schedule.generation import GenerationParts, GenerationState
from exlchat.engine.schedule.guidance import Guidance
from exlchat.engine.schedule.host_draws import drawn_on_device, may_run_ahead
from exlchat.engine.schedule.prompt_reader import PromptReader
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.sampling_plan import SamplingPlan, SamplingPlans
from exlchat.engine.schedule.scoring import score_features
from exlchat.engine.schedule.token_sources import TokenSource
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.events import Event, Finished, FinishReason, PlaceChances, PrefillProgress, Scored
from exlchat.llm.info import ModelError
from exlchat.llm.port import Failed
from exlchat.llm.request import GenerationRequest, Rank, RequestError, ScoreRequest

_PATIENT_SECONDS = 60.0
"""Who waits so long for others goes with the next rank, but never before who is in front of the screen."""

Turns = Generator[None, None, None]
"""What a request has to do, in pieces that those of others may come between."""
Tell = Callable[[Event | Scored | Failed], None]
_arrivals = count()


class Work:
    """A request on its way. Its `cancel`, `rest` and `go_on` may be called from any thread.

    Args:
        tell: gets its events.
        sequence: empty; it is computed in there.
        rank: who goes first.
        ahead: whether the host has to know nothing before a draw.
        on_device: whether the device can draw its tokens beside others.
        guided: whether it leans away from another prompt.
    """

    def __init__(
        self,
        tell: Tell,
        sequence: KVSequence,
        rank: Rank,
        *,
        ahead: bool = False,
        on_device: bool = False,
        guided: bool = False,
    ) -> None:
        self.tell, self.sequence, self.rank = tell, sequence, rank
        self.ahead, self.on_device, self.guided = ahead, on_device, guided
        self.turns: Turns = _nothing()
        self.reading = True
        """Whether the next turn is a chunk of its prompt."""
        self.begun = False
        """Whether its sequence holds what was known of it."""
        self.waits = False
        """Whether its prompt is read, and its first token waits for what the device makes of it."""
        self.ids: list[int] = []
        """What it sees when it goes on."""
        self.computed = 0
        """Tokens of prompts that were computed for it."""
        self.behind: Work | None = None
        """Who reads what it begins with."""
        self.state: GenerationState | None = None
        """The answer that is being made."""
        self.cancelled = self.ended = False
        self._rests = False
        self.arrival = next(_arrivals)
        self._waits_since = time.monotonic()

    @property
    def rests(self) -> bool:
        """Whether it stands still because who reads it cannot keep up."""
        return self._rests and not self.cancelled

    @property
    def may_be_paused(self) -> bool:
        """Where another cache holds what it has come to, it may not; nor before its first token.

        One that is cancelled ends as soon.
        """
        here = self.reading or self.state is not None
        return here and not (self.guided or self.cancelled)

    def urgency(self) -> tuple[int, int]:
        """Of several that wait the least is the next."""
        waited = int((time.monotonic() - self._waits_since) // _PATIENT_SECONDS)
        return max(self.rank - waited, min(self.rank, Rank.API)), self.arrival

    def cancel(self) -> None:
        """It ends within one token or chunk."""
        self.cancelled = True

    def rest(self) -> None:
        self._rests = True

    def go_on(self) -> None:
        self._rests = False

    def note_pass(self, rows: int, *, exact: bool) -> None:
        """A token of it was made beside those of others."""
        if self.state is not None:
            self.state.parts.clock.beside(rows, exact=exact)

    def leave_source(self) -> None:
        """What was begun to be computed for it is not asked for now."""
        if self.state is not None:
            self.state.leave_source()

    def pause(self) -> None:
        """It gives its pages back; its next turn begins with finding, or reading, what it had."""
        self.leave_source()
        if self.state is not None:
            self.ids = self.state.context
        self.sequence.close()
        self.reading, self.begun = True, False
        self._waits_since = time.monotonic()

    def close(self) -> None:
        self.turns.close()

    def has_room(self, chunk: int) -> bool:
        """For its next turn, which reads so many tokens at most."""
        if self.cancelled:
            return True
        try:
            if self.reading and self.begun:
                self.sequence.reserve(min(len(self.sequence) + chunk, len(self.ids)))
            elif not self.reading and self.state is not None:
                self.state.reserve()
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

    def answer(self, request: GenerationRequest, plan: SamplingPlan, tell: Tell) -> Work:
        work = Work(
            tell,
            KVSequence(self._cache),
            request.rank,
            ahead=may_run_ahead(request),
            on_device=drawn_on_device(request),
            guided=bool(request.guidance_ids),
        )
        work.ids = list(request.prompt_ids)
        work.turns = self._answer(work, request, plan)
        return work

    def score(self, request: ScoreRequest, tell: Tell) -> Work:
        work = Work(tell, KVSequence(self._cache), request.rank)
        work.ids = list(request.ids)
        work.turns = self._score(work, request)
        return work

    def _answer(self, work: Work, request: GenerationRequest, plan: SamplingPlan) -> Turns:
        one = _Wanted(request, plan, AnswerClock(request, plan.seed))
        state = None
        try:
            logits = yield from self._read(work, one)
            if logits is None:
                work.tell(Finished(self._no_answer(work, request) or "cancelled", one.clock.stats(), "", ()))
            else:
                work.state = state = self._state(work, one, logits)
                for told in state.events():
                    if told is not None:
                        work.tell(told)
                    yield
                    while work.reading and not work.cancelled:
                        yield from self._read_again(work, state)
                        # Whether there is room for what comes now is asked before a turn.
                        yield
                    if work.reading:
                        # Cancelled while it stood still: what it would go on from is not there.
                        if (last := state.give_up()) is not None:
                            work.tell(last)
                        break
                work.state = None
                work.tell(one.finished(state))
            yield
            if request.keep_pages:
                self.reader.keep(work.sequence)
        finally:
            work.state = None
            if state is not None:
                state.close()
            work.sequence.retire()

    def _score(self, work: Work, request: ScoreRequest) -> Turns:
        sequence = work.sequence
        ids, start = list(request.ids), request.start
        following: list[int | None] = [*ids[1:], None]
        places: list[PlaceChances] = []
        done = -1
        try:
            while done < len(ids):
                if work.cancelled:
                    return
                if done < 0:
                    cached = done = self.reader.begin(
                        sequence, ids, start - 1, owner=request.owner, cancelled=lambda: work.cancelled
                    )
                    work.begun = True
                elif len(sequence) < done:
                    yield from self._find(work, ids[:done], request.owner)
                    yield
                    continue
                else:
                    end = min(done + self.reader.slice, len(ids))
                    first = max(start - 1, done)
                    places += self._scores(sequence, ids[done:end], first - done, following[first:end], request.top)
                    work.computed += end - done
                    done = end
                work.tell(PrefillProgress(done, len(ids), cached))
                yield
            work.tell(Scored(tuple(places)))
        finally:
            sequence.retire()

    def _scores(
        self, sequence: KVSequence, chunk: list[int], first: int, taken: list[int | None], top: int
    ) -> list[PlaceChances]:
        """Adds a chunk to a sequence; the chances of what is `taken` behind its tokens from `first` on."""
        transformer = self._runner.transformer

        def compute(inputs: Tensor, start: int) -> list[PlaceChances]:
            features = transformer.features(inputs, sequence, start=start)[first:]
            found = list(score_features(features, transformer.logits, transformer.spec.vocab_size, taken, top))
            return self._runner.checked(found)

        try:
            return self._runner.feed(sequence, chunk, compute)
        except NotNumbersError as error:
            raise ModelError(f"{error}; the weights are damaged or overflow in {transformer.dtype}") from error

    def _read(self, work: Work, one: _Wanted) -> Generator[None, None, Tensor | None]:
        """Reads the prompt of an answer; float32 logits `[vocab]` on the host, or `None` where no answer may begin."""
        logits: ForHost | None = None
        done = -1
        for progress, chunk_logits in self.reader.read(work.sequence, one.request, lambda: work.cancelled):
            one.clock.looked_up(progress.cached)
            work.computed += 0 if done < 0 else max(progress.done - done, 0)
            done = progress.done
            work.tell(progress)
            logits, work.begun = None if chunk_logits is None else ForHost(chunk_logits), True
            # What begins to answer is counted as an answer before it is one.
            work.reading = progress.done < progress.total
            yield
        # Others go on meanwhile: whoever waited for the device would wait for what was launched behind them, too.
        while logits is not None and not logits.here:
            work.waits = True
            yield
        work.waits = False
        self._runner.checked(None)
        one.clock.prefilled()
        if self._no_answer(work, one.request) is not None:
            return None
        if logits is not None:
            self.reader.note(*one.clock.computed())
        return None if logits is None else logits.values

    def _read_again(self, work: Work, state: GenerationState) -> Turns:
        """An answer that was paused has all that it had but its last token, which the next turn feeds."""
        before = work.computed
        yield from self._find(work, state.context[:-1], state.parts.request.owner)
        if work.computed > before:
            # What the step stored has been read anew as a prompt is, in sums of another order.
            state.parts.clock.exact = False
        work.reading = len(work.sequence) < len(state.context) - 1

    def _find(self, work: Work, ids: list[int], owner: str) -> Turns:
        """Has a sequence that was closed hold these tokens again, and computes those that are gone."""
        while not work.cancelled:
            if not work.begun:
                work.sequence.begin(ids, owner=owner)
                work.begun = True
                yield
                continue
            done = len(work.sequence)
            if done == len(ids):
                return
            chunk = ids[done : done + self.reader.slice]
            self._runner.last_logits(work.sequence, chunk)
            work.computed += len(chunk)
            yield

    def _state(self, work: Work, one: _Wanted, logits: Tensor) -> GenerationState:
        request, plan = one.request, one.plan
        plan.sampler.begin(request.prompt_ids)
        guidance = None
        if request.guidance_ids and request.sampling.guidance_scale != 1.0:
            guidance = Guidance(self._runner, self._guide_sequence(), request.guidance_ids, self.reader.chunk)
        parts = GenerationParts(
            request=request,
            runner=self._runner,
            sequence=work.sequence,
            tokenizer=self._tokenizer,
            sampler=plan.sampler,
            rules=plan.rules,
            clock=one.clock,
            stop_ids=self._plans.stop_ids(request),
            cancelled=lambda: work.cancelled,
            guidance=guidance,
            healing=plan.healing,
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


@dataclass(frozen=True, slots=True)
class _Wanted:
    request: GenerationRequest
    plan: SamplingPlan
    clock: AnswerClock

    def finished(self, state: GenerationState) -> Finished:
        ended, healed = state.reason or "cancelled", int(self.plan.healing is not None)
        stats, ids, told = self.clock.stats(), tuple(state.ids), tuple(state.chances)
        return Finished(ended, stats, state.text, ids, told, healed, state.stop_id)


def _nothing() -> Turns:
    yield from ()
