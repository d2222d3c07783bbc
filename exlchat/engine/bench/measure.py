"""The measurements: a model is loaded once for each type of cache and asked through the public generator.

Prompts are random ids. Every figure is taken several times after one run that is not counted; all samples are kept.
Beside them: what the machine is, how fast its memory copies, and how much memory this process takes.
"""

from __future__ import annotations

import gc
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exlchat import __version__
from exlchat.engine.bench.figures import (
    BenchMachine,
    BenchSettings,
    Figure,
    FigureKind,
    Memory,
    Model,
    Result,
    Skipped,
    fitting,
)
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.card_choice import choose_devices
from exlchat.engine.engine import load
from exlchat.engine.formats.inventory import is_quantized
from exlchat.engine.loading import open_extension
from exlchat.engine.local_engine import LocalEngine
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.placement import card_memory, choose_device, free_memory
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.events import Finished, GenerationStats
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.request import GenerationRequest
from exlchat.llm.sampling import GREEDY, SamplingSettings

_COPY_BYTES = {"cuda": 2**31, "cpu": 2**29}
# On a GPU the wait at the end takes some 20 us, and one such copy a millisecond.
_COPIES_A_RUN = {"cuda": 8, "cpu": 1}
_COPY_RUNS = 10


def describe_setting(devices: Sequence[torch.device]) -> BenchMachine:
    """Names and versions, and the copy bandwidth of the first measured now with the threads that torch has now."""
    device, cuda = devices[0], devices[0].type == "cuda"
    return BenchMachine(
        device=", ".join(map(str, devices)),
        device_name=" + ".join(map(torch.cuda.get_device_name, devices)) if cuda else _processor(),
        threads=torch.get_num_threads(),
        exlchat=__version__,
        torch=torch.__version__,
        cuda=torch.version.cuda if cuda else None,
        python=sys.version.split()[0],
        system=f"{platform.system()} {platform.release()}",
        copy_rates=copy_rates(device),
    )


