"""Which bits and which cache a card holds, and what each costs, before anything is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from exlchat.engine.convert import budget
from exlchat.engine.convert.conversion import widths_near
from exlchat.engine.convert.measured import Known, known_in
from exlchat.engine.convert.run import WIDEST, check_source
from exlchat.engine.convert.shapes import Shapes, read_shapes
from exlchat.engine.formats.inventory import WeightSizes, weight_sizes
from exlchat.engine.kv.budget import longest_context
from exlchat.engine.kv.sizes import cache_bytes, cache_kind, pages_of, window_slots
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import WORKING_ON_GPU
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.info import ModelError

BITS = (8.0, 6.0, 5.0, 4.5, 4.0, 3.5, 3.0, 2.5)
_FEWEST = 2.25
"""Below it there is no room for scales beside codes of two bits."""


@dataclass(frozen=True, slots=True)
class Width:
    """A file of so many bits a weight.

    Args:
        bits: of the body, as `exlchat convert --bits` takes them.
        file: bytes of its tensors on the disk; where no table is known, at most.
        weights: bytes on the card; likewise.
        loss: predicted divergence, nats a token; `None` where no table is known.
    """

    bits: float
    file: int
    weights: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class Cache:
    """A kind of cache.

    Args:
        kind: a name of `KINDS`.
        bytes: of one conversation.
        loss: measured divergence; `None` where it was not.
        widest: the file of most bits that fits beside it, if one of any bits does.
    """

    kind: str
    bytes: int
    loss: float | None
    widest: Width | None


@dataclass(frozen=True, slots=True)
class Cell:
    """A file with a cache.

    Args:
        needed: bytes of the card in all.
        context: tokens of the longest conversation for which it is large enough.
        loss: of both.
    """

    needed: int
    context: int
    loss: float | None


@dataclass(frozen=True, slots=True)
class Advice:
    """What a card of so many bytes can do with a model.

    Args:
        card: bytes; working: of them, what is left to work in.
        context: tokens of the conversation that is to fit.
        widths, caches: rows and columns.
        cells: `[row][column]`.
    """

    card: int
    working: int
    context: int
    widths: list[Width]
    caches: list[Cache]
    cells: list[list[Cell]]

    @property
    def best(self) -> Cache | None:
        """The cache beside which the most that fits loses least; `None` where not all losses are known."""
        fitting = [(cache, _both(cache.widest, cache)) for cache in self.caches if cache.widest is not None]
        losses = [loss for _, loss in fitting if loss is not None]
        if not fitting or len(losses) < len(fitting):
            return None
        return fitting[losses.index(min(losses))][0]


def advise(source: Path, card: int, context: int, *, work: Path | None = None, widths: Sequence[float] = ()) -> Advice:
    """Args:
        source: folder of the model that is to be converted.
        card: bytes that it has free.
        context: tokens of one conversation.
        work: the work folder of a conversion, whose tables say what is lost.
        widths: bits a weight; `BITS` unless given.

    Raises:
        ModelError: it cannot be converted, or has no such context.
    """
    checkpoint = Checkpoint(source)
    check_source(checkpoint, widths, lambda _: None)
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    _check_context(spec, context)
    shapes = read_shapes(checkpoint, spec)
    known = None
    if work is not None:
        known = known_in(work, checkpoint.identity, spec.num_layers, shapes.matrices.keys())
    sizes = _Sizes(shapes, known or Known({}, {}))
    room = card - WORKING_ON_GPU
    kinds = [name for name, kind in KINDS.items() if name != "fp32" and kind.fits(spec.head_dim)]
    caches = [_cache(sizes, spec, kind, context, room) for kind in kinds]
    files = [width for bits in widths or BITS if (width := sizes.width(bits)) is not None]
    cells = [[_cell(spec, width, cache, room) for cache in caches] for width in files]
    return Advice(card, WORKING_ON_GPU, context, files, caches, cells)


def bits_that_fit(source: Path, card: int, context: int, kv_cache: str) -> float:
    """The most bits a weight, to a hundredth, that a card holds with the cache of one conversation.

    Raises:
        ModelError: so small a card holds none of it.
    """
    checkpoint = Checkpoint(source)
    check_source(checkpoint, (), lambda _: None)
    spec = read_spec(checkpoint.config, str(checkpoint.path / "config.json"))
    _check_context(spec, context)
    left = card - WORKING_ON_GPU - _cache_bytes(spec, kv_cache, context)
    bits = _Sizes(read_shapes(checkpoint, spec), Known({}, {})).widest_bits(left)
    if bits is None:
        raise ModelError(
            f"{card / 1e9:.2f} GB are too small: a {kv_cache} cache of {context:,} tokens and room to work in leave "
            f"{max(left, 0) / 1e9:.2f} GB for weights; ask for more, a shorter context or a smaller cache"
        )
    return bits


def _check_context(spec: ModelSpec, context: int) -> None:
    if not 1 <= context <= spec.longest_context:
        raise ModelError(f"a context of {context:,} tokens was asked for; this model has 1 to {spec.longest_context:,}")


def _cache_bytes(spec: ModelSpec, kv_cache: str, context: int) -> int:
    pages = pages_of(context)
    return cache_bytes(spec, cache_kind(spec, kv_cache), pages, window_slots(spec, pages, pages))


@dataclass(frozen=True, slots=True)
class _Sizes:
    shapes: Shapes
    known: Known

    def width(self, bits: float) -> Width | None:
        """The file of so many bits; `None` where they are too few."""
        tables = self.known.tables
        if not tables or not set(widths_near([bits])) <= set(next(iter(tables.values())).widths):
            disk = 2 * self.shapes.floats + budget.most_bits(self.shapes.matrices, bits) // 8
            return Width(bits, disk, disk - self._order_bytes, None) if bits >= _FEWEST else None
        try:
            plan = budget.plan(tables, bits)
        except ModelError:
            return None
        written = self.shapes.written({name: tables[name].layout(choice) for name, choice in plan.choices.items()})
        held: WeightSizes = weight_sizes(written, stay_quantized=True)
        return Width(bits, written.bytes, held.bytes(torch.float16), plan.loss)

    def widest_bits(self, room: int) -> float | None:
        """The most, to a hundredth, of which a file takes no more than `room` bytes of a card; `None` where none do."""
        total = 8 * (room + self._order_bytes - 2 * self.shapes.floats)
        hundredths = int(100 * min(budget.bits_for(self.shapes.matrices, total), WIDEST))
        return hundredths / 100 if hundredths >= 100 * _FEWEST else None

    @property
    def _order_bytes(self) -> int:
        """Of the order of rows, which is on the disk but not on the card."""
        return sum(4 * matrix.features for matrix in self.shapes.matrices.values())


def _cache(sizes: _Sizes, spec: ModelSpec, kind: str, context: int, room: int) -> Cache:
    needed = _cache_bytes(spec, kind, context)
    bits = sizes.widest_bits(room - needed)
    widest = None if bits is None else sizes.width(bits)
    return Cache(kind, needed, sizes.known.caches.get(kind), widest)


def _cell(spec: ModelSpec, width: Width, cache: Cache, room: int) -> Cell:
    context = longest_context(spec, cache_kind(spec, cache.kind), room - width.weights)
    return Cell(width.weights + cache.bytes + WORKING_ON_GPU, context, _both(width, cache))


def _both(width: Width, cache: Cache) -> float | None:
    """Small errors that have nothing to do with each other add up."""
    return None if width.loss is None or cache.loss is None else width.loss + cache.loss
