"""Which bits every matrix of a random model gets, from one word. No torch.

`4.1bpw` stands for what the EXL2 converter chooses under that budget. It measures the error of every recipe of its
list for every attention and every MLP and takes the best set that fits; here a simple law stands for the measurement.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from exlchat.engine.bench.shapes import Shape
from exlchat.engine.formats.sections import Section, group_sizes, stored_bits


@dataclass(frozen=True, slots=True)
class MeanBits:
    """EXL2 recipes of the converter's list, `bits` a weight on average over the layers."""

    bits: float


@dataclass(frozen=True, slots=True)
class OneRecipe:
    sections: tuple[Section, ...]


@dataclass(frozen=True, slots=True)
class Gptq:
    """GPTQ of 4 bits, symmetric, in groups of `group_size` rows; `act_order` mixes the rows of the groups."""

    group_size: int
    act_order: bool


Mix = MeanBits | OneRecipe | Gptq
Recipe = tuple[Section, ...]
LayerRecipes = Mapping[str, Recipe]

LEAST_BITS, MOST_BITS = 2.3, 8.0
_MEAN = re.compile(r"(\d+(?:\.\d+)?)bpw")
_SECTION = re.compile(r"([234568]):(0?\.\d+|1|1\.0+)g(32|64|128)")

# The converter's lists (version 0.3.2): query and key, value, output; then gate, up, down. `=` repeats the one before.
_ATTENTION = """
3:.05g64,2:.95g64    =                    =
3:.1g64,2:.9g64      3:.25g64,2:.75g64    3:.1g64,2:.9g64
3:.1g64,2:.9g64      4:.1g128,3:.9g128    3:.1g64,2:.9g64
3:.1g64,2:.9g64      4:.1g128,3:.9g128    =
4:.1g128,3:.9g128    =                    =
4:.1g128,3:.9g128    4:.1g64,3:.9g64      4:.1g128,3:.9g128
4:1g128              =                    =
4:1g128              4:1g64               4:1g128
4:1g64               4:1g32               4:1g64
4:1g32               =                    =
5:.1g128,4:.9g128    5:.1g64,4:.9g64      5:.1g128,4:.9g128
5:.1g64,4:.9g64      5:.1g32,4:.9g32      5:.1g64,4:.9g64
5:.1g64,4:.9g64      5:1g64               5:.1g64,4:.9g64
5:.1g32,4:.9g32      5:1g32               5:.1g32,4:.9g32
6:.1g128,5:.9g128    6:1g128              6:.1g128,5:.9g128
6:.1g32,5:.9g32      6:1g32               6:.1g32,5:.9g32
6:1g128              =                    =
6:1g32               8:1g32               6:1g32
8:1g128              =                    =
"""
_MLP = """
3:.05g64,2:.95g64    =                    6:.05g32,3:.2g64,2:.75g64
3:.1g64,2:.9g64      3:.25g64,2:.75g64    6:.05g32,3:.2g64,2:.75g64
3:.1g64,2:.9g64      3:.3g64,2:.7g64      5:.05g32,3:.95g32
3:.1g64,2:.9g64      3:.3g64,2:.7g64      5:.05g32,4:.95g32
4:.1g128,3:.9g128    4:.25g128,3:.75g128  8:.05g32,4:.1g128,3:.85g128
4:.1g32,3:.9g32      4:.25g32,3:.75g32    8:.05g32,4:.1g32,3:.85g32
4:.1g32,3:.9g32      4:.25g32,3:.75g32    8:.05g32,4:.95g128
4:1g128              4:1g32               8:.05g32,4:.95g128
4:1g32               =                    8:.05g32,4:.95g32
5:.1g128,4:.9g128    5:.25g128,4:.75g128  8:.05g32,5:.1g128,4:.85g128
5:.1g32,4:.9g32      5:.25g32,4:.75g32    8:.05g32,5:.1g32,4:.85g32
6:.1g128,5:.9g128    6:.25g128,5:.75g128  8:.05g32,6:.1g128,5:.85g128
6:.1g32,5:.9g32      6:.25g32,5:.75g32    8:.05g32,6:.1g32,5:.85g32
6:1g128              =                    8:.05g32,6:.95g128
8:.1g128,6:.9g128    =                    8:.15g128,6:.85g128
8:.1g128,6:.9g128    =                    8:1g128
8:1g128              =                    =
"""


def parse_mix(text: str) -> Mix:
    """`4.1bpw`, a recipe such as `8:0.05g32,5:0.1g128,4:0.85g128`, `gptq-g128` or `gptq-g128-actorder`.

    A recipe lists sections of a matrix's rows: bits, share of the rows, rows in a group.

    Raises:
        ValueError: it is none of these, in one line.
    """
    if text in ("gptq-g128", "gptq-g128-actorder"):
        return Gptq(128, act_order=text.endswith("actorder"))
    mean = _MEAN.fullmatch(text)
    if mean is None:
        return OneRecipe(_parse_recipe(text))
    if not LEAST_BITS <= float(mean[1]) <= MOST_BITS:
        raise ValueError(f"{text!r}: the converter's recipes give {LEAST_BITS} to {MOST_BITS} bits a weight")
    return MeanBits(float(mean[1]))


