"""What a layer of the decode step is made of: who reads the normed row, and what joins the residual behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import NormCopy, Normed
from exlchat.ext.settle import Joining, NormedCopy


@dataclass(frozen=True, slots=True)
class Reader:
    """Who reads one copy of the normed residual: `copy` as a join writes it, `x` as a product reads it.

    Args:
        matrices: that read it in their stored order; none where a layer reads it in the order of the features.
        column: where their outputs begin among those of the layer.
    """

    x: Tensor | Normed
    copy: NormCopy | NormedCopy
    matrices: tuple[PackedMatrix, ...] = ()
    column: int = 0

    @property
    def row(self) -> Tensor:
        """float16 `[rows, width]`, where no product takes what a residual leaves."""
        assert isinstance(self.x, Tensor)
        return self.x


Join = Callable[[Norm | None, list[Reader]], list[Launch]]
"""Adds to the residual stream and norms it for its readers."""


@dataclass(frozen=True, slots=True)
class Half:
    """Attention, or MLP or experts: what reads the normed row, the operations, and what joins the residual behind them.

    Args:
        joining: float32 rows that join apart.
        product: what multiplies the last row, and that row, where the product joins them itself.
    """

    readers: list[Reader]
    jobs: list[Launch]
    joining: Joining
    product: tuple[PackedMatrix, Tensor] | None = None
