"""The streaming single-stream generator: prefill, decode, events, cancel."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from threading import Event as Flag

import torch
from torch import Tensor

from exlchat.engine.events import (
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
from exlchat.engine.sampling import Sampler
from exlchat.engine.text_stream import TextStream
from exlchat.engine.tokenizer import Tokenizer
from exlchat.engine.transformer import Transformer


class Generator:
    """Answers one request at a time; a new request ends an iterator that was left unfinished.

    Args:
        transformer, tokenizer, cache: of one model.
        stop_ids: the model's own.
        prefill_chunk: prompt tokens computed between two looks at the cancel flag.
    """

    def __init__(
        self,
        transformer: Transformer,
        tokenizer: Tokenizer,
        cache: KVCache,
        stop_ids: tuple[int, ...],
        prefill_chunk: int,
    ) -> None:
        self._transformer = transformer
        self._tokenizer = tokenizer
        self._cache = cache
        self._stop_ids = frozenset(stop_ids)
        self._prefill_chunk = prefill_chunk
        self._cancelled = Flag()
        self._run = 0

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
        return self._answer(request, self._run)

    def _answer(self, request: GenerationRequest, run: int) -> Iterator[Event]:
        clock = _Clock(request, secrets.randbits(63) if request.seed is None else request.seed)
        logits: Tensor | None = None
        for progress, chunk_logits in self._prefill(list(request.prompt_ids), run):
            clock.cached = progress.cached
            yield progress
            logits = chunk_logits
        clock.prefilled()
        sampler = Sampler(request.sampling, clock.seed)
        stop_ids = self._stop_ids | {stop for stop in request.stop if isinstance(stop, int)}
        stream = TextStream(self._tokenizer.decode, [stop for stop in request.stop if isinstance(stop, str)])
        ids: list[int] = []
        shown: list[str] = []
        reason: FinishReason | None = None
        while reason is None:
            reason = self._limit(request, len(ids))
            if logits is None or reason is not None:
                break
            token = self._sample(sampler, logits)
            if token in stop_ids:
                reason = "stop_token"
                break
            clock.token()
            ids.append(token)
            text = stream.push(token)
            shown.append(text)
            yield TextDelta(text, (token,))
            if stream.stopped:
                reason = "stop_string"
            elif self._limit(request, len(ids)) is None:
                logits = self._step(token, run)
        rest = stream.finish()
        if rest:
            shown.append(rest)
            yield TextDelta(rest)
        yield Finished(reason or "cancelled", clock.stats(), "".join(shown), tuple(ids))

    def _limit(self, request: GenerationRequest, new_tokens: int) -> FinishReason | None:
        """Why the answer must end before another token, if it must."""
        if self._cancelled.is_set():
            return "cancelled"
        if request.max_new_tokens is not None and new_tokens >= request.max_new_tokens:
            return "max_new_tokens"
        if len(request.prompt_ids) + new_tokens >= self._cache.max_seq_len:
            return "context_full"
        return None

    def _prefill(self, prompt: list[int], run: int) -> Iterator[tuple[PrefillProgress, Tensor | None]]:
        """Computes what the cache does not hold, chunk by chunk; logits come with the last chunk."""
        cached = done = self._cache.reuse(prompt)
        self._cache.reserve(len(prompt))
        yield PrefillProgress(done, len(prompt), cached), None
        while done < len(prompt) and not self._cancelled.is_set():
            chunk = prompt[done : done + self._prefill_chunk]
            logits = self._compute(chunk, run)
            done += len(chunk)
            yield PrefillProgress(done, len(prompt), cached), logits if done == len(prompt) else None

    def _step(self, token: int, run: int) -> Tensor:
        self._cache.reserve(len(self._cache) + 1)
        return self._compute([token], run)

    def _compute(self, ids: list[int], run: int) -> Tensor:
        """Runs new tokens through the decoder and adds them to the cache; float32 logits `[vocab]` of the last."""
        if run != self._run:
            raise RequestError("this answer was ended by a newer request to the same engine")
        inputs = torch.tensor(ids, device=self._transformer.device)
        try:
            logits = self._transformer.forward(inputs, self._cache, start=len(self._cache))
        except torch.OutOfMemoryError as error:
            raise ModelError(f"no memory for {len(ids)} more tokens; load with a smaller --context") from error
        self._cache.ids += ids
        return logits[-1]

    def _sample(self, sampler: Sampler, logits: Tensor) -> int:
        try:
            return sampler.draw(logits)
        except ValueError as error:
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


class _Clock:
    """Counts and times of one answer."""

    def __init__(self, request: GenerationRequest, seed: int) -> None:
        self.seed = seed
        self.cached = 0
        self._prompt_tokens = len(request.prompt_ids)
        self._start = time.perf_counter()
        self._prefill_end = self._first = self._last = 0.0
        self._tokens = 0

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
        )