def layer_recipes(mix: MeanBits | OneRecipe, shape: Shape) -> list[LayerRecipes]:
    """The recipe of every matrix, a mapping from `q_proj`, ..., `down_proj` for each layer.

    Raises:
        ValueError: the recipe does not fit the shape's sizes.
    """
    if isinstance(mix, OneRecipe):
        for features in {shape.hidden, shape.queries, shape.inner}:
            group_sizes(features, mix.sections)
        return [dict.fromkeys(matrix_sizes(shape), mix.sections) for _ in range(shape.layers)]
    return _within_budget(mix.bits, shape)


def converter_options(shape: Shape) -> tuple[list[Option], list[Option]]:
    """What the converter chooses from for every attention and every MLP of a model, by ascending size."""
    attention = _options(_ATTENTION, ("q_proj", "k_proj", "v_proj", "o_proj"), shape)
    return attention, _options(_MLP, ("gate_proj", "up_proj", "down_proj"), shape)


def matrix_sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a layer's matrices, by name."""
    return {
        "q_proj": (shape.hidden, shape.queries),
        "k_proj": (shape.hidden, shape.keys),
        "v_proj": (shape.hidden, shape.keys),
        "o_proj": (shape.queries, shape.hidden),
        "gate_proj": (shape.hidden, shape.inner),
        "up_proj": (shape.hidden, shape.inner),
        "down_proj": (shape.inner, shape.hidden),
    }


def _parse_recipe(text: str) -> Recipe:
    found = [_SECTION.fullmatch(part) for part in text.split(",")]
    sections = tuple(Section(int(match[1]), float(match[2]), int(match[3])) for match in found if match)
    if len(sections) != len(found):
        raise ValueError(f"{text!r} is no mix; examples: 4.1bpw, 8:0.05g32,4:0.95g128, gptq-g128, gptq-g128-actorder")
    if not math.isclose(sum(section.proportion for section in sections), 1, abs_tol=1e-6):
        raise ValueError(f"{text!r}: the shares of the rows must add up to 1")
    if any(upper.bits <= lower.bits for upper, lower in pairwise(sections)):
        raise ValueError(f"{text!r}: the bits must descend")
    return sections


@dataclass(frozen=True, slots=True)
class Option:
    recipes: LayerRecipes
    bits: int


@dataclass(slots=True)
class _Slot:
    """An attention or an MLP: its options by ascending size, the one chosen, and how much an error in it counts."""

    options: Sequence[Option]
    weights: int
    importance: float
    chosen: int = 0

    @property
    def next_cost(self) -> int:
        """More bits that the next option takes."""
        return self.options[self.chosen + 1].bits - self.options[self.chosen].bits

    @property
    def next_gain(self) -> float:
        """Error that the next option saves, for each bit more. Rounding errors fall by 4 with each bit of width."""
        bits = [option.bits / self.weights for option in self.options[self.chosen : self.chosen + 2]]
        return self.importance * (math.pow(4, -bits[0]) - math.pow(4, -bits[1])) / (bits[1] - bits[0])


def _within_budget(bits: float, shape: Shape) -> list[LayerRecipes]:
    attention, mlp = converter_options(shape)
    sizes = matrix_sizes(shape)
    slots = [
        _Slot(
            options, sum(math.prod(sizes[name]) for name in options[0].recipes), _importance(layer, shape.layers, mix)
        )
        for layer in range(shape.layers)
        for mix, options in ((1.6, attention), (1.0, mlp))
    ]
    left = bits * sum(slot.weights for slot in slots) - sum(slot.options[0].bits for slot in slots)
    while True:
        open_slots = [slot for slot in slots if slot.chosen + 1 < len(slot.options) and slot.next_cost <= left]
        if not open_slots:
            break
        best = max(open_slots, key=lambda slot: slot.next_gain)
        left -= best.next_cost
        best.chosen += 1
    chosen = [slot.options[slot.chosen].recipes for slot in slots]
    return [{**attention_of, **mlp_of} for attention_of, mlp_of in zip(chosen[0::2], chosen[1::2], strict=True)]


def _importance(layer: int, layers: int, share: float) -> float:
    """The ends of a model are more sensitive than its middle; no two layers are alike."""
    at_the_ends = 3.0 if layer in (0, layers - 1) else 1.0
    return share * at_the_ends * (1 + 0.5 * math.sin(2.4 * layer + share))


def _options(table: str, names: tuple[str, ...], shape: Shape) -> list[Option]:
    sizes = matrix_sizes(shape)
    options: dict[int, Option] = {}
    for line in table.split("\n"):
        if not line:
            continue
        columns: list[Recipe] = []
        for word in line.split():
            columns.append(columns[-1] if word == "=" else _parse_recipe(word))
        recipes = dict(zip(names, columns[:1] * (len(names) - 3) + columns, strict=True))
        bits = sum(stored_bits(*sizes[name], recipes[name]) for name in names)
        # In a small model two recipes may come to the same size.
        options.setdefault(bits, Option(recipes, bits))
    return [options[bits] for bits in sorted(options)]
