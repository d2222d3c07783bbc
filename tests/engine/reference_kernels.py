"""The operations of the CUDA extension as their references compute them, for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from exlchat.ext import layout, reference, reference_attention
from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import Activation, Kind, Normed, Residual


@pytest.fixture
def decoded_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The references decode a matrix at every product; a step of a whole model would take seconds.

    On one thread, because several small products a millisecond wait for each other on a busy machine.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    decoded: dict[int, tuple[PackedMatrix, Tensor]] = {}
    really = layout.decode

    def decode(matrix: PackedMatrix) -> Tensor:
        if id(matrix) not in decoded:
            decoded[id(matrix)] = matrix, really(matrix)
        return decoded[id(matrix)][1]

    monkeypatch.setattr(layout, "decode", decode)
    monkeypatch.setattr(reference, "decode", decode)
    yield
    torch.set_num_threads(threads)


class ReferenceJob:
    """A prepared operation."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def launch(self, *, dependent: bool) -> None:
        self._work()


class ReferenceKernels:
    """As `exlchat.ext.ops.Kernels`, on the CPU."""

    def product(
        self,
        matrices: Sequence[PackedMatrix],
        x: Tensor | Normed,
        y: Tensor,
        kind: Kind,
        *,
        scatter: Tensor | None = None,
        activation: Activation = "silu",
    ) -> ReferenceJob:
        def work() -> None:
            if kind != "gated":
                y.copy_(reference.product(matrices, x))
                return
            gate, up = matrices
            value = reference.gated(gate, up, x, activation).to(y.dtype)
            if scatter is None:
                y.copy_(value)
            else:
                y[:, layout.unsigned(scatter)] = value

        return ReferenceJob(work)

    def add_product(self, matrix: PackedMatrix, x: Tensor | Normed, residual: Residual) -> ReferenceJob:
        return ReferenceJob(lambda: reference.add_product(matrix, x, residual))

    def embed(self, table: Tensor, token: Tensor, residual: Residual) -> ReferenceJob:
        return ReferenceJob(lambda: reference.embed(table, token, residual))

    def row_product(self, matrices: Sequence[PackedMatrix]) -> Callable[[Tensor], Tensor]:
        def multiply(x: Tensor) -> Tensor:
            return reference.product(matrices, layout.to_stored(x, matrices[0])).half()

        return multiply

    def dequantize(self, matrix: PackedMatrix, out: Tensor) -> None:
        out.copy_(layout.decode(matrix))

    def attention(
        self,
        qkv: Tensor,
        out: Tensor,
        *,
        pages: LayerPages,
        page_table: Tensor,
        position: Tensor,
        turns: Tensor,
        rules: AttentionRules,
        scratch: AttentionScratch,
        scatter: Tensor | None = None,
    ) -> ReferenceJob:
        def work() -> None:
            mixed = reference_attention.attention(
                qkv, pages=pages, page_table=page_table, position=int(position), turns=turns, rules=rules
            ).flatten()
            if scatter is None:
                out.copy_(mixed)
            else:
                out[layout.unsigned(scatter)] = mixed.to(out.dtype)

        return ReferenceJob(work)
