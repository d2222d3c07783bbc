"""The measurements: a model is loaded once for each type of cache and asked through the public generator.

Prompts are random ids. Every figure is taken several times after one run that is not counted; all samples are kept.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from exlchat.engine.architecture import read_spec
from exlchat.engine.bench.figures import BenchSettings, Figure, Memory, Model, Result, Skipped, fitting
from exlchat.engine.bench.probes import MemoryProbe, describe_setting
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.engine import Engine, load
from exlchat.engine.events import Finished, GenerationRequest, GenerationStats, LoadProgress, ModelError
from exlchat.engine.kv_cache import CACHE_DTYPES
from exlchat.engine.placement import choose_device
from exlchat.engine.sampling_settings import GREEDY, SamplingSettings

Say = Callable[[str], None]

_NEW_TOKENS = {"cuda": 128, "cpu": 32}
# Full precision is the CPU's, whose half-precision arithmetic is slow; a GPU's kernels read half precision.
_AUTO_CACHE = {"cuda": "fp16", "cpu": "fp32"}
_NOT_MEANT_FOR = {"cuda": ("fp32",), "cpu": ()}


class EndlessCheckpoint(Checkpoint):
    """A model directory read as if it named no EOS, so that an answer has as many tokens as were asked for."""

    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """A JSON object of the directory, without the keys that name an EOS."""
        content = super().read_json(name, required=required)
        return {key: value for key, value in content.items() if key not in ("eos_token_id", "eos_token")}


def cache_types(device: torch.device, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The types of cache to measure.

    Raises:
        ModelError: one of them does not exist.
    """
    meant = [kind for kind in CACHE_DTYPES if kind not in _NOT_MEANT_FOR[device.type]]
    kinds: list[str] = []
    for kind in wanted:
        if kind not in (*CACHE_DTYPES, "auto", "all"):
            raise ModelError(f"kv_cache {kind!r} is not known; there are {', '.join(CACHE_DTYPES)}, auto and all")
        kinds += {"auto": [_AUTO_CACHE[device.type]], "all": meant}.get(kind, [kind])
    return tuple(dict.fromkeys(kinds))


def benchmark(open_model: Callable[[], Checkpoint], settings: BenchSettings, say: Say) -> Iterator[Result]:
    """Measures, and yields every result as soon as it is there. The setting and the model come first.

    Args:
        open_model: opens or makes the model; called once for each type of cache.
        settings: what to measure.
        say: told in a few words what is measured now.

    Raises:
        ModelError: the model cannot be loaded or run; what was yielded before stands.
    """
    device = choose_device(settings.device)
    for number, kv_cache in enumerate(cache_types(device, settings.kv_caches)):
        yield from _Bench(open_model, settings, device, kv_cache, say).run(first=number == 0)
        # The engine of this type is gone with the object above; a graph's memory only goes with the collector.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


