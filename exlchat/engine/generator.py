"""The streaming single-stream generator: prefill, answers, scores, cancel."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Event as Flag

import torch
from torch import Tensor

from exlchat.engine.answer_clock import AnswerClock
from exlchat.engine.answer_step import AnswerStep
from exlchat.engine.answering import Answering, AnswerParts
from exlchat.engine.constraint import Constraint
from exlchat.engine.drafting import Drafter
from exlchat.engine.events import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    PlaceChances,
    PrefillProgress,
    RequestError,
    Scored,
    ScoreRequest,
)
from exlchat.engine.feeding import Feeder
from exlchat.engine.grammar import GrammarVocabulary, check_constraint
from exlchat.engine.grammar.begun import begun_matcher
from exlchat.engine.guidance import Guidance
from exlchat.engine.healing import Healing, healing_of
from exlchat.engine.kv_cache import KVCache
from exlchat.engine.pages.archive import PageArchive
from exlchat.engine.request_checks import check_request
from exlchat.engine.sampling import Sampler, check_sampling
from exlchat.engine.sampling_settings import SamplingSettings
from exlchat.engine.scoring import score_features
from exlchat.engine.sources import RowPasses, Sources
from exlchat.engine.token_rules import TokenRules
from exlchat.engine.tokenizer import Tokenizer
from exlchat.engine.transformer import Transformer
from exlchat.engine.vocabulary import Vocabulary


class Generator:
    """Answers one request at a time; a new request ends an iterator that was left unfinished.

    Args:
        transformer, tokenizer, cache: of one model.
        stop_ids: the model's own.
        prefill_chunk: prompt tokens computed between two looks at the cancel flag.
        step: draws on the device and runs ahead; without one each token is drawn by the host.
        rows: checks several guesses in one pass.
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
        rows: RowPasses | None = None,
        archive: PageArchive | None = None,
        draft_model: Drafter | None = None,
        other_cache: Callable[[], KVCache] | None = None,
    ) -> None:
        self._transformer = transformer
        self._tokenizer = tokenizer
        self._cache = cache
        self._stop_ids = frozenset(stop_ids)
        self._prefill_chunk = prefill_chunk
        self._archive = archive
        self._other_cache = other_cache
        self._guide: Feeder | None = None
        self.feeder = Feeder(transformer, cache)
        """Puts tokens into the cache."""
        self.step = step
        """The captured step, where the model has one."""
        self._vocabulary = Vocabulary(tokenizer, transformer.spec.vocab_size)
        self._sources = Sources(self.feeder, self._vocabulary, step=step, rows=rows, draft_model=draft_model)
        self._answering: Answering | None = None
        self._cancelled = Flag()
        self._last_prompt = _LastPrompt([], torch.empty(0))

    def cancel(self) -> None:
        """Ends the running answer within one token. From any thread; harmless when idle."""
        self._cancelled.set()

    def check(self, sampling: SamplingSettings, constraint: Constraint | None = None) -> None:
        """Whether answers can be drawn so and be so. Raises `RequestError` in one line; from any thread."""
        try:
            check_sampling(sampling, self._vocabulary.of_samplers)
            if constraint is not None:
                check_constraint(constraint, self._grammars)
        except ValueError as error:
            raise RequestError(str(error)) from None

    def generate(self, request: GenerationRequest) -> Iterator[Event]:
        """Events of one answer. Closing the iterator cancels.

        Raises:
            RequestError: the prompt is empty, too long, or holds ids the model does not have; what is asked for is
                impossible, or contradicts itself.
            ModelError: memory ran out, or the model computes no numbers.
        """
        self._check(request)
        rules, healing = self._rules(request)
        seed = secrets.randbits(63) if request.seed is None else request.seed
        try:
            sampler = Sampler(request.sampling, seed, self._vocabulary.for_settings(request.sampling))
        except ValueError as error:
            raise RequestError(str(error)) from None
        if healing is not None:
            prompt, begun = request.prompt_ids[:-1], request.begun - 1
            # The other prompt ends with what was said as well, or it stands for something else.
            other = request.guidance_ids[:-1] if request.guidance_ids[-1:] == request.prompt_ids[-1:] else None
            guidance = request.guidance_ids if other is None else other
            request = dataclasses.replace(request, prompt_ids=prompt, begun=begun, guidance_ids=guidance)
        return self._answer(request, _Means(rules, healing, sampler, seed), self._newest_run())

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
        return self._scored(request, self._newest_run())

    def _newest_run(self) -> int:
        """Ends the iterator before, and numbers this one."""
        self._cancelled.clear()
        if self._answering is not None:
            self._answering.close()
        return self.feeder.next_run()

    def _scored(self, request: ScoreRequest, run: int) -> Iterator[PrefillProgress | Scored]:
        ids, start = list(request.ids), request.start
        following: list[int | None] = [*ids[1:], None]
        self.feeder.check(run)
        cached = done = self._begin(ids, start - 1, request.owner)
        yield PrefillProgress(done, len(ids), cached)
        places: list[PlaceChances] = []
        while done < len(ids):
            if self._cancelled.is_set():
                return
            end = min(done + self._prefill_chunk, len(ids))
            first = max(start - 1, done)
            places += self._scores(ids[done:end], run, first - done, following[first:end], request.top)
            done = end
            yield PrefillProgress(done, len(ids), cached)
        yield Scored(tuple(places))

    def _scores(self, chunk: list[int], run: int, first: int, taken: list[int | None], top: int) -> list[PlaceChances]:
        """Adds a chunk to the cache; the chances of what is `taken` behind its tokens from `first` on."""

        def compute(inputs: Tensor, start: int) -> list[PlaceChances]:
            transformer = self._transformer
            features = transformer.features(inputs, self._cache, start=start)[first:]
            return list(score_features(features, transformer.logits, transformer.spec.vocab_size, taken, top))

        return self.feeder.explained(lambda ids: self.feeder.feed(ids, run, compute), chunk)

    def _answer(self, request: GenerationRequest, means: _Means, run: int) -> Iterator[Event]:
        clock = AnswerClock(request, means.seed)
        logits: Tensor | None = None
        for progress, chunk_logits in self._prefill(request, run):
            clock.looked_up(progress.cached)
            yield progress
            logits = chunk_logits
        clock.prefilled()
        self.feeder.check(run)
        reason = self._no_answer(request)
        answer: Answering | None = None
        if logits is not None and reason is None:
            if self._archive is not None:
                self._archive.note_prefill(*clock.computed())
            parts = self._parts(request, means, clock, run)
            answer = self._answering = Answering(parts, list(request.prompt_ids), logits)
            try:
                yield from answer.events()
            finally:
                answer.close()
        healed = int(means.healing is not None)
        if answer is None:
            yield Finished(reason or "cancelled", clock.stats(), "", ())
        else:
            ended = answer.reason or "cancelled"
            yield Finished(ended, clock.stats(), answer.text, tuple(answer.ids), tuple(answer.chances), healed)
        if self._archive is not None and self.feeder.is_newest(run):
            self._archive.keep(self._cache.sequence)

    def _parts(self, request: GenerationRequest, means: _Means, clock: AnswerClock, run: int) -> AnswerParts:
        """What an answer is made with, its prompt being in the cache."""
        means.sampler.begin(request.prompt_ids)
        guidance = None
        if request.guidance_ids and request.sampling.guidance_scale != 1.0:
            guidance = Guidance(self._guide_feeder(), request.guidance_ids, self._prefill_chunk)
        return AnswerParts(
            request=request,
            feeder=self.feeder,
            run=run,
            tokenizer=self._tokenizer,
            sampler=means.sampler,
            rules=means.rules,
            clock=clock,
            stop_ids=self._all_stops(request),
            cancelled=self._cancelled.is_set,
            sources=self._sources,
            guidance=guidance,
            healing=means.healing,
        )

    def _rules(self, request: GenerationRequest) -> tuple[TokenRules, Healing | None]:
        """What holds for the next token, and how the end of the prompt is healed. Raises `RequestError`."""
        stops, healing, grammar = self._all_stops(request), None, None
        if request.heal and request.begun and len(request.prompt_ids) > 1:
            begun = request.prompt_ids[len(request.prompt_ids) - request.begun :]
            healing = healing_of(begun, self._vocabulary.texts, self._tokenizer.decode, stops)
        if request.constraint is not None:
            try:
                grammar = begun_matcher(request, self._grammars, stops, self._tokenizer.decode)
            except ValueError as error:
                raise RequestError(str(error)) from None
        first = None if healing is None else healing.allowed
        return TokenRules(stop_ids=stops, least=request.min_new_tokens, grammar=grammar, first=first), healing

    def _all_stops(self, request: GenerationRequest) -> frozenset[int]:
        return self._stop_ids | {stop for stop in request.stop if isinstance(stop, int)}

    @cached_property
    def _grammars(self) -> GrammarVocabulary:
        return GrammarVocabulary(self._tokenizer, self._transformer.spec.vocab_size)

    def _guide_feeder(self) -> Feeder:
        if self._guide is None:
            if self._other_cache is None:
                raise RequestError("guidance needs a second cache, which this engine was made without")
            self._guide = Feeder(self._transformer, self._other_cache())
        return self._guide

    def _no_answer(self, request: GenerationRequest) -> FinishReason | None:
        """Why not even one token may come."""
        if self._cancelled.is_set():
            return "cancelled"
        if request.max_new_tokens == 0:
            return "max_new_tokens"
        return "context_full" if len(request.prompt_ids) >= self._cache.max_seq_len else None

    def _prefill(self, request: GenerationRequest, run: int) -> Iterator[tuple[PrefillProgress, Tensor | None]]:
        """Computes what the cache does not hold, chunk by chunk; logits come with the last chunk.

        Of the prompt that was asked last the logits are still there: a second answer to it starts at once, and from the
        same numbers to the last bit. Of any other, the last token is computed at least.
        """
        self.feeder.check(run)
        prompt, last = list(request.prompt_ids), self._last_prompt
        most = len(prompt) if prompt == last.ids else len(prompt) - 1
        cached = done = self._begin(prompt, most, request.owner)
        yield PrefillProgress(done, len(prompt), cached), last.logits if done == len(prompt) else None
        while done < len(prompt) and not self._cancelled.is_set():
            chunk = prompt[done : done + self._prefill_chunk]
            logits = self.feeder.last_logits(chunk, run)
            done += len(chunk)
            if done == len(prompt):
                self._last_prompt = _LastPrompt(prompt, logits)
                self._cache.pool.keep_warm(prompt[: request.beginning])
            yield PrefillProgress(done, len(prompt), cached), logits if done == len(prompt) else None

    def _begin(self, ids: list[int], most: int, owner: str) -> int:
        """Leaves the sequence so far for the longest known beginning of another, of at most so many; how long it is."""
        self._cache.clear()
        if self._archive is not None:
            self._archive.restore(ids, most, self._cancelled.is_set)
        return self._cache.begin(ids, most=most, owner=owner)

    def _check(self, request: GenerationRequest) -> None:
        self._check_ids(request.prompt_ids)
        check_request(request, draft_model=self._sources.has_draft_model)
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
class _LastPrompt:
    """Ids of the prompt that was computed last, and float32 logits `[vocab]` behind it."""

    ids: list[int]
    logits: Tensor


@dataclass(frozen=True, slots=True)
class _Means:
    """By what the tokens of an answer are chosen."""

    rules: TokenRules
    healing: Healing | None
    sampler: Sampler
    seed: int
