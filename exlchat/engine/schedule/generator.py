"""The streaming single-stream generator: prefill, answers, scores, cancel."""

from __future__ import annotations

import collections.abc
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Event as Flag
from typing import Protocol, TypeVar

from torch import Tensor

from exlchat.engine.decode.answer_step import AnswerStep
from exlchat.engine.draft.drafting import Drafter
from exlchat.engine.kv.archive import PageArchive
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.answer_clock import AnswerClock
from exlchat.engine.schedule.answer_means import Means, MeansMaker, healed_request
from exlchat.engine.schedule.answering import Answering, AnswerParts, OpenSource
from exlchat.engine.schedule.feeding import Feeder
from exlchat.engine.schedule.guidance import Guidance
from exlchat.engine.schedule.prompt_reader import PromptReader
from exlchat.engine.schedule.request_checks import check_request
from exlchat.engine.schedule.scoring import score_features
from exlchat.engine.schedule.several import SequencePasses, SideBySide, have_room, side_by_side
from exlchat.engine.schedule.several_ahead import SeveralAhead, SeveralStep, may_run_ahead
from exlchat.engine.schedule.sources import RowPasses, Sources
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, Finished, FinishReason, OneOfSeveral, PlaceChances, PrefillProgress, Scored
from exlchat.llm.request import MOST_ANSWERS, GenerationRequest, RequestError, ScoreRequest
from exlchat.llm.sampling import SamplingSettings

_Told = TypeVar("_Told")


class Passes(RowPasses, SequencePasses, Protocol):
    """Passes of several tokens, of one sequence or of a sequence each."""


