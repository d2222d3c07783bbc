"""What a benchmark measures, as plain values, and how they are put together. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from exlchat.llm.cards import ANY_CARDS, CardWishes
from exlchat.llm.events import DecodePath
from exlchat.llm.info import Footprint
from exlchat.llm.sampling import SamplingSettings

# What people chat with, about: every sampler has something to do.
ALL_SAMPLERS = SamplingSettings(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)

FigureKind = Literal["load", "prefill", "decode", "sampled", "turn", "batch"]


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is measured and how often.

    Args:
        device, cards, extension, dependent_launch, quantize_head: as for `load`; one card unless they are named.
        kv_caches: types of the cache; `auto` is what a chat uses on the device, `all` every one that is meant for it.
        contexts: prompt tokens for prefill, and tokens in the cache when decoding begins.
        runs: measured runs of each figure, after one that is not counted.
        new_tokens: decoded in a run; `None` is 128 on a GPU and 32 on a CPU.
        seconds: no further run of a figure begins after this long, if there is one.
        turn_cached, turn_new: tokens in the cache and tokens on top of them, for the time to the first token of a turn.
        sampling: for decoding with samplers, beside greedy.
        rows: how many answers at once, ascending, where that is what is measured, and nothing else.
    """

    device: str = "auto"
    cards: CardWishes = ANY_CARDS
    extension: bool = True
    dependent_launch: bool | None = None
    quantize_head: int | None = None
    kv_caches: tuple[str, ...] = ("all",)
    contexts: tuple[int, ...] = (128, 2048, 16384)
    runs: int = 5
    new_tokens: int | None = None
    seconds: float = 60.0
    turn_cached: int = 8192
    turn_new: int = 50
    sampling: SamplingSettings = ALL_SAMPLERS
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BenchMachine:
    """Where the figures were taken. `copy_rates` are bytes a second, read and written bytes counted, run by run."""

    device: str
    device_name: str
    threads: int
    exlchat: str
    torch: str
    cuda: str | None
    python: str
    system: str
    copy_rates: tuple[float, ...]

    @property
    def copy_rate(self) -> float:
        """Bytes a second of a large copy: what memory can do."""
        return statistics.median(self.copy_rates)


@dataclass(frozen=True, slots=True)
class Model:
    """What was measured. `made` says that its weights were made on the device instead of read from files.

    Args:
        notices: as of `ModelInfo`.
    """

    name: str
    quantization: str
    parameters: int
    dtype: str
    max_seq_len: int
    made: bool
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing, measured several times.

    Args:
        kind: `load` and `turn` are seconds, `turn` those to the first token; the others are tokens a second, `batch` of
            all rows together.
        kv_cache: type of the cache.
        tokens: of the prompt, or in the cache when decoding begins.
        samples: run by run.
        bytes_per_token: of weights and cache that a decoded token reads on average.
        decode_path: who drew the tokens, as the generator's statistics say.
        rows: how many answers at once.
        slowest: tokens a second of the slowest of them.
    """

    kind: FigureKind
    kv_cache: str
    tokens: int
    samples: tuple[float, ...]
    bytes_per_token: float | None = None
    decode_path: DecodePath | None = None
    rows: int = 1
    slowest: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """Half the range of the samples over their median: 0.01 means plus or minus 1 %."""
        return (max(self.samples) - min(self.samples)) / 2 / self.median

    @property
    def read_rate(self) -> float | None:
        """Bytes of weights and cache a second."""
        return None if self.bytes_per_token is None else self.median * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that one loaded model took.

    Args:
        kv_cache: type of the cache.
        footprint: of the engine, after everything was measured.
        load_peak, run_peak: the most that was allocated on a GPU, or resident on a CPU, while loading and after.
        device_used: taken on a GPU in all, also outside of torch and by other programs.
    """

    kv_cache: str
    footprint: Footprint
    load_peak: int
    run_peak: int
    device_used: int | None

    @property
    def beyond(self) -> int:
        """Of the peak while running, what is neither weights nor cache."""
        return self.run_peak - self.footprint.weights - self.footprint.cache


@dataclass(frozen=True, slots=True)
class RowRoom:
    """How many conversations of `tokens` and an answer the memory holds at once beside the weights."""

    kv_cache: str
    tokens: int
    rows: int


@dataclass(frozen=True, slots=True)
class Skipped:
    reason: str


Result = BenchMachine | Model | Figure | Memory | RowRoom | Skipped


@dataclass(slots=True)
class Report:
    settings: BenchSettings
    setting: BenchMachine | None = None
    model: Model | None = None
    figures: list[Figure] = field(default_factory=list)
    memory: list[Memory] = field(default_factory=list)
    rooms: list[RowRoom] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    complete: bool = False

    def add(self, result: Result) -> None:
        match result:
            case BenchMachine():
                self.setting = result
            case Model():
                self.model = result
            case Figure():
                self.figures.append(result)
            case Memory():
                self.memory.append(result)
            case RowRoom():
                self.rooms.append(result)
            case Skipped():
                self.skipped.append(result.reason)

    def of_copy(self, figure: Figure) -> float | None:
        """The rate at which a figure reads memory, as a share of the copy's."""
        if self.setting is None or figure.read_rate is None:
            return None
        return figure.read_rate / self.setting.copy_rate

    def find(self, kind: FigureKind, tokens: int | None = None, kv_cache: str | None = None) -> Figure | None:
        """The first figure of that kind, for so many tokens and that cache where these are given."""
        return next(
            (
                figure
                for figure in self.figures
                if figure.kind == kind and tokens in (None, figure.tokens) and kv_cache in (None, figure.kv_cache)
            ),
            None,
        )

    def sampled_share(self, sampled: Figure) -> float | None:
        """The rate with samplers over the greedy one in the same place."""
        greedy = self.find("decode", sampled.tokens, sampled.kv_cache)
        return None if greedy is None else sampled.median / greedy.median

    def to_json(self) -> dict[str, Any]:
        """Everything, all samples included. Bytes, seconds and tokens a second."""
        return {
            "complete": self.complete,
            "setting": None if self.setting is None else {**asdict(self.setting), "copy_rate": self.setting.copy_rate},
            "settings": asdict(self.settings),
            "model": None if self.model is None else asdict(self.model),
            "figures": [self._figure_json(figure) for figure in self.figures],
            "memory": [{**asdict(memory), "beyond": memory.beyond} for memory in self.memory],
            "rooms": [asdict(room) for room in self.rooms],
            "skipped": self.skipped,
        }

    def _figure_json(self, figure: Figure) -> dict[str, Any]:
        return {
            **asdict(figure),
            "unit": "s" if figure.kind in ("load", "turn") else "tok/s",
            "median": figure.median,
            "spread": figure.spread,
            "read_rate": figure.read_rate,
            "of_copy": self.of_copy(figure),
        }


def fitting(contexts: Sequence[int], new_tokens: int, longest: int) -> tuple[list[int], list[int]]:
    """The contexts that leave room for so many new tokens in a model of `longest` positions, and those that do not."""
    fit = [context for context in contexts if context + new_tokens <= longest]
    return fit, [context for context in contexts if context not in fit]
