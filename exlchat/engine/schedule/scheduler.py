"""One loop for all requests to a model: a chunk of a prompt, or a token of each answer.

Answers are rows of one pass where the device has one: each draws by its own settings, under its own grammar, bans and
stops, and comes to the last bit to what it would be alone. On a CPU they take turns.

Nothing is booked in advance: who comes begins when the pages of its prompt are there, and where they run out later the
request of the lowest rank that came last stands still. Its pages stay findable until their room is wanted.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from exlchat.engine.draft.drafting import Drafter
from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import card_failure
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.admission import Admission
from exlchat.engine.schedule.answer_sources import AnswerSources
from exlchat.engine.schedule.device_time import Stopwatch
from exlchat.engine.schedule.prompt_reader import PromptReader
from exlchat.engine.schedule.request_checks import check_ids, check_request, check_score
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.sampling_plan import SamplingPlan, SamplingPlans, healed_request
from exlchat.engine.schedule.shared_sources import SharedSources
from exlchat.engine.schedule.slices import Slices
from exlchat.engine.schedule.step_lock import StepLock
from exlchat.engine.schedule.work import Tell, Work, WorkMaker
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.ext.products import MAX_ROWS
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, Finished, OneOfSeveral, PrefillProgress, Scored, TextDelta
from exlchat.llm.info import ModelError
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Failed, Handle, Running
from exlchat.llm.request import GenerationRequest, Rank, RequestError, ScoreRequest
from exlchat.llm.sampling import SamplingSettings

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

_END = object()
_STILL = 2e-3  # seconds between two looks at answers that all stand still


class Scheduler:
    """Of one model. Everything may be called from any thread; work is done in the one that calls `step`.

    Args:
        transformer, tokenizer, cache: of one model.
        stop_ids: the model's own.
        prefill_chunk: prompt tokens of a step.
        graphs: draw on the device and run ahead, check guesses in one pass, and take a token of several answers each;
            without them each token is drawn by the host.
        archive: pages of earlier runs.
        draft_model: guesses tokens ahead.
        other_cache: makes a second cache, for guidance; called once, when guidance is first asked for.
    """

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer,
        cache: KVCache,
        stop_ids: tuple[int, ...],
        prefill_chunk: int,
        *,
        graphs: DecodeGraphs | None = None,
        archive: PageArchive | None = None,
        draft_model: Drafter | None = None,
        other_cache: Callable[[], KVCache] | None = None,
    ) -> None:
        self.runner = Runner(transformer, graphs)
        """Computes what is fed."""
        self._cache = cache
        self._plans = SamplingPlans(tokenizer, transformer.spec.vocab_size, stop_ids)
        device_rules = DeviceRules(self._plans.vocabulary)
        own = AnswerSources(self.runner, device_rules, draft_model)
        self._sources = SharedSources(own, graphs, device_rules)
        self._reader = PromptReader(self.runner, prefill_chunk, archive)
        self._slices = Slices(prefill_chunk) if graphs is None else Slices(prefill_chunk, judged=5, lowest=Rank.IDLE)
        self._slice_time = Stopwatch(transformer.split.devices[-1])
        self._admission = Admission(cache, self._reader, lambda: self.runner.most_rows)
        self._maker = WorkMaker(
            self.runner,
            cache,
            tokenizer,
            plans=self._plans,
            reader=self._reader,
            open_source=self._sources.open,
            other_cache=other_cache,
        )
        self._lock = StepLock()
        """Held while a step computes."""
        self._coming: list[Work] = []
        """Also appended to in the middle of a step, for which whoever asks does not wait."""
        self._going: list[Work] = []
        self._read_last = False
        self._passes = 0
        self.pauses = 0
        """How often an answer had to stand still."""
        self._submitted: set[Work] = set()
        """For which a thread of the scheduler's own takes the steps."""
        self._thread: threading.Thread | None = None
        self._submitting = threading.Lock()
        """Held, behind the other one where both are, while it is found out whether there is such a thread."""

    def check(self, sampling: SamplingSettings, constraint: Constraint | None = None) -> None:
        """Whether answers can be drawn so and be so. Raises `RequestError` in one line."""
        self._plans.check(sampling, constraint)

    def add(self, request: GenerationRequest, sink: Callable[[Event | Failed], None]) -> Handle:
        """Begins an answer, which `step` makes; `sink` is told its events, `Finished` or `Failed` last.

        Raises:
            RequestError: the prompt is empty, too long, or holds ids the model does not have; what is asked for is
                impossible, or contradicts itself.
        """
        work = self._answer(request, sink)  # type: ignore[arg-type]  # of one answer it is told nothing else
        self._coming.append(work)
        return work

    def submit(self, request: GenerationRequest, sink: Callable[[Event | Failed], None]) -> Handle:
        """As `add`, and the steps are taken in a thread of the scheduler's own."""
        return self._served(self._answer(request, sink))  # type: ignore[arg-type]

    def submit_score(self, request: ScoreRequest, sink: Callable[[PrefillProgress | Scored | Failed], None]) -> Handle:
        """As `score`, and the steps are taken in a thread of the scheduler's own."""
        return self._served(self._score(request, sink))  # type: ignore[arg-type]

    def generate(self, request: GenerationRequest) -> Running[Event]:
        """An answer, made while its events are read; `Finished` last. Closing it ends the work.

        Raises:
            RequestError: as `add`; from the events, `ModelError`: memory ran out, or the model computes no numbers.
        """
        told: deque[Event | Failed] = deque()
        return self._running([self._answer(request, self._telling(told))], told)

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """Events of several answers to one prompt, which is read once; `Finished` of each. Closing ends all.

        Each is what `generate` would give with its seed (but in a cache of few bits without a captured step, where an
        answer alone sees the end of its prompt as it was before it was rounded). They come side by side as far as there
        is room for all.

        Args:
            request: its own seed does not count.
            seeds: of 1 to 8 answers; `None` takes a fresh one.

        Raises:
            RequestError, ModelError: as `generate`; or so many cannot be made. What one of them fails of ends all.
        """
        if not 1 <= len(seeds) <= MOST_ANSWERS:
            raise RequestError(f"{len(seeds)} answers at once; there can be 1 to {MOST_ANSWERS}")
        told: deque[OneOfSeveral | PrefillProgress | Failed] = deque()
        put = self._telling(told)

        def tell(index: int) -> Tell:
            def one(event: Event | Scored | Failed) -> None:
                if isinstance(event, TextDelta | Finished):
                    put(OneOfSeveral(index, event))
                elif isinstance(event, Failed) or (isinstance(event, PrefillProgress) and index == 0):
                    put(event)

            return one

        planned, plans = self._planned(request, seeds)
        works = [self._maker.answer(planned, plan, tell(index)) for index, plan in enumerate(plans)]
        return self._running(works, told)

    def score(self, request: ScoreRequest) -> Running[PrefillProgress | Scored]:
        """How likely the tokens of a sequence are; progress a chunk, `Scored` last. Closing it ends the work.

        A cancelled one ends without `Scored`. What the cache holds of the tokens before the first that is asked about
        is not computed again. Beside that, at most 0.2 GiB are taken for logits, however long the sequence is.

        Raises:
            RequestError: the sequence is too long, holds ids the model does not have, or `start` is none of its places;
                from the events, `ModelError`: memory ran out, or the model computes no numbers.
        """
        told: deque[PrefillProgress | Scored | Failed] = deque()
        return self._running([self._score(request, self._telling(told))], told)

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Inside nothing is computed, and the cache does not change."""
        with self._lock.held():
            yield

    def step(self) -> bool:
        """Computes a chunk of one prompt, or a token of each answer; whether there is more to do."""
        with self._lock.held():
            self._admit()
            self._begin_known()
            reading = [work for work in self._going if work.reading]
            answering = [work for work in self._going if not (work.reading or work.rests)]
            # Prompts and answers by turns, so that none waits for all of the other; only whoever has just come to those
            # of lower ranks does not wait for their pass.
            front = min((work.rank for work in answering), default=None)
            urgent = front is not None and any(work.rank < front and not work.begun for work in reading)
            self._read_last = bool(reading) and (urgent or not (answering and self._read_last))
            if self._read_last:
                self._read_a_slice(reading, front)
            elif answering:
                self._take_turns(answering)
            return bool(self._going or self._coming)

    def drop(self, work: Work) -> None:
        """Nobody wants it any more, and it is told nothing; returns when nothing works for it."""
        with self.between_steps():
            if work in self._coming or work in self._going:
                self._end(work)

    def close(self) -> None:
        """Cancels everything, and waits for the scheduler's own thread."""
        with self.between_steps(), self._submitting:
            for work in (*self._coming, *self._going):
                work.cancel()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def _vocab_size(self) -> int:
        return self.runner.transformer.spec.vocab_size

    def _answer(self, request: GenerationRequest, tell: Tell) -> Work:
        request, (plan,) = self._planned(request, [request.seed])
        return self._maker.answer(request, plan, tell)

    def _score(self, request: ScoreRequest, tell: Tell) -> Work:
        check_score(request, self._vocab_size, self._cache.max_seq_len)
        return self._maker.score(request, tell)

    def _planned(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> tuple[GenerationRequest, list[SamplingPlan]]:
        """The request as it is carried out, and by what each answer is chosen. Raises `RequestError`."""
        check_ids(request.prompt_ids, self._vocab_size, self._cache.max_seq_len)
        check_request(request)
        if request.guidance_ids:
            check_ids(request.guidance_ids, self._vocab_size, self._cache.max_seq_len)
        plans = [self._plans.of(request, seed) for seed in seeds]
        return request if plans[0].healing is None else healed_request(request), plans

    def _served(self, work: Work) -> Work:
        with self._submitting:
            self._coming.append(work)
            self._submitted.add(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="exlchat-answers", daemon=True)
                self._thread.start()
        return work

    def _telling(self, told: deque[Any]) -> Callable[[object], None]:
        """Puts events there, for a thread that waits for one or for its turn to step."""

        def tell(event: object) -> None:
            told.append(event)
            self._lock.look()

        return tell

    def _running(self, works: Sequence[Work], told: deque[Any]) -> Running[Any]:
        def cancel() -> None:
            for work in works:
                work.cancel()

        return Running(self._read(works, told), cancel)

    def _read(self, works: Sequence[Work], told: deque[Any]) -> Iterator[Any]:
        self._coming += works
        try:
            while told or not all(work.ended for work in works):
                if told:
                    event = told.popleft()
                    if isinstance(event, Failed):
                        raise event.error
                    yield event
                elif self._thread is not None:
                    # What is told in a step comes before its end, which waits for the device.
                    self._lock.wait(lambda: told or self._thread is None or all(work.ended for work in works))
                else:
                    # Whoever else reads an answer steps for all: what came while waiting is told first.
                    with self._lock.held(unless=lambda: told) as held:
                        if held:
                            self.step()
        finally:
            for work in works:
                self.drop(work)

    def _serve(self) -> None:
        while True:
            try:
                self.step()
            except Exception as error:
                self._fail_all(error)
            with self.between_steps(), self._submitting:
                self._submitted = {work for work in self._submitted if not work.ended}
                if not self._submitted:
                    self._thread = None
                    return
            if self._going and all(work.rests for work in self._going):
                time.sleep(_STILL)

    def _admit(self) -> None:
        """The most urgent begin, as far as there is room; for one of a higher rank those of lower ones stand still."""
        while self._coming and self._admit_one():
            continue

    def _admit_one(self) -> bool:
        for work in sorted(self._coming, key=lambda one: (not one.cancelled, one.urgency())):
            if self._admission.reads_for(work, self._going):
                continue
            while not self._admission.fits(work, self._going):
                last = self._last_of(one for one in self._going if one.rank > work.rank)
                if last is None:
                    return False
                self._pause(last)
            self._coming.remove(work)
            self._going.append(work)
            return True
        return False

    def _begin_known(self) -> None:
        """Answers to a prompt that was just read begin together."""
        for work in list(self._going):
            if work.reading and not work.begun and self._reader.knows(work.ids):
                self._take_turn(work)

    def _last_of(self, works: Iterable[Work]) -> Work | None:
        """Of those that may stand still, the one of the lowest rank that came last."""
        return max((one for one in works if one.may_be_paused), key=lambda one: (one.rank, one.arrival), default=None)

    def _pause(self, work: Work) -> None:
        self.pauses += 1
        work.pause()
        self._going.remove(work)
        self._coming.append(work)

    def _make_room(self, work: Work) -> bool:
        """Whether it can take its turn, for which others may have to stand still, or it itself."""
        while not work.has_room(self._reader.slice):
            last = self._last_of(self._going)
            if last is None:
                # Alone it ends where the room ends; those that are cancelled leave theirs.
                return len(self._going) == 1
            if len(self._going) == 1:
                break
            self._pause(last)
            if last is work:
                return False
        return True

    def _read_a_slice(self, reading: Sequence[Work], front: Rank | None) -> None:
        """Of the prompt of the most urgent, while answers wait for it, the most urgent of this rank."""
        for tokens, seconds in self._slice_time.ended():
            self._slices.took(tokens, seconds)
        self._reader.slice = self._slices.size(front)
        first = min(reading, key=lambda one: (not one.cancelled, one.urgency()))
        if not first.begun and self._make_room(first):
            # What the cache holds of it is found at once.
            self._take_turn(first)
        if first in self._going and first.reading and self._make_room(first):
            before = first.computed
            with self._slice_time.timed() as computed:
                self._take_turn(first)
                computed.append(first.computed - before)

    def _take_turns(self, answering: Sequence[Work]) -> None:
        """A token of each answer."""
        self._sources.choose(answering)
        for work in self._going:
            if work.rests:
                # Others do not wait for its row.
                work.leave_source()
        self._passes += 1
        if not all(work.waits for work in answering):
            self._slices.passed(time.perf_counter())
        rows = len(answering)
        # See `generate_several` of caches of few bits.
        exact = rows <= MAX_ROWS if self.runner.step is not None else rows == 1 or not self._cache.kind.quantized
        behind = self._sources.behind()
        for work in sorted(self._of_pass(answering), key=self._turn_of):
            for _ in range(2 if work.state in behind else 1):
                work.note_pass(rows, exact=exact)
                # Those before it may have had it stand still.
                if work in self._going and self._make_room(work):
                    self._take_turn(work)

    def _turn_of(self, work: Work) -> tuple[bool, tuple[int, int]]:
        """Those for which the next pass waits go first."""
        return self._sources.runs_ahead(work), work.urgency()

    def _of_pass(self, answering: Sequence[Work]) -> Sequence[Work]:
        """Where each row takes its own time, one of the low ranks goes beside all that somebody waits for."""
        front = [work for work in answering if work.rank <= Rank.API]
        behind = [work for work in answering if work.rank > Rank.API]
        if self.runner.step is not None or not (front and behind):
            return answering
        return [*front, behind[self._passes % len(behind)]]

    def _take_turn(self, work: Work) -> None:
        try:
            if next(work.turns, _END) is _END:
                self._end(work)
        except Exception as error:
            self._fail(work, error)

    def _fail_all(self, error: Exception) -> None:
        """What fails between two turns fails for everybody: nobody would be told of it otherwise."""
        with self.between_steps():
            for work in (*self._going, *self._coming):
                self._fail(work, error)

    def _fail(self, work: Work, error: Exception) -> None:
        with suppress(RuntimeError):  # of a card that has failed
            self._end(work)
        failure = card_failure(error)
        work.tell(Failed(error if failure is None else ModelError(failure)))

    def _end(self, work: Work) -> None:
        (self._going if work in self._going else self._coming).remove(work)
        work.ended = True
        work.close()