class Generator:
    """Answers one request at a time; a new request ends an iterator that was left unfinished.

    Args:
        transformer, tokenizer, cache: of one model.
        stop_ids: the model's own.
        prefill_chunk: prompt tokens computed between two looks at the cancel flag.
        step: draws on the device and runs ahead; without one each token is drawn by the host.
        rows: checks several guesses in one pass, or takes a token of several answers each.
        several: takes a token of several answers each, draws what follows and runs ahead; only beside `rows`.
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
        step: AnswerStep | None = None,
        rows: Passes | None = None,
        several: SeveralStep | None = None,
        archive: PageArchive | None = None,
        draft_model: Drafter | None = None,
        other_cache: Callable[[], KVCache] | None = None,
    ) -> None:
        self._transformer = transformer
        self._tokenizer = tokenizer
        self._cache = cache
        self._means = MeansMaker(tokenizer, transformer.spec.vocab_size, stop_ids)
        self._other_cache = other_cache
        self._guide: Feeder | None = None
        self.feeder = Feeder(transformer, KVSequence(cache))
        """Puts tokens into the sequence that is read and answered."""
        self.step = step
        """The captured step, where the model has one."""
        self._device_rules = DeviceRules(self._means.vocabulary)
        self._sources = Sources(self.feeder, self._device_rules, step=step, rows=rows, draft_model=draft_model)
        self._together = None if rows is None or step is None else SideBySide(rows, step, self._device_rules)
        self._ahead = None if several is None else SeveralAhead(several, self._device_rules)
        self._answering: Sequence[Answering] = ()
        self._beside: Sequence[Feeder] = ()
        self._cancelled = Flag()
        self._reader = PromptReader(self.feeder, prefill_chunk, self._cancelled.is_set, archive)

    def cancel(self) -> None:
        """Ends the running answer within one token. From any thread; harmless when idle."""
        self._cancelled.set()

    def check(self, sampling: SamplingSettings, constraint: Constraint | None = None) -> None:
        """Whether answers can be drawn so and be so. Raises `RequestError` in one line; from any thread."""
        self._means.check(sampling, constraint)

    def generate(self, request: GenerationRequest) -> Iterator[Event]:
        """Events of one answer. Closing the iterator cancels.

        Raises:
            RequestError: the prompt is empty, too long, or holds ids the model does not have; what is asked for is
                impossible, or contradicts itself.
            ModelError: memory ran out, or the model computes no numbers.
        """
        request, (means,) = self._prepared(request, [request.seed])
        run = self._newest_run()
        return self._retired(self._answer(request, means, run), run)

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Iterator[PrefillProgress | OneOfSeveral]:
        """Events of several answers to one prompt, which is read once; `Finished` of each. Closing cancels all.

        Each is what `generate` would give with its seed. They come side by side, unless there is no room for all, or
        the device has no pass for a token of each: then one behind the other.

        Args:
            request: its own seed does not count.
            seeds: of 1 to 8 answers; `None` takes a fresh one.

        Raises:
            RequestError, ModelError: as `generate`; or so many cannot be made. What one of them fails of ends all.
        """
        if not 1 <= len(seeds) <= MOST_ANSWERS:
            raise RequestError(f"{len(seeds)} answers at once; there can be 1 to {MOST_ANSWERS}")
        request, means = self._prepared(request, seeds)
        run = self._newest_run()
        return self._retired(self._several(request, means, run), run)

    def _prepared(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> tuple[GenerationRequest, list[Means]]:
        """The request as it is carried out, and by what each answer is chosen. Raises `RequestError`."""
        self._check(request)
        means = [self._means.of(request, seed) for seed in seeds]
        return request if means[0].healing is None else healed_request(request), means

    def score(self, request: ScoreRequest) -> Iterator[PrefillProgress | Scored]:
        """How likely the tokens of a sequence are; progress a chunk, `Scored` last. Closing the iterator cancels.

        A cancelled one ends without `Scored`. What the cache holds of the tokens before the first that is asked about
        is not computed again. Beside that, at most 0.2 GiB are taken for logits, however long the sequence is.

        Raises:
            RequestError: the sequence is too long, holds ids the model does not have, or `start` is none of its places.
            ModelError: memory ran out, or the model computes no numbers.
        """
        self._check_ids(request.ids)
        if not 1 <= request.start <= len(request.ids) or request.top < 1:
            raise RequestError(
                f"start is {request.start} and top is {request.top}; they must be from 1 to {len(request.ids):,}, "
                "and at least 1"
            )
        run = self._newest_run()
        return self._retired(self._scored(request, run), run)

    def _newest_run(self) -> int:
        """Ends the iterator before, and numbers this one."""
        self._cancelled.clear()
        for answer in self._answering:
            answer.close()
        for feeder in self._beside:
            feeder.sequence.close()
        self._answering, self._beside = (), ()
        return self.feeder.next_run()

    def _retired(self, events: Iterator[_Told], run: int) -> Iterator[_Told]:
        """The same; then the sequence waits for another to begin."""
        try:
            yield from events
        finally:
            if self.feeder.is_newest(run):
                self.feeder.sequence.retire()

    def _scored(self, request: ScoreRequest, run: int) -> Iterator[PrefillProgress | Scored]:
        ids, start = list(request.ids), request.start
        following: list[int | None] = [*ids[1:], None]
        self.feeder.check(run)
        cached = done = self._reader.begin(ids, start - 1, request.owner)
        yield PrefillProgress(done, len(ids), cached)
        places: list[PlaceChances] = []
        while done < len(ids):
            if self._cancelled.is_set():
                return
            end = min(done + self._reader.chunk, len(ids))
            first = max(start - 1, done)
            places += self._scores(ids[done:end], run, first - done, following[first:end], request.top)
            done = end
            yield PrefillProgress(done, len(ids), cached)
        yield Scored(tuple(places))

    def _scores(self, chunk: list[int], run: int, first: int, taken: list[int | None], top: int) -> list[PlaceChances]:
        """Adds a chunk to the cache; the chances of what is `taken` behind its tokens from `first` on."""

        def compute(inputs: Tensor, start: int) -> list[PlaceChances]:
            transformer = self._transformer
            features = transformer.features(inputs, self.feeder.sequence, start=start)[first:]
            return list(score_features(features, transformer.logits, transformer.spec.vocab_size, taken, top))

        return self.feeder.explained(lambda ids: self.feeder.feed(ids, run, compute), chunk)

    def _answer(self, request: GenerationRequest, means: Means, run: int) -> Iterator[Event]:
        one = _Wanted(request, means, AnswerClock(request, means.seed), run)
        logits = yield from self._prefilled([one])
        if logits is None:
            yield self._unanswered(one)
        else:
            answer = Answering(self._parts(one, self.feeder, self._sources), list(request.prompt_ids), logits)
            self._answering = (answer,)
            try:
                yield from (told for told in answer.events() if told is not None)
            finally:
                answer.close()
            yield one.finished(answer)
        self._reader.keep(self.feeder.sequence, run)

    def _several(
        self, request: GenerationRequest, many: Sequence[Means], run: int
    ) -> Iterator[PrefillProgress | OneOfSeveral]:
        wanted = [_Wanted(request, means, AnswerClock(request, means.seed), run) for means in many]
        logits = yield from self._prefilled(wanted)
        if logits is None:
            yield from (OneOfSeveral(index, self._unanswered(one)) for index, one in enumerate(wanted))
            return
        room = have_room(self._cache, request, len(many))
        if not room or request.guidance_ids or (self.step is not None and self._together is None):
            for index, means in enumerate(many):
                events = self._answer(request, means, run)
                yield from (OneOfSeveral(index, event) for event in events if not isinstance(event, PrefillProgress))
            return
        yield from self._side_by_side(wanted, logits)

    def _side_by_side(self, wanted: Sequence[_Wanted], logits: Tensor) -> Iterator[OneOfSeveral]:
        """Answers that take turns, each in a sequence of its own beside the one that the prompt was read in."""
        feeders = self._beside = [self.feeder.beside(KVSequence(self._cache)) for _ in wanted]
        try:
            answers = [self._one_beside(*each, logits) for each in zip(wanted, feeders, strict=True)]
            self._answering = answers

            def finished(index: int) -> Finished:
                self._reader.keep(feeders[index].sequence, wanted[index].run)
                feeders[index].sequence.close()
                return wanted[index].finished(answers[index])

            yield from side_by_side(answers, finished)
        finally:
            for feeder in feeders:
                feeder.sequence.close()

    def _one_beside(self, one: _Wanted, feeder: Feeder, logits: Tensor) -> Answering:
        prompt = list(one.request.prompt_ids)
        there = feeder.sequence.begin(prompt, owner=one.request.owner)
        if there < len(prompt):
            feeder.last_logits(prompt[there:], one.run)
        sources: OpenSource | None = self._ahead if may_run_ahead(one.request) else None
        sources = sources or self._together
        if sources is None:
            sources = Sources(feeder, self._device_rules, step=None, rows=None, draft_model=None)
        return Answering(self._parts(one.undrafted(), feeder, sources), prompt, logits)

    def _prefilled(self, wanted: Sequence[_Wanted]) -> collections.abc.Generator[PrefillProgress, None, Tensor | None]:
        """Reads the prompt of one answer or several; float32 logits `[vocab]`, or `None` where none may begin."""
        first, logits = wanted[0], None
        for progress, chunk_logits in self._reader.read(first.request, first.run):
            for one in wanted:
                one.clock.looked_up(progress.cached if one is first else progress.total)
            yield progress
            logits = chunk_logits
        for one in wanted:
            one.clock.prefilled()
        self.feeder.check(first.run)
        if self._no_answer(first.request) is not None:
            return None
        if logits is not None:
            self._reader.note(*first.clock.computed())
        return logits

    def _unanswered(self, one: _Wanted) -> Finished:
        return Finished(self._no_answer(one.request) or "cancelled", one.clock.stats(), "", ())

    def _parts(self, one: _Wanted, feeder: Feeder, sources: OpenSource) -> AnswerParts:
        """What an answer is made with, its prompt being in the cache."""
        request, means = one.request, one.means
        means.sampler.begin(request.prompt_ids)
        guidance = None
        if request.guidance_ids and request.sampling.guidance_scale != 1.0:
            guidance = Guidance(self._guide_feeder(), request.guidance_ids, self._reader.chunk)
        return AnswerParts(
            request=request,
            feeder=feeder,
            run=one.run,
            tokenizer=self._tokenizer,
            sampler=means.sampler,
            rules=means.rules,
            clock=one.clock,
            stop_ids=self._means.stop_ids(request),
            cancelled=self._cancelled.is_set,
            sources=sources,
            guidance=guidance,
            healing=means.healing,
        )

    def _guide_feeder(self) -> Feeder:
        if self._guide is None:
            if self._other_cache is None:
                raise RequestError("guidance needs a second cache, which this engine was made without")
            self._guide = Feeder(self._transformer, KVSequence(self._other_cache()))
        return self._guide

    def _no_answer(self, request: GenerationRequest) -> FinishReason | None:
        """Why not even one token may come."""
        if self._cancelled.is_set():
            return "cancelled"
        if request.max_new_tokens == 0:
            return "max_new_tokens"
        return "context_full" if len(request.prompt_ids) >= self._cache.max_seq_len else None

    def _check(self, request: GenerationRequest) -> None:
        self._check_ids(request.prompt_ids)
        check_request(request)
        if request.guidance_ids:
            self._check_ids(request.guidance_ids)

    def _check_ids(self, ids: Sequence[int]) -> None:
        length, vocab = len(ids), self._transformer.spec.vocab_size
        if length == 0:
            raise RequestError("the prompt is empty; it needs at least one token")
        if length > self._cache.max_seq_len:
            raise RequestError(
                f"the prompt has {length:,} tokens and the context holds {self._cache.max_seq_len:,}; "
                "shorten it or load with a larger --context"
            )
        wrong = next((token for token in ids if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(f"the prompt holds id {wrong}, but the model has {vocab:,} embeddings")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One answer that is to be made."""

    request: GenerationRequest
    means: Means
    clock: AnswerClock
    run: int

    def undrafted(self) -> _Wanted:
        """The same, without guesses."""
        return dataclasses.replace(self, request=dataclasses.replace(self.request, draft="off"))

    def finished(self, answer: Answering) -> Finished:
        """Its last event."""
        ended, healed = answer.reason or "cancelled", int(self.means.healing is not None)
        return Finished(ended, self.clock.stats(), answer.text, tuple(answer.ids), tuple(answer.chances), healed)
