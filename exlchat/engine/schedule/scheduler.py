"""One loop for all requests to a model: a chunk of a prompt, or a token of each answer.

Answers are rows of one pass where the device has one: each draws by its own settings, under its own grammar, bans and
stops, and comes to the last bit to what it would be alone. On a CPU they take turns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from exlchat.engine.draft.drafting import Drafter
from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.sampling.device import is_steered
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.answer_sources import AnswerSources
from exlchat.engine.schedule.batch import BatchedHostDraws, BatchedRunAhead
from exlchat.engine.schedule.generation import GenerationState
from exlchat.engine.schedule.prompt_reader import PromptReader
from exlchat.engine.schedule.request_checks import check_ids, check_request, check_score
from exlchat.engine.schedule.runner import Runner
from exlchat.engine.schedule.sampling_plan import SamplingPlan, SamplingPlans, healed_request
from exlchat.engine.schedule.token_sources import TokenSource
from exlchat.engine.schedule.work import Tell, Told, Work, WorkMaker
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, OneOfSeveral, PrefillProgress, Scored
from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Failed, Handle, Running
from exlchat.llm.request import GenerationRequest, RequestError, ScoreRequest
from exlchat.llm.sampling import SamplingSettings

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

_Mode = Literal["own", "together", "ahead"]
_END = object()
_STILL = 2e-3  # seconds between two looks at answers that all stand still
_BREATH = 20e-6  # seconds between two steps in which another thread gets at the scheduler


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
        self._sources = AnswerSources(self.runner, device_rules, draft_model)
        self._together = None if graphs is None else BatchedHostDraws(graphs, device_rules)
        self._ahead = None if graphs is None else BatchedRunAhead(graphs, device_rules)
        self._maker = WorkMaker(
            self.runner,
            cache,
            tokenizer,
            plans=self._plans,
            reader=PromptReader(self.runner, prefill_chunk, archive),
            open_source=self._open_source,
            other_cache=other_cache,
        )
        self.lock = threading.RLock()
        """Held while a step computes: who asks about the cache from another thread takes it."""
        self._coming: deque[Work] = deque()
        self._going: list[Work] = []
        self._read_last = False
        self._mode: _Mode = "own"
        self._submitted: set[Work] = set()
        self._thread: threading.Thread | None = None

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
        told: deque[Told | Failed] = deque()
        return self._running(self._answer(request, told.append), told)

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """Events of several answers to one prompt, which is read once; `Finished` of each. Closing ends all.

        Each is what `generate` would give with its seed (but in a cache of few bits without a captured step, where an
        answer alone sees the end of its prompt as it was before it was rounded). They come side by side, or where there
        is no room for all one behind the other.

        Args:
            request: its own seed does not count.
            seeds: of 1 to 8 answers; `None` takes a fresh one.

        Raises:
            RequestError, ModelError: as `generate`; or so many cannot be made. What one of them fails of ends all.
        """
        if not 1 <= len(seeds) <= MOST_ANSWERS:
            raise RequestError(f"{len(seeds)} answers at once; there can be 1 to {MOST_ANSWERS}")
        told: deque[Told | Failed] = deque()
        request, plans = self._planned(request, seeds)
        return self._running(self._maker.several(request, plans, told.append), told)

    def score(self, request: ScoreRequest) -> Running[PrefillProgress | Scored]:
        """How likely the tokens of a sequence are; progress a chunk, `Scored` last. Closing it ends the work.

        A cancelled one ends without `Scored`. What the cache holds of the tokens before the first that is asked about
        is not computed again. Beside that, at most 0.2 GiB are taken for logits, however long the sequence is.

        Raises:
            RequestError: the sequence is too long, holds ids the model does not have, or `start` is none of its places;
                from the events, `ModelError`: memory ran out, or the model computes no numbers.
        """
        told: deque[Told | Failed] = deque()
        return self._running(self._score(request, told.append), told)

    def step(self) -> bool:
        """Computes a chunk of one prompt, or a token of each answer; whether there is more to do."""
        with self.lock:
            self._admit()
            reading = [work for work in self._going if work.reading]
            answering = [work for work in self._going if not (work.reading or work.rests)]
            # Prompts and answers by turns, so that none waits for all of the other.
            self._read_last = bool(reading) and not (answering and self._read_last)
            if self._read_last:
                self._take_turn(reading[0])
            elif answering:
                self._take_turns(answering)
            return bool(self._going or self._coming)

    def drop(self, work: Work) -> None:
        """Nobody wants it any more, and it is told nothing; returns when nothing works for it."""
        with self.lock:
            if work in self._coming:
                self._coming.remove(work)
            if work in self._going:
                self._end(work)

    def close(self) -> None:
        """Cancels everything, and waits for the scheduler's own thread."""
        with self.lock:
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
        # A device keeps Mirostat's state, and would lose it to another answer.
        apart = self.runner.step is not None and is_steered(request.sampling)
        return self._maker.answer(request, plan, tell, apart=apart)

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
        with self.lock:
            self._coming.append(work)
            self._submitted.add(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="exlchat-answers", daemon=True)
                self._thread.start()
        return work

    def _running(self, work: Work, told: deque[Told | Failed]) -> Running[Any]:
        return Running(self._read(work, told), work.cancel)

    def _read(self, work: Work, told: deque[Told | Failed]) -> Iterator[Any]:
        self._coming.append(work)
        try:
            while told or not work.ended:
                if not told:
                    self.step()
                    continue
                event = told.popleft()
                if isinstance(event, Failed):
                    raise event.error
                yield event
        finally:
            self.drop(work)

    def _serve(self) -> None:
        while True:
            self.step()
            with self.lock:
                self._submitted = {work for work in self._submitted if not work.ended}
                if not self._submitted:
                    self._thread = None
                    return
            time.sleep(_STILL if all(work.rests for work in self._going) else _BREATH)

    def _admit(self) -> None:
        """Who came first begins first, when there is room for all that it is expected to say."""
        while self._coming and self._fits(self._coming[0]):
            self._going.append(self._coming.popleft())

    def _fits(self, work: Work) -> bool:
        going = self._going
        if not going or work.cancelled:
            return True
        if work.apart or any(one.apart for one in going) or (work.guided and any(one.guided for one in going)):
            return False
        all_of_them = (*going, work)
        pages, windows = sum(one.pages for one in all_of_them), sum(one.windows for one in all_of_them)
        return sum(one.rows for one in all_of_them) <= MOST_ANSWERS and self._cache.fits(pages, windows)

    def _take_turns(self, answering: Sequence[Work]) -> None:
        """A token of each answer. Who finds no page waits for others; if nobody has one, the last to come fails."""
        self._set_mode(answering)
        for work in self._going:
            if work.rests:
                # Others do not wait for its row.
                work.leave_sources()
        alone = len(self._going) == 1
        able = [work for work in answering if alone or work.has_room()]
        for work in able or answering[-1:]:
            self._take_turn(work)

    def _take_turn(self, work: Work) -> None:
        try:
            if next(work.turns, _END) is _END:
                self._end(work)
        except Exception as error:
            self._end(work)
            work.tell(Failed(error))

    def _end(self, work: Work) -> None:
        self._going.remove(work)
        work.ended = True
        work.close()

    def _set_mode(self, answering: Sequence[Work]) -> None:
        """How the answers that there are now get their tokens; sources of another kind are left."""
        mode: _Mode = "own"
        if sum(work.rows for work in answering) > 1:
            if self._ahead is not None and all(work.ahead for work in answering):
                mode = "ahead"
            elif self._together is not None:
                mode = "together"
        if mode != self._mode:
            for work in answering:
                work.leave_sources()
            self._mode = mode

    def _open_source(self, state: GenerationState) -> TokenSource:
        if self._mode == "ahead" and self._ahead is not None:
            return self._ahead.open(state)
        if self._mode == "together" and self._together is not None:
            return self._together.open(state)
        return self._sources.open(state)
