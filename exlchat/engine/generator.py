"""The streaming single-stream generator: prefill, decode, events, cancel."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import TypeVar

import torch
from torch import Tensor

from exlchat.engine.answer_clock import AnswerClock
from exlchat.engine.device_sampling import DeviceDraws, why_not_on_device
from exlchat.engine.events import (
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    ModelError,
    PlaceChances,
    PrefillProgress,
    RequestError,
    Scored,
    ScoreRequest,
    TextDelta,
)
from exlchat.engine.kv_cache import KVCache
from exlchat.engine.pages.archive import PageArchive
from exlchat.engine.placement import free_memory
from exlchat.engine.run_ahead import DecodeStep, RunAheadTokens
from exlchat.engine.sampling import NotNumbersError, Sampler
from exlchat.engine.scoring import score_features
from exlchat.engine.text_stream import TextStream
from exlchat.engine.token_source import SynchronousTokens, TokenSource
from exlchat.engine.tokenizer import Tokenizer
from exlchat.engine.transformer import Transformer

_Given = TypeVar("_Given")
_Computed = TypeVar("_Computed")


class Generator:
    """Answers one request at a time; a new request ends an iterator that was left unfinished.

    Args:
        transformer, tokenizer, cache: of one model.
        stop_ids: the model's own.
        prefill_chunk: prompt tokens computed between two looks at the cancel flag.
        step: draws on the device and runs ahead; without one each token is drawn by the host.
        archive: pages of earlier runs.
    """

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer,
        cache: KVCache,
        stop_ids: tuple[int, ...],
        prefill_chunk: int,
        *,
        step: DecodeStep | None = None,
        archive: PageArchive | None = None,
    ) -> None:
        self._transformer = transformer
        self._tokenizer = tokenizer
        self._cache = cache
        self._stop_ids = frozenset(stop_ids)
        self._prefill_chunk = prefill_chunk
        self._step = step
        self._archive = archive
        self._source: TokenSource | None = None
        self._cancelled = Flag()
        self._run = 0
        self._last_prompt = _LastPrompt([], torch.empty(0))

    def cancel(self) -> None:
        """Ends the running answer within one token. From any thread; harmless when idle."""
        self._cancelled.set()

    def generate(self, request: GenerationRequest) -> Iterator[Event]:
        """Events of one answer. Closing the iterator cancels.

        Raises:
            RequestError: the prompt is empty, too long, or holds ids the model does not have.
            ModelError: memory ran out, or the model computes no numbers.
        """
        self._check(request)
        return self._answer(request, self._newest_run())

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
        self._run += 1
        if self._source is not None:
            self._source.close()
        return self._run

    def _scored(self, request: ScoreRequest, run: int) -> Iterator[PrefillProgress | Scored]:
        ids, start = list(request.ids), request.start
        following: list[int | None] = [*ids[1:], None]
        self._check_newest(run)
        cached = done = self._begin(ids, start - 1, request.owner)
        yield PrefillProgress(done, len(ids), cached)
        places: list[PlaceChances] = []
        while done < len(ids):
            if self._cancelled.is_set():
                return
            end = min(done + self._prefill_chunk, len(ids))
            self._check_newest(run)
            self._cache.reserve(end)
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

        return self._explained(lambda ids: self._feed_all(ids, run, compute), chunk)

    def _answer(self, request: GenerationRequest, run: int) -> Iterator[Event]:
        clock = AnswerClock(request, secrets.randbits(63) if request.seed is None else request.seed)
        answer = _Answer()
        logits: Tensor | None = None
        for progress, chunk_logits in self._prefill(request, run):
            clock.looked_up(progress.cached)
            yield progress
            logits = chunk_logits
        clock.prefilled()
        self._check_newest(run)
        answer.reason = self._limit(request, 0)
        if logits is not None and answer.reason is None:
            sampler = Sampler(request.sampling, clock.seed)
            first = self._explained(sampler.draw, logits)
            self._note_prefill(clock)
            source = self._source = self._open(request, sampler, first, clock.seed, run)
            clock.path = source.path
            try:
                yield from self._decode(request, source, first, clock, answer)
            finally:
                source.close()
        yield Finished(answer.reason or "cancelled", clock.stats(), "".join(answer.shown), tuple(answer.ids))
        if self._archive is not None and run == self._run:
            self._archive.keep(self._cache.sequence)

    def _open(self, request: GenerationRequest, sampler: Sampler, first: int, seed: int, run: int) -> TokenSource:
        if self._step is None or why_not_on_device(request.sampling) is not None:
            return SynchronousTokens(lambda token: self._feed(token, run), sampler)
        room = self._cache.max_seq_len - len(request.prompt_ids)
        tokens = room if request.max_new_tokens is None else min(room, request.max_new_tokens)
        draws = DeviceDraws(request.sampling, seed, index=1)
        return RunAheadTokens(self._step, self._cache, [*request.prompt_ids, first], draws, most=tokens - 1)

    def _decode(
        self, request: GenerationRequest, source: TokenSource, token: int, clock: AnswerClock, answer: _Answer
    ) -> Iterator[TextDelta]:
        """Text of `token` and of all that follow it, until there is a reason to end."""
        stop_ids = self._stop_ids | {stop for stop in request.stop if isinstance(stop, int)}
        before = request.prompt_ids[len(request.prompt_ids) - request.begun :]
        stops = [stop for stop in request.stop if isinstance(stop, str)]
        stream = TextStream(self._tokenizer.decode, stops, before=before)
        while token not in stop_ids:
            clock.token()
            answer.ids.append(token)
            text = stream.push(token)
            answer.shown.append(text)
            answer.reason = "stop_string" if stream.stopped else self._limit(request, len(answer.ids))
            if answer.reason is None:
                source.go_on()
            yield TextDelta(text, (token,))
            answer.reason = answer.reason or self._limit(request, len(answer.ids))
            if answer.reason is not None:
                break
            token = self._explained(source.follow, token)
        else:
            answer.reason = "stop_token"
        rest = stream.finish()
        if rest:
            answer.shown.append(rest)
            yield TextDelta(rest)

    def _limit(self, request: GenerationRequest, new_tokens: int) -> FinishReason | None:
        """Why the answer must end before another token, if it must."""
        if self._cancelled.is_set():
            return "cancelled"
        if request.max_new_tokens is not None and new_tokens >= request.max_new_tokens:
            return "max_new_tokens"
        if len(request.prompt_ids) + new_tokens >= self._cache.max_seq_len:
            return "context_full"
        return None

    def _prefill(self, request: GenerationRequest, run: int) -> Iterator[tuple[PrefillProgress, Tensor | None]]:
        """Computes what the cache does not hold, chunk by chunk; logits come with the last chunk.

        Of the prompt that was asked last the logits are still there: a second answer to it starts at once, and from the
        same numbers to the last bit. Of any other, the last token is computed at least.
        """
        self._check_newest(run)
        prompt, last = list(request.prompt_ids), self._last_prompt
        most = len(prompt) if prompt == last.ids else len(prompt) - 1
        cached = done = self._begin(prompt, most, request.owner)
        yield PrefillProgress(done, len(prompt), cached), last.logits if done == len(prompt) else None
        while done < len(prompt) and not self._cancelled.is_set():
            chunk = prompt[done : done + self._prefill_chunk]
            self._check_newest(run)
            self._cache.reserve(done + len(chunk))
            logits = self._compute(chunk, run)
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

    def _feed(self, token: int, run: int) -> Tensor:
        self._check_newest(run)
        self._cache.reserve(len(self._cache) + 1)
        return self._compute([token], run)

    def _check_newest(self, run: int) -> None:
        if run != self._run:
            raise RequestError("this answer was ended by a newer request to the same engine")

    def _compute(self, ids: list[int], run: int) -> Tensor:
        """Runs new tokens through the decoder and adds them to the cache; float32 logits `[vocab]` of the last."""
        return self._feed_all(ids, run, lambda new, start: self._transformer.forward(new, self._cache, start=start))[-1]

    def _feed_all(self, ids: list[int], run: int, compute: Callable[[Tensor, int], _Computed]) -> _Computed:
        """What `compute` makes of new tokens, which stores them; takes ids on the device and the first one's place."""
        self._check_newest(run)
        inputs = torch.tensor(ids, device=self._transformer.device)
        try:
            computed = compute(inputs, len(self._cache))
        except torch.OutOfMemoryError as error:
            free = free_memory(self._transformer.device) / 2**30
            raise ModelError(
                f"no memory to compute {len(ids):,} tokens at once ({free:.2f} GiB are free beside weights and cache); "
                "load with a smaller --context or --kv-cache q4"
            ) from error
        self._cache.extend(ids)
        return computed

    def _note_prefill(self, clock: AnswerClock) -> None:
        if self._archive is not None:
            self._archive.note_prefill(*clock.computed())

    def _explained(self, compute: Callable[[_Given], _Computed], given: _Given) -> _Computed:
        """What comes of it; logits that are no numbers are told in one line."""
        try:
            return compute(given)
        except NotNumbersError as error:
            raise ModelError(f"{error}; the weights are damaged or overflow in {self._transformer.dtype}") from error

    def _check(self, request: GenerationRequest) -> None:
        self._check_ids(request.prompt_ids)
        if request.max_new_tokens is not None and request.max_new_tokens < 0:
            raise RequestError(f"max_new_tokens is {request.max_new_tokens}; it cannot be negative")
        if not 0 <= request.begun <= len(request.prompt_ids):
            raise RequestError(f"begun is {request.begun}; it must be from 0 to {len(request.prompt_ids):,}")

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


@dataclass(slots=True)
class _Answer:
    """What has been generated so far, and why no more."""

    ids: list[int] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    reason: FinishReason | None = None
