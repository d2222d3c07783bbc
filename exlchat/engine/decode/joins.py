"""How what a layer computes joins the residual stream of a step, and how the stream is read.

Inside the product before it, where all norms are RMS and all layers quantized, experts too; as an operation of its own
elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exlchat.engine.decode.kernels import StepKernels, torch_rows
from exlchat.engine.decode.parts import Half, Join, Reader, Together
from exlchat.engine.decode.tensors import Stream, WalkTensors
from exlchat.engine.layers.linear import Joined, Linear, is_whole, only_matrix, takes_rows_alike
from exlchat.engine.layers.norms import Norm
from exlchat.engine.layers.quantized_linear import Launch, QuantizedLinear
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.exchange import Exchange
from exlchat.ext.functions import MAX_MATRICES
from exlchat.ext.products import NormCopy, Normed, Residual
from exlchat.ext.settle import Joining, KernelNorm, NormedCopy


class Exchanges:
    """Numbers the exchanges of a walk; a card by itself has none."""

    def __init__(self, together: Together | None) -> None:
        self._together = together
        self._count = 0

    def next(self) -> Exchange | None:
        if self._together is None:
            return None
        self._count += 1
        return Exchange(self._together.peers, self._count - 1)


class Joins(ABC):
    """Of one walk through a model.

    Args:
        stream: of as many rows as the walk has.
    """

    def __init__(
        self,
        kernels: StepKernels,
        spec: ModelSpec,
        stream: Stream,
        tensors: WalkTensors,
        exchanges: Exchanges,
    ) -> None:
        self._kernels, self._spec = kernels, spec
        self._stream, self._tensors, self._exchanges = stream, tensors, exchanges

    @abstractmethod
    def embed(self, table: Tensor, token: Tensor) -> Join:
        """Begins the stream with rows of a table."""

    @abstractmethod
    def out(self, readers: list[Reader], jobs: list[Launch], part: Linear | QuantizedLinear, x: Tensor) -> Half:
        """What joins the stream is a part's product with `x`."""

    @abstractmethod
    def behind(self, half: Half, after: Norm | None) -> Join:
        """Joins what a half of a layer computes, behind a norm where there is one."""

    @abstractmethod
    def _row(
        self, stored: int, scatter: Tensor | None, norm: Norm | None
    ) -> tuple[Tensor | Normed, NormCopy | NormedCopy]:
        """A row of so many places, as it is read and as it is written; in the features' order unless scattered."""

    def readers(self, part: Joined, norm: Norm | None) -> list[Reader]:
        """How a part reads the normed row: quantized ones each in their own order, others by features."""
        return self.by_runs(part, norm) if is_whole(part) else [self.by_features(norm)]

    def by_runs(self, part: QuantizedLinear, norm: Norm | None) -> list[Reader]:
        firsts = [run.matrices[0] for run in part.runs]
        return [
            Reader(*self._row(first.stored, first.scatter, norm), run.matrices, run.column)
            for first, run in zip(firsts, part.runs, strict=True)
        ]

    def by_features(self, norm: Norm | None) -> Reader:
        return Reader(*self._row(self._spec.hidden_size, None, norm))


class FusedJoins(Joins):
    """Products add to the stream, and norm it where they read it."""

    def embed(self, table: Tensor, token: Tensor) -> Join:
        scale = self._spec.embedding_scale
        return lambda _, readers: [self._kernels.embed(table, token, self._residual(readers), scale)]

    def out(self, readers: list[Reader], jobs: list[Launch], part: Linear | QuantizedLinear, x: Tensor) -> Half:
        matrix = only_matrix(part)
        assert matrix is not None
        return Half(readers, jobs, Joining(), lambda residual: self._kernels.add_product(matrix, x, residual))

    def behind(self, half: Half, after: Norm | None) -> Join:
        add = half.add
        assert add is not None

        def join(_: Norm | None, readers: list[Reader]) -> list[Launch]:
            residual = replace(
                self._residual(readers),
                exchange=self._exchanges.next(),
                multiplier=self._spec.residual_scale,
                post_norm=None if after is None else after.weight,
            )
            return [add(residual)]

        return join

    def _residual(self, readers: Sequence[Reader]) -> Residual:
        copies = tuple(reader.copy for reader in readers if isinstance(reader.copy, NormCopy))
        return replace(self._stream.residual, copies=copies)

    def _row(self, stored: int, scatter: Tensor | None, norm: Norm | None) -> tuple[Normed, NormCopy]:
        deferred = self._stream.deferred
        make = self._tensors.floats if deferred is None else self._tensors.pairs
        values = make(stored, padded=stored != self._spec.hidden_size)
        if scatter is None:
            scatter = torch.arange(stored, device=values.device).to(torch.int16)
        x = Normed(values, self._stream.squares, self._spec.norm_eps, deferred, before=norm is not None)
        return x, NormCopy(values, scatter, None if norm is None else norm.weight)


class SettledJoins(Joins):
    """An operation of its own adds to the stream and norms it for its readers."""

    def embed(self, table: Tensor, token: Tensor) -> Join:
        hidden, scale = self._stream.hidden, self._spec.embedding_scale
        job = self._kernels.embed(table, token, hidden, scale)
        return lambda norm, readers: [job, *self._settle(None, norm, readers)]

    def out(self, readers: list[Reader], jobs: list[Launch], part: Linear | QuantizedLinear, x: Tensor) -> Half:
        matrix, y = only_matrix(part), self._tensors.floats(self._spec.hidden_size)
        if matrix is None:
            job: Launch = torch_rows(part, x, y, alike=takes_rows_alike(part))
        else:
            job = self._kernels.product([matrix], x, y, "float")
        return Half(readers, [*jobs, job], Joining(y=y))

    def behind(self, half: Half, after: Norm | None) -> Join:
        joining = replace(half.joining, norm=_for_settling(after), multiplier=self._spec.residual_scale)
        return lambda norm, readers: [*self._summed(joining), *self._settle(joining, norm, readers)]

    def _summed(self, joining: Joining) -> list[Launch]:
        """What joins is a sum over all cards where each has a part of every layer."""
        return [
            self._kernels.exchange_sums(part, exchange)
            for part in (joining.y, joining.added)
            if part is not None and (exchange := self._exchanges.next()) is not None
        ]

    def _settle(self, joining: Joining | None, norm: Norm | None, readers: Sequence[Reader]) -> list[Launch]:
        """What joins the residual, and the normed row for each reader; more than three take another round."""
        jobs: list[Launch] = []
        copies = [reader.copy for reader in readers if isinstance(reader.copy, NormedCopy)]
        for first in range(0, max(len(copies), 1), MAX_MATRICES):
            some = copies[first : first + MAX_MATRICES]
            joins = joining if first == 0 else None
            jobs.append(self._kernels.settle(self._stream.hidden, some, norm=_for_settling(norm), joining=joins))
        return jobs

    def _row(self, stored: int, scatter: Tensor | None, norm: Norm | None) -> tuple[Tensor, NormedCopy]:  # noqa: ARG002
        """The norm is that of the join."""
        x = self._tensors.halves(stored, padded=stored != self._spec.hidden_size)
        return x, NormedCopy(x, scatter)


def _for_settling(norm: Norm | None) -> KernelNorm | None:
    return None if norm is None else KernelNorm(norm.weight, norm.eps, norm.kind, norm.bias)
