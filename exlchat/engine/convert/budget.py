"""From what was asked for to bits, and from tables to a layout for each matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from exlchat.engine.convert.allocation import Choice, Table, allocate, uniform
from exlchat.engine.convert.observing import HEAD
from exlchat.engine.formats.sections import HEAD_RECIPES, stored_bits
from exlchat.llm.info import ModelError

DEFAULT_HEAD_BITS = 6
"""The original converter's, whose head's bytes are spent with the body's unless the head is fixed."""

_SHARE = 0.9985
"""Of the bits asked for, what is spent: the original's file of 4 bits has 3.9988, and ours shall not be larger."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout for each matrix, by name.

    Args:
        choices: what each matrix is.
        loss: predicted divergence a token.
        bits: of all matrices on disk.
        weights: how many weights they hold.
    """

    choices: Mapping[str, Choice]
    loss: float
    bits: int
    weights: int

    def mean_bits(self, tables: Mapping[str, Table], *, head: bool) -> float:
        """A weight's, of the body or of the head."""
        chosen = [name for name in self.choices if (name == HEAD) == head]
        weights = sum(tables[name].features * tables[name].outputs for name in chosen)
        return sum(self.choices[name].bits for name in chosen) / max(weights, 1)


class Sized(Protocol):
    """A matrix: its inputs and its outputs as stored."""

    @property
    def features(self) -> int: ...

    @property
    def outputs(self) -> int: ...


def head_bits(head: Sized, width: int) -> int:
    """What the original's head of this width takes."""
    return stored_bits(head.features, head.outputs, HEAD_RECIPES[width])


def nearest_recipe(bits: float) -> int:
    """The width of the original's heads that is named in files with a head of so many bits a weight."""
    return min(HEAD_RECIPES, key=lambda width: abs(width - bits))


def body_bits(matrices: Mapping[str, Sized], bits: float) -> int:
    """What all matrices but the head may take together at so many a weight."""
    return int(_SHARE * bits * sum(part.features * part.outputs for name, part in matrices.items() if name != HEAD))


def most_bits(matrices: Mapping[str, Sized], bits: float, head_width: int | None = None) -> int:
    """What body and head may take together on disk; arguments as of `plan`."""
    head = head_bits(matrices[HEAD], head_width or DEFAULT_HEAD_BITS) if HEAD in matrices else 0
    return body_bits(matrices, bits) + head


def plan(tables: Mapping[str, Table], bits: float, *, head_width: int | None = None, same: bool = False) -> Plan:
    """The layouts that lose least at so many bits a weight of the body.

    Args:
        bits: a weight of the body; the head may take as much as the original's of 6 bits beside that.
        head_width: fixes the head's bits to those of the original's head of this width.
        same: one width for all instead, to compare with.

    Raises:
        ModelError: so few bits cannot be met.
    """
    head = tables.get(HEAD)
    if head is not None and head_width is not None:
        body = {name: table for name, table in tables.items() if name != HEAD}
        of_body, of_head = (
            _planned(body, body_bits(tables, bits), same=same),
            _planned({HEAD: head}, head_bits(head, head_width), same=same),
        )
        return Plan(
            {**of_body.choices, **of_head.choices},
            of_body.loss + of_head.loss,
            of_body.bits + of_head.bits,
            of_body.weights + of_head.weights,
        )
    return _planned(tables, most_bits(tables, bits), same=same)


def bits_for(matrices: Mapping[str, Sized], total: int, head_width: int | None = None) -> float:
    """Bits a weight of the body for which all matrices take `total` bits on disk."""
    body = sum(part.features * part.outputs for name, part in matrices.items() if name != HEAD)
    head = head_bits(matrices[HEAD], head_width or DEFAULT_HEAD_BITS) if HEAD in matrices else 0
    return (total - head) / max(_SHARE * body, 1)


def _planned(tables: Mapping[str, Table], budget: int, *, same: bool) -> Plan:
    names, values = list(tables), list(tables.values())
    weights = sum(table.features * table.outputs for table in values)
    found: Sequence[Choice] | None = uniform(values, budget) if same else allocate(values, budget)
    if found is None:
        least = sum(table.narrowest.bits for table in values)
        raise ModelError(
            f"so few bits cannot be met: {budget / weights:.2f} a weight are asked for, and the least here is "
            f"{least / weights:.2f}; ask for more"
        )
    return Plan(dict(zip(names, found, strict=True)), sum(c.loss for c in found), sum(c.bits for c in found), weights)
