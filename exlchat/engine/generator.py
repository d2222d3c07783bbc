"""The streaming single-stream generator: prefill, decode, events, cancel."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from threading import Event as Flag
from typing import TypeVar

import torch
from torch import Tensor

from exlchat.engine.events import (
    DecodePath,
    Event,
    Finished,
    FinishReason,
    GenerationRequest,
    GenerationStats,
    ModelError,
    PrefillProgress,
    RequestError,
    TextDelta,
)
from exlchat.engine.kv_cache import KVCache
from exlchat.engine.pages.archive import PageArchive
from exlchat.engine.placement import free_memory
from exlchat.engine.run_ahead import DecodeStep, RunAheadTokens
from exlchat.engine.sampling import NotNumbersError, Sampler
from exlchat.engine.text_stream import TextStream
from exlchat.engine.token_source import SynchronousTokens, TokenSource
from exlchat.engine.tokenizer import Tokenizer
from exlchat.engine.transformer import Transformer

_Given = TypeVar("_Given")


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
        self._cancelled.clear()
        self._run += 1
        if self._source is not None:
            self._source.close()
        return self._answer(request, self._run)

    def _answer(self, request: GenerationRequest, run: int) -> Iterator[Event]:
        clock = _Clock(request, secrets.randbits(63) if request.seed is None else request.seed)
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
            first = self._draw(sampler.draw, logits)
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
        if self._step is None:
            return SynchronousTokens(lambda token: self._feed(token, run), sampler)
        room = self._cache.max_seq_len - len(request.prompt_ids)
        tokens = room if request.max_new_tokens is None else min(room, request.max_new_tokens)
        return RunAheadTokens(self._step, self._cache, first, request.sampling, seed=seed, most=tokens - 1)

    def _decode(
        self, request: GenerationRequest, source: TokenSource, token: int, clock: _Clock, answer: _Answer
    ) -> Iterator[TextDelta]:
        """Text of `token` and of all that follow it, until there is a reason to end."""
        stop_ids = self._stop_ids | {stop for stop in request.stop if isinstance(stop, int)}
        stream = TextStream(self._tokenizer.decode, [stop for stop in request.stop if isinstance(stop, str)])
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
            token = self._draw(source.follow, token)
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
        self._cache.clear()
        if self._archive is not None:
            self._archive.restore(prompt, most, self._cancelled.is_set)
        cached = done = self._cache.begin(prompt, most=most, owner=request.owner)
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

    def _feed(self, token: int, run: int) -> Tensor:
        self._check_newest(run)
        self._cache.reserve(len(self._cache) + 1)
        return self._compute([token], run)

    def _check_newest(self, run: int) -> None:
        if run != self._run:
            raise RequestError("this answer was ended by a newer request to the same engine")

    def _compute(self, ids: list[int], run: int) -> Tensor:
        """Runs new tokens through the decoder and adds them to the cache; float32 logits `[vocab]` of the last."""
        self._check_newest(run)
        inputs = torch.tensor(ids, device=self._transformer.device)
        try:
            logits = self._transformer.forward(inputs, self._cache, start=len(self._cache))
        except torch.OutOfMemoryError as error:
            free = free_memory(self._transformer.device) / 2**30
            raise ModelError(
                f"no memory to compute {len(ids):,} tokens at once ({free:.2f} GiB are free beside weights and cache); "
                "load with a smaller --context or --kv-cache q4"
            ) from error
        self._cache.extend(ids)
        return logits[-1]

    def _note_prefill(self, clock: _Clock) -> None:
        if self._archive is not None:
            self._archive.note_prefill(*clock.computed())

    def _draw(self, draw: Callable[[_Given], int], given: _Given) -> int:
        try:
            return draw(given)
        except NotNumbersError as error:
            raise ModelError(f"{error}; the weights are damaged or overflow in {self._transformer.dtype}") from error

    def _check(self, request: GenerationRequest) -> None:
        length, vocab = len(request.prompt_ids), self._transformer.spec.vocab_size
        if length == 0:
            raise RequestError("the prompt is empty; it needs at least one token")
        if length > self._cache.max_seq_len:
            raise RequestError(
                f"the prompt has {length:,} tokens and the context holds {self._cache.max_seq_len:,}; "
                "shorten it or load with a larger --context"
            )
        wrong = next((token for token in request.prompt_ids if not 0 <= token < vocab), None)
        if wrong is not None:
            raise RequestError(f"the prompt holds id {wrong}, but the model has {vocab:,} embeddings")
        if request.max_new_tokens is not None and request.max_new_tokens < 0:
            raise RequestError(f"max_new_tokens is {request.max_new_tokens}; it cannot be negative")


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


class _Clock:
    """Counts and times of one answer."""

    def __init__(self, request: GenerationRequest, seed: int) -> None:
        self.seed = seed
        self.cached = 0
        self.path: DecodePath = "synchronous"
        self._prompt_tokens = len(request.prompt_ids)
        self._start = time.perf_counter()
        self._found = self._prefill_end = self._first = self._last = 0.0
        self._tokens = 0

    def looked_up(self, cached: int) -> None:
        """So much of the prompt was cached; computing the rest begins."""
        self.cached = cached
        self._found = self._found or time.perf_counter()

    def computed(self) -> tuple[int, float]:
        """Tokens of the prompt that were computed, and seconds until now."""
        return self._prompt_tokens - self.cached, time.perf_counter() - self._found

    def prefilled(self) -> None:
        self._prefill_end = time.perf_counter()

    def token(self) -> None:
        """A token of the answer was sampled."""
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self._tokens += 1

    def stats(self) -> GenerationStats:
        return GenerationStats(
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self.cached,
            new_tokens=self._tokens,
            time_to_first_token=self._first - self._start if self._first else 0.0,
            prefill_seconds=self._prefill_end - self._start,
            decode_seconds=self._last - self._first,
            seed=self.seed,
            decode_path=self.path,
        )