def copy_rates(device: torch.device) -> tuple[float, ...]:
    """Bytes a second of copies far larger than any cache, read and written bytes counted; the first run is dropped."""
    size = min(_COPY_BYTES[device.type], free_memory(device) // 8)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    copies = _COPIES_A_RUN[device.type]
    seconds = []
    for _ in range(_COPY_RUNS + 1):
        start = time.perf_counter()
        for _ in range(copies):
            target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    del source, target
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return tuple(2 * size * copies / run for run in seconds[1:])


class MemoryProbe:
    """The most memory taken since `restart`: allocated by torch on GPUs, resident in the process on a CPU."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._cards = [device for device in devices if device.type == "cuda"]

    def restart(self) -> None:
        """The peak begins anew at what is taken now."""
        for card in self._cards:
            torch.cuda.reset_peak_memory_stats(card)
        if not self._cards:
            # 5 resets the peak resident size of this process (Linux, Documentation/filesystems/proc.rst).
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    @property
    def peak(self) -> int:
        """Bytes."""
        if self._cards:
            return sum(map(torch.cuda.max_memory_allocated, self._cards))
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
        return int(found[1]) * 1024 if found else 0

    @property
    def device_used(self) -> int | None:
        """Bytes of GPUs that are taken in all, whoever took them."""
        if not self._cards:
            return None
        return sum(card_memory(card)[0] for card in self._cards)


def _processor() -> str:
    found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    return f"{found[1] if found else platform.machine()}, {os.cpu_count()} cores"


Say = Callable[[str], None]

_NEW_TOKENS = {"cuda": 128, "cpu": 32}
# Full precision is the CPU's, whose half-precision arithmetic is slow; a GPU's kernels read half precision.
_AUTO_CACHE = {"cuda": "fp16", "cpu": "fp32"}
_NOT_MEANT_FOR = {"cuda": ("fp32",), "cpu": ()}


class EndlessCheckpoint(Checkpoint):
    """A model directory read as if it named no EOS, so that an answer has as many tokens as were asked for."""

    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        content = super().read_json(name, required=required)
        return {key: value for key, value in content.items() if key not in ("eos_token_id", "eos_token")}


def cache_types(device: torch.device, head_dim: int, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The types of cache to measure; `all` are those that are meant for the device and fit the model's heads.

    Raises:
        ModelError: one of them does not exist.
    """
    meant = [name for name, kind in KINDS.items() if name not in _NOT_MEANT_FOR[device.type] and kind.fits(head_dim)]
    kinds: list[str] = []
    for kind in wanted:
        if kind not in (*KINDS, "auto", "all"):
            raise ModelError(f"kv_cache {kind!r} is not known; there are {', '.join(KINDS)}, auto and all")
        kinds += {"auto": [_AUTO_CACHE[device.type]], "all": meant}.get(kind, [kind])
    return tuple(dict.fromkeys(kinds))


def benchmark(
    open_model: Callable[[], Checkpoint], settings: BenchSettings, say: Say, *, build_cache: Path | None = None
) -> Iterator[Result]:
    """Measures, and yields every result as soon as it is there. The setting and the model come first.

    Args:
        open_model: opens or makes the model; called again for each type of cache.
        settings: what to measure.
        say: told in a few words what is measured now.
        build_cache: as for `load`.

    Raises:
        ModelError: the model cannot be loaded or run; what was yielded before stands.
    """
    device = choose_device(settings.device)
    checkpoint = open_model()
    head_dim = read_spec(checkpoint.config, str(checkpoint.path / "config.json")).head_dim
    for number, kv_cache in enumerate(cache_types(device, head_dim, settings.kv_caches)):
        loader = Loader(open_model, settings, device, say, build_cache)
        yield from _Bench(loader, settings, device, kv_cache, say).run(first=number == 0)
        # The engine of this type is gone with the object above; a graph's memory only goes with the collector.
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class Loader:
    """Opens the model and loads it. `made` says whether its weights were made rather than read."""

    open_model: Callable[[], Checkpoint]
    settings: BenchSettings
    device: torch.device
    say: Say
    build_cache: Path | None

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All that the model may lie on; one unless cards were named."""
        return choose_devices(self._name, self.settings.cards)

    @property
    def _name(self) -> str:
        cards = self.settings.cards
        many = cards.cards or (cards.tensor_parallel > 1 and self.device.type == "cuda")
        return "cuda" if many else str(self.device)

    def load(self, kv_cache: str, context: int, cache_tokens: int) -> tuple[LocalEngine, float, bool]:
        """An engine, no larger than what is measured, the seconds that took, and whether its weights were made.

        Args:
            context: of one conversation; less where the model has less.
            cache_tokens: of all of them.
        """
        self.say("opening the model")
        start = time.perf_counter()
        checkpoint = self.open_model()
        seconds = time.perf_counter() - start
        wanted = is_quantized(checkpoint) or self.settings.quantize_head is not None
        if self.settings.extension and self.device.type == "cuda" and wanted:
            # Compiling, which happens once on a machine, is no part of loading.
            open_extension(self.devices, self.build_cache, self._on_progress)
        start = time.perf_counter()
        spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
        context = min(spec.max_position_embeddings, context)
        engine = load(
            checkpoint,
            device=self._name,
            cards=self.settings.cards,
            kv_cache=kv_cache,
            max_seq_len=context,
            cache_tokens=max(cache_tokens, context),
            extension=self.settings.extension,
            quantize_head=self.settings.quantize_head,
            build_cache=self.build_cache,
            dependent_launch=self.settings.dependent_launch,
            on_progress=self._on_progress,
        )
        for card in self.devices:
            if card.type == "cuda":
                torch.cuda.synchronize(card)
        return engine, seconds + time.perf_counter() - start, isinstance(checkpoint, RandomCheckpoint)

    def _on_progress(self, progress: LoadProgress) -> None:
        self.say(f"{progress.what}: {100 * progress.done // max(progress.total, 1)} %")


def described(engine: LocalEngine, say: Say, *, made: bool) -> Iterator[Result]:
    """The machine, whose memory is measured for it, and the model."""
    say("copy bandwidth")
    yield describe_setting([torch.device(name) for name in engine.info.device.split(", ")])
    info = engine.info
    yield Model(info.name, info.quantization, info.parameters, info.dtype, info.max_seq_len, made, info.notices)


def repeated(
    settings: BenchSettings, say: Say, what: str, sample: Callable[[], float], *, keep_a_slow_first: bool = True
) -> list[float]:
    """The samples of one figure. A first run that takes most of the time there is stays the only one."""
    start = time.perf_counter()
    samples: list[float] = []
    for run in range(settings.runs + 1):
        elapsed = time.perf_counter() - start
        enough = 1 if keep_a_slow_first else 2
        if len(samples) >= enough and elapsed + elapsed / run > settings.seconds:
            break
        say(f"{what}: " + (f"run {run} of {settings.runs}" if run else "warming up"))
        samples.append(sample())
    return samples[1:] or samples


class _Bench:
    def __init__(self, loader: Loader, settings: BenchSettings, device: torch.device, kv_cache: str, say: Say) -> None:
        self._settings = settings
        self._kv_cache = kv_cache
        self._say = say
        self._new_tokens = settings.new_tokens or _NEW_TOKENS[device.type]
        self._probe = MemoryProbe(loader.devices)
        self._probe.restart()
        longest_turn = settings.turn_cached + settings.turn_new + 1
        # No longer, so that the cache that is counted is one that is used.
        context = max(longest_turn, max(settings.contexts) + self._new_tokens)
        self._engine, self._load_seconds, self._made = loader.load(kv_cache, context, 0)
        self._load_peak = self._probe.peak
        self._longest = self._engine.info.max_seq_len
        self._ids = random.Random(0)

    def run(self, *, first: bool) -> Iterator[Result]:
        """All results of this cache; what is the same for every cache only the first time."""
        if first:
            yield from described(self._engine, self._say, made=self._made)
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

    def _prefill(self, tokens: int) -> Figure:
        """Tokens a second until the first token of the answer is there, nothing of the prompt cached."""

        def sample() -> float:
            stats = self._answer(self._random_ids(tokens), 1)
            return tokens / stats.time_to_first_token

        return Figure(
            "prefill",
            self._kv_cache,
            tokens,
            tuple(repeated(self._settings, self._say, f"prefill of {tokens:,}", sample)),
        )

    def _decode(self, context: int, *, with_samplers: bool) -> Iterator[Figure]:
        """Greedy, and in turn with it, so that both see the same machine, with all samplers."""
        prompt = self._random_ids(context)
        footprint = self._engine.footprint
        # A token reads the cache up to itself; in the middle of the run that is half of the new ones.
        read = footprint.weights_per_token + footprint.cache_per_token * (context + self._new_tokens / 2)
        runs: list[tuple[GenerationStats, ...]] = []

        def sample() -> float:
            settings = (GREEDY, self._settings.sampling)[: 1 + with_samplers]
            runs.append(tuple(self._answer(prompt, self._new_tokens, sampling) for sampling in settings))
            return runs[-1][0].tokens_per_second

        counted = len(repeated(self._settings, self._say, f"decode at {context:,}, {self._kv_cache} cache", sample))
        kinds: tuple[FigureKind, ...] = ("decode", "sampled")
        for kind, stats in zip(kinds, zip(*runs[-counted:], strict=True), strict=False):
            rates = tuple(run.tokens_per_second for run in stats)
            yield Figure(kind, self._kv_cache, context, rates, read, stats[0].decode_path)

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
        samples = tuple(
            repeated(
                self._settings, self._say, f"turn of {settings.turn_new} on {cached:,}", sample, keep_a_slow_first=False
            )
        )
        yield Figure("turn", self._kv_cache, cached, samples)

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
