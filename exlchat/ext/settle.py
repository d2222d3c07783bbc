"""Rows between two products, where those do not do it: what attention, MLP or experts give joins the residual
stream, and the products behind get that normed.

`products.Residual` does this inside a product, where all norms are RMS and one product joins at a time. Here a norm may
be a LayerNorm; sources may be two, and several rows with weights (experts), or come from what the kernels do not hold.
`tests/ext/reference_settle.py` defines what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.job import Job, check, check_on_gpu, check_together
from exlchat.ext.layout import TILE_COLUMNS
from exlchat.ext.library import Library

MAX_ROWS, MAX_WIDTH, MAX_SLOTS = c.MAX_ROWS, c.SETTLE_WIDTH, c.SETTLE_SLOTS

NormKind = Literal["rms", "layer"]
_NORMS: dict[NormKind, int] = {"rms": c.NORM_RMS, "layer": c.NORM_LAYER}


@dataclass(frozen=True, slots=True)
class KernelNorm:
    """A norm over a whole row.

    Args:
        weight: float16 `[width]`.
        eps: added to the mean square (`rms`) or to the variance (`layer`).
        kind: `layer` subtracts the mean first.
        bias: float16 `[width]`.
    """

    weight: Tensor
    eps: float
    kind: NormKind = "rms"
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class NormedCopy:
    """Where a product behind finds the normed row.

    Args:
        x: float16 `[rows, stored]`, zero where no feature stands; or `[rows, width]`.
        scatter: int16 (holding uint16) `[width]`: the stored row of each feature; `None`: in the order of the features.
    """

    x: Tensor
    scatter: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Joining:
    """What joins the residual stream: `multiplier * norm(sum of weights[j] * y[j] + sigmoid(gate) * added)`.

    Args:
        y: float16 or float32 `[rows * slots, width]`, 1 to 17 slots, those of a row one behind the other: what
            attention or MLP or each expert gives.
        weights: float32 `[rows, slots]`, of experts; `None`: all 1.
        added: float16 or float32 `[rows, width]`, the same of a second source: MLP beside attention, a shared expert.
        gate: float32 `[rows]`, of a shared expert, before the sigmoid, which may lie apart; `None`: `added` as it is.
        norm: of the sum, `rms` without bias; `None`: the sum as it is.
        multiplier: of what joins.
    """

    y: Tensor | None = None
    weights: Tensor | None = None
    added: Tensor | None = None
    gate: Tensor | None = None
    norm: KernelNorm | None = None
    multiplier: float = 1.0


class SettleKernels:
    def __init__(self, library: Library) -> None:
        self._settle = library.function("exl_settle")

    def settle(
        self, hidden: Tensor, copies: Sequence[NormedCopy], *, norm: KernelNorm | None, joining: Joining | None = None
    ) -> Job:
        """`hidden += what joins`, then every copy becomes `norm(hidden)` in float16, row by row.

        What a row comes to does not depend on how many there are.

        Args:
            hidden: float32 `[rows, width]`, 1 to 8 rows; width a multiple of 16, at most 16384.
            copies: at most three; places that nothing scatters to stay.
            norm: `None` copies `hidden` itself.
            joining: `None` leaves `hidden` as it is.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or parts that do not go together.
        """
        rows, width = hidden.shape
        if not 1 <= rows <= MAX_ROWS:
            raise ValueError(f"hidden has {rows} rows; there can be 1 to {MAX_ROWS}")
        if width % TILE_COLUMNS or not TILE_COLUMNS <= width <= MAX_WIDTH:
            raise ValueError(f"hidden has {width} numbers; they must be a multiple of 16, at most {MAX_WIDTH}")
        check("hidden", hidden, torch.float32, (rows, width))
        job = c.CSettle(hidden=hidden.data_ptr(), rows=rows, width=width, multiplier=1.0, norm_kind=c.NORM_NONE)
        tensors = [hidden]
        if joining is not None:
            _put_joining(job, joining, tensors)
        if norm is not None:
            _check_norm("norm", norm, width, tensors)
            job.norm, job.eps, job.norm_kind = norm.weight.data_ptr(), norm.eps, _NORMS[norm.kind]
            job.norm_bias = None if norm.bias is None else norm.bias.data_ptr()
        if len(copies) > c.MAX_MATRICES:
            raise ValueError(f"{len(copies)} copies of a normed row; there can be {c.MAX_MATRICES}")
        for index, copy in enumerate(copies):
            check("x", copy.x, torch.float16, (rows, width if copy.scatter is None else copy.x.shape[-1]))
            tensors.append(copy.x)
            job.copies[index].x, job.copies[index].stored = copy.x.data_ptr(), copy.x.shape[-1]
            if copy.scatter is not None:
                check("scatter", copy.scatter, torch.int16, (width,))
                tensors.append(copy.scatter)
                job.copies[index].scatter = copy.scatter.data_ptr()
        check_on_gpu(hidden=hidden)
        check_together(*tensors)
        return Job(self._settle, job, tuple(tensors))


def _put_joining(job: c.CSettle, joining: Joining, tensors: list[Tensor]) -> None:
    """Checks what joins and points the job to it; adds its tensors to `tensors`."""
    y, added, rows, width = joining.y, joining.added, job.rows, job.width
    if y is None and added is None:
        raise ValueError("nothing joins: there is neither y nor added")
    if y is not None:
        if len(y) % rows or not 1 <= len(y) // rows <= MAX_SLOTS:
            raise ValueError(f"y has {len(y)} slots of {rows} rows; there can be 1 to {MAX_SLOTS} of each")
        job.y, job.slots, job.y_floats = y.data_ptr(), len(y) // rows, _is_float("y", y, (len(y), width))
        tensors.append(y)
    if joining.weights is not None:
        check("weights", joining.weights, torch.float32, (rows, job.slots))
        job.weights = joining.weights.data_ptr()
        tensors.append(joining.weights)
    if added is not None:
        job.added, job.added_floats = added.data_ptr(), _is_float("added", added, (rows, width))
        tensors.append(added)
    if joining.gate is not None:
        if added is None:
            raise ValueError("gate belongs to what is added, and nothing is")
        _check_gate(joining.gate, rows)
        job.gate, job.gate_stride = joining.gate.data_ptr(), joining.gate.stride(0)
        tensors.append(joining.gate)
    if joining.norm is not None:
        if joining.norm.kind != "rms" or joining.norm.bias is not None:
            raise ValueError("the norm of what joins is an RMS norm without bias")
        _check_norm("post norm", joining.norm, width, tensors)
        job.post_norm, job.post_eps = joining.norm.weight.data_ptr(), joining.norm.eps
    job.multiplier = joining.multiplier


def _check_gate(gate: Tensor, rows: int) -> None:
    """As `check`, but rows may lie apart."""
    if gate.dtype != torch.float32 or tuple(gate.shape) != (rows,):
        raise ValueError(f"gate is {gate.dtype} {tuple(gate.shape)}; it must be {torch.float32} ({rows},)")


def _is_float(name: str, tensor: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a source is of float32 and not of float16."""
    floats = tensor.dtype == torch.float32
    check(name, tensor, torch.float32 if floats else torch.float16, shape)
    return floats


def _check_norm(name: str, norm: KernelNorm, width: int, tensors: list[Tensor]) -> None:
    check(name, norm.weight, torch.float16, (width,))
    tensors.append(norm.weight)
    if norm.bias is not None:
        check(f"{name}'s bias", norm.bias, torch.float16, (width,))
        tensors.append(norm.bias)