class _Bench:
    """One model with one type of cache."""

    def __init__(
        self,
        open_model: Callable[[], Checkpoint],
        settings: BenchSettings,
        device: torch.device,
        kv_cache: str,
        say: Say,
    ) -> None:
        self._settings = settings
        self._kv_cache = kv_cache
        self._say = say
        self._new_tokens = settings.new_tokens or _NEW_TOKENS[device.type]
        self._probe = MemoryProbe(device)
        self._probe.restart()
        self._made = False
        self._load_seconds = 0.0
        self._engine = self._load(open_model, device)
        self._load_peak = self._probe.peak
        self._longest = self._engine.info.max_seq_len
        self._ids = random.Random(0)

    def run(self, *, first: bool) -> Iterator[Result]:
        """All results of this cache; what is the same for every cache only the first time."""
        if first:
            self._say("copy bandwidth")
            yield describe_setting(torch.device(self._engine.info.device))
            yield self._model()
        self._probe.restart()
        yield Figure("load", self._kv_cache, 0, (self._load_seconds,))
        fit, too_long = fitting(self._settings.contexts, self._new_tokens, self._longest)
        if first and too_long:
            names = ", ".join(f"{context:,}" for context in too_long)
            yield Skipped(f"{names} and {self._new_tokens} new tokens: the context is {self._longest:,}")
        for context in fit:
            if first:
                yield self._prefill(context)
            yield from self._decode(context, with_samplers=context == fit[0])
        yield from self._turn()
        yield Memory(self._kv_cache, self._engine.footprint, self._load_peak, self._probe.peak, self._probe.device_used)

    def _load(self, open_model: Callable[[], Checkpoint], device: torch.device) -> Engine:
        def on_progress(progress: LoadProgress) -> None:
            self._say(f"{progress.what}: {100 * progress.done // max(progress.total, 1)} %")

        self._say("opening the model")
        start = time.perf_counter()
        checkpoint = open_model()
        self._made = isinstance(checkpoint, RandomCheckpoint)
        spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
        settings = self._settings
        wanted = max(
            *(context + self._new_tokens for context in settings.contexts), settings.turn_cached + settings.turn_new + 1
        )
        engine = load(
            checkpoint,
            device=str(device),
            kv_cache=self._kv_cache,
            max_seq_len=min(wanted, spec.max_position_embeddings),
            on_progress=on_progress,
        )
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        self._load_seconds = time.perf_counter() - start
        return engine

    def _model(self) -> Model:
        info = self._engine.info
        return Model(info.name, info.quantization, info.parameters, info.dtype, info.max_seq_len, self._made)

    def _prefill(self, tokens: int) -> Figure:
        """Tokens a second until the first token of the answer is there, nothing of the prompt cached."""

        def sample() -> float:
            stats = self._answer(self._random_ids(tokens), 1)
            return tokens / stats.time_to_first_token

        return Figure("prefill", self._kv_cache, tokens, tuple(self._repeat(f"prefill of {tokens:,}", sample)))

    def _decode(self, context: int, *, with_samplers: bool) -> Iterator[Figure]:
        """Greedy, and in turn with it, so that both see the same machine, with all samplers."""
        prompt = self._random_ids(context)
        footprint = self._engine.footprint
        # A token reads the cache up to itself; in the middle of the run that is half of the new ones.
        read = footprint.weights_per_token + footprint.cache_per_token * (context + self._new_tokens / 2)
        sampled: list[float] = []

        def sample() -> float:
            if with_samplers:
                sampled.append(self._answer(prompt, self._new_tokens, self._settings.sampling).tokens_per_second)
            return self._answer(prompt, self._new_tokens).tokens_per_second

        greedy = tuple(self._repeat(f"decode at {context:,}, {self._kv_cache} cache", sample))
        yield Figure("decode", self._kv_cache, context, greedy, read)
        if with_samplers:
            yield Figure("sampled", self._kv_cache, context, tuple(sampled[-len(greedy) :]), read)

    def _turn(self) -> Iterator[Result]:
        """Seconds to the first token of a short turn on top of what the cache holds."""
        settings = self._settings
        cached = settings.turn_cached
        while cached + settings.turn_new + 1 > self._longest and cached > 1:
            cached //= 2
        if cached + settings.turn_new + 1 > self._longest:
            yield Skipped(f"a turn of {settings.turn_new} tokens: the context is {self._longest:,}")
            return
        before = self._random_ids(cached)

        def sample() -> float:
            stats = self._answer(before + self._random_ids(settings.turn_new), 1)
            return stats.time_to_first_token

        # The run that is not counted is the one that fills the cache.
        samples = tuple(self._repeat(f"turn of {settings.turn_new} on {cached:,}", sample, keep_a_slow_first=False))
        yield Figure("turn", self._kv_cache, cached, samples)

    def _repeat(self, what: str, sample: Callable[[], float], *, keep_a_slow_first: bool = True) -> list[float]:
        """The samples of one figure. A first run that takes most of the time there is stays the only one."""
        settings = self._settings
        start = time.perf_counter()
        samples: list[float] = []
        for run in range(settings.runs + 1):
            elapsed = time.perf_counter() - start
            enough = 1 if keep_a_slow_first else 2
            if len(samples) >= enough and elapsed + elapsed / run > settings.seconds:
                break
            self._say(f"{what}: " + (f"run {run} of {settings.runs}" if run else "warming up"))
            samples.append(sample())
        return samples[1:] or samples

    def _answer(self, prompt: list[int], new_tokens: int, sampling: SamplingSettings = GREEDY) -> GenerationStats:
        request = GenerationRequest(prompt, sampling, max_new_tokens=new_tokens, seed=1)
        *_, last = self._engine.generate(request)
        if not isinstance(last, Finished) or last.stats.new_tokens != new_tokens:
            raise ModelError(f"{self._engine.info.name}: an answer of {new_tokens} tokens ended too early")
        return last.stats

    def _random_ids(self, count: int) -> list[int]:
        return self._ids.choices(range(self._engine.info.vocab_size), k=count)


def open_folder(path: Path) -> Checkpoint:
    """A model directory whose answers do not end by themselves."""
    return EndlessCheckpoint(path)
