"""The tensors of a decode step: the residual stream, and what lies between its operations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.ext.layout import TILE_COLUMNS
from exlchat.ext.products import Deferred, Residual


@dataclass(frozen=True, slots=True)
class Stream:
    """The residual stream and its sums of squares, as `exlchat.ext.products.Residual` has them."""

    hidden: Tensor
    squares: Tensor
    deferred: Deferred | None = None

    @classmethod
    def of(cls, rows: int, width: int, *, defers: bool, device: torch.device) -> Stream:
        """Zeros; one that `defers` has a norm behind what is added."""
        hidden = torch.zeros(rows, width, device=device)
        squares = torch.zeros(rows, width // TILE_COLUMNS, *((4,) if defers else ()), device=device)
        deferred = Deferred(torch.zeros_like(hidden), torch.ones(rows, device=device)) if defers else None
        return cls(hidden, squares, deferred)

    @property
    def tensors(self) -> list[Tensor]:
        """What one card has to send the next: the scale of what is deferred is found there."""
        return [self.hidden, self.squares, *([] if self.deferred is None else [self.deferred.delta])]

    def first_rows(self, rows: int) -> Stream:
        deferred = self.deferred
        if deferred is not None:
            deferred = Deferred(deferred.delta[:rows], deferred.scale[:rows])
        return Stream(self.hidden[:rows], self.squares[:rows], deferred)

    @property
    def residual(self) -> Residual:
        """Without readers."""
        return Residual(self.hidden, self.squares, (), deferred=self.deferred)


class Between:
    """Tensors between operations, made once for all walks through a model and, where a layer leaves nothing in them
    that the next one must not find, for all layers: steps of fewer rows use their first rows.

    Args:
        rows: the most of a step.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.known: dict[object, Tensor] = {}


class WalkTensors:
    """What one walk takes of them; asked for in the same order in every layer of a kind."""

    def __init__(self, between: Between, rows: int) -> None:
        self._between, self._rows = between, rows
        self._layer, self._taken = 0, 0

    def begin(self, layer: int) -> None:
        self._layer, self._taken = layer, 0

    def halves(self, columns: int, *, padded: bool = False) -> Tensor:
        return self.make(columns, torch.float16, padded)

    def floats(self, columns: int, *, padded: bool = False) -> Tensor:
        return self.make(columns, torch.float32, padded)

    def pairs(self, columns: int, *, padded: bool = False) -> Tensor:
        """float32 `[rows, columns, 2]`."""
        return self.make(2 * columns, torch.float32, padded).view(self._rows, columns, 2)

    def make(self, columns: int, dtype: torch.dtype, padded: bool) -> Tensor:
        """`[rows, columns]`, zeros at first, and later what was left there.

        Args:
            padded: some columns take no feature. Nothing writes them, so they stay zeros where no other layer, which
                may have others, writes the same tensor.
        """
        known, self._taken = self._between.known, self._taken + 1
        key = (self._taken, columns, dtype, self._layer if padded else None)
        if key not in known:
            known[key] = torch.zeros(self._between.rows, columns, dtype=dtype, device=self._between.device)
        return known[key][: self._rows]
