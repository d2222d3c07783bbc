"""How fast answers come side by side: so many of unlike prompts at once, every second one drawn with all samplers."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from exlchat.engine.bench.figures import BenchSettings, Figure, Result, RowRoom, Skipped
from exlchat.engine.bench.measure import Loader, Say, cache_types, described, repeated
from exlchat.engine.kv.budget import tokens_held
from exlchat.engine.kv.sizes import cache_kind, pages_of
from exlchat.engine.local_engine import LocalEngine
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import choose_device, usable_memory
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.info import ModelError
from exlchat.llm.port import Failed
from exlchat.llm.request import GenerationRequest, Rank
from exlchat.llm.sampling import GREEDY

NEW_TOKENS = {"cuda": 128, "cpu": 16}
"""Of each row, by the kind of device, unless it is said."""
_SPARE = 0.9
"""Of the memory that weights leave, what may be pages: rows need some beside theirs."""


def batch_benchmark(
    open_model: Callable[[], Checkpoint], settings: BenchSettings, say: Say, *, build_cache: Path | None = None
) -> Iterator[Result]:
    """Measures `settings.rows` rows of each context in each type of cache. Arguments and errors as of `benchmark`."""
    device = choose_device(settings.device)
    checkpoint = open_model()
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    loader = Loader(open_model, settings, device, say, build_cache)
    first = True
    for kv_cache in cache_types(device, spec.head_dim, settings.kv_caches):
        for context in settings.contexts:
            yield from _Batches(loader, spec, kv_cache, context).run(first=first)
            first = False
            # As in `benchmark`.
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class _Rates:
    """Tokens a second of all rows, and of the slowest."""

    total: float
    slowest: float


class _Batches:
    """Of one type of cache and one context."""

    def __init__(self, loader: Loader, spec: ModelSpec, kv_cache: str, context: int) -> None:
        self._loader, self._spec, self._settings = loader, spec, loader.settings
        self._kv_cache, self._context = kv_cache, context
        self._new_tokens = loader.settings.new_tokens or NEW_TOKENS[loader.device.type]
        self._row = context + self._new_tokens
        self._ids = random.Random(0)

    def run(self, *, first: bool) -> Iterator[Result]:
        if self._row > self._spec.longest_context:
            yield Skipped(f"rows of {self._context:,} tokens: the context is {self._spec.longest_context:,}")
            return
        engine, _, made = self._loader.load(self._kv_cache, self._row, self._row)
        if first:
            yield from described(engine, self._loader.say, made=made)
        held = self._held(engine)
        yield RowRoom(self._kv_cache, self._context, held)
        fit = [rows for rows in self._settings.rows if rows <= held]
        if len(fit) < len(self._settings.rows):
            names = ", ".join(f"{rows:,}" for rows in self._settings.rows if rows > held)
            yield Skipped(f"{names} rows of {self._row:,} tokens, {self._kv_cache} cache: {held:,} fit")
        if not fit:
            return
        engine.unload()
        engine, *_ = self._loader.load(self._kv_cache, self._row, fit[-1] * self._pages * PAGE_TOKENS)
        for rows in fit:
            yield self._figure(engine, rows)
        engine.unload()

    @property
    def _pages(self) -> int:
        """Of a row; one more has to be there for each, or the last of them waits: see `schedule.admission`."""
        return pages_of(self._row) + 1

    def _held(self, engine: LocalEngine) -> int:
        room = sum(map(usable_memory, self._loader.devices)) + engine.footprint.cache
        tokens = tokens_held(self._spec, cache_kind(self._spec, self._kv_cache), self._row, int(_SPARE * room))
        return tokens // (self._pages * PAGE_TOKENS)

    def _figure(self, engine: LocalEngine, rows: int) -> Figure:
        prompts = [self._ids.choices(range(engine.info.vocab_size), k=self._context) for _ in range(rows)]
        found: list[_Rates] = []

        def sample() -> float:
            found.append(self._answered(engine, prompts))
            return found[-1].total

        # The run that is not counted is the one that reads the prompts.
        what = f"{rows} rows at {self._context:,}, {self._kv_cache} cache"
        samples = repeated(self._settings, self._loader.say, what, sample, keep_a_slow_first=False)
        footprint = engine.footprint
        read = footprint.weights_per_token / rows + footprint.cache_per_token * (self._context + self._new_tokens / 2)
        slowest = sorted(one.slowest for one in found[-len(samples) :])[len(samples) // 2]
        return Figure("batch", self._kv_cache, self._context, tuple(samples), read, rows=rows, slowest=slowest)

    def _answered(self, engine: LocalEngine, prompts: list[list[int]]) -> _Rates:
        """One answer to each, all asked for at once."""
        rows = [_Row() for _ in prompts]
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
            sampling = self._settings.sampling if number % 2 else GREEDY
            wanted = GenerationRequest(prompt, sampling, max_new_tokens=self._new_tokens, seed=number, rank=Rank.BULK)
            engine.submit(wanted, row.take)
        for row in rows:
            row.ended.wait()
        if any(row.tokens != self._new_tokens for row in rows):
            raise ModelError(f"{engine.info.name}: an answer of {self._new_tokens} tokens ended too early")
        begun, over = max(row.times[0] for row in rows), min(row.times[-1] for row in rows)
        if begun >= over:
            # They did not run all at once.
            begun, over = min(row.times[0] for row in rows), max(row.times[-1] for row in rows)
        rates = [row.within(begun, over) / (over - begun) for row in rows]
        return _Rates(sum(rates), min(rates))


class _Row:
    """What came of one answer, and when. Taken in the engine's thread."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.tokens = 0
        self.times: list[float] = []
        self._came: list[int] = []

    def take(self, event: object) -> None:
        if isinstance(event, TextDelta):
            self.times.append(time.perf_counter())
            self._came.append(len(event.token_ids))
        elif isinstance(event, Finished | Failed):
            if isinstance(event, Finished):
                self.tokens = event.stats.new_tokens
            self.ended.set()

    def within(self, begun: float, over: float) -> int:
        """Tokens behind the one moment, up to the other."""
        return sum(many for at, many in zip(self.times, self._came, strict=True) if begun < at <= over)
