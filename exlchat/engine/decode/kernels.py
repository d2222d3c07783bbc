"""What the chains of the decode step need of the CUDA extension; tests put the references in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from exlchat.engine.layers.quantized_linear import Launch, MatrixKernels
from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.exchange import Exchange, Peers
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.experts import OAI_LIMIT, ExpertActivation, ExpertKind, InputOrder
from exlchat.ext.heads import HeadNorms
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import Activation, Kind, Normed, Residual
from exlchat.ext.routing import Choice, RouteRules
from exlchat.ext.settle import Joining, KernelNorm, NormedCopy


class StepKernels(Protocol):
    """For each operation see the class of `exlchat.ext` that `exlchat.ext.ops.Kernels` has it from."""

    def product(
        self,
        matrices: Sequence[PackedMatrix],
        x: Tensor | Normed,
        y: Tensor,
        kind: Kind,
        *,
        scatter: Tensor | None = None,
        activation: Activation = "silu",
    ) -> Launch: ...

    def add_product(self, matrix: PackedMatrix, x: Tensor | Normed, residual: Residual) -> Launch: ...

    def embed(self, table: Tensor, token: Tensor, residual: Residual | Tensor, multiplier: float = 1.0) -> Launch: ...

    def head_product(self, weight: Tensor, x: Tensor | Normed, y: Tensor) -> Launch: ...

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
        least: int = 0,
    ) -> Launch: ...

    def norm_heads(self, qkv: Tensor, norms: HeadNorms, *, kv_heads: int) -> Launch: ...

    def settle(
        self, hidden: Tensor, copies: Sequence[NormedCopy], *, norm: KernelNorm | None, joining: Joining | None = None
    ) -> Launch: ...

    def scale_logits(self, logits: Tensor, *, scale: float = 1.0, softcap: float = 0.0) -> Launch: ...

    def route(
        self,
        x: Tensor | Normed,
        router: Tensor,
        rules: RouteRules,
        *,
        logits: Tensor,
        chosen: Tensor,
        weights: Tensor,
        tickets: Tensor,
        bias: Tensor | None = None,
    ) -> Launch: ...

    def score(
        self, x: Tensor | Normed, router: Tensor, rules: RouteRules, *, logits: Tensor, bias: Tensor | None = None
    ) -> Launch: ...

    def expert_product(
        self,
        experts: ExpertMatrices,
        chosen: Tensor | Choice,
        x: Tensor | Normed,
        y: Tensor,
        kind: ExpertKind,
        *,
        order: InputOrder = "features",
        activation: ExpertActivation = "silu",
        limit: float = OAI_LIMIT,
    ) -> Launch: ...

    def add_experts(self, experts: ExpertMatrices, choice: Choice, x: Tensor, residual: Residual) -> Launch: ...

    def dense_expert_product(
        self,
        experts: DenseExperts,
        chosen: Tensor,
        x: Tensor,
        y: Tensor,
        kind: ExpertKind,
        *,
        activation: ExpertActivation = "silu",
        limit: float = OAI_LIMIT,
    ) -> Launch: ...

    def exchange_sums(self, values: Tensor, exchange: Exchange) -> Launch: ...

    def exchange_parts(
        self, values: Tensor, exchange: Exchange, *, ends: Sequence[int], to: Sequence[int]
    ) -> Launch: ...

    def count_exchanges(self, peers: Peers, count: int) -> Launch: ...

    def send(self, parts: Sequence[tuple[Tensor, Tensor]]) -> Launch: ...


class ModelKernels(StepKernels, MatrixKernels, Protocol):
    pass


class TorchJob:
    """An operation of the step that torch computes, captured with the rest: for what the kernels do not hold.

    Args:
        work: reads and writes tensors with fixed addresses, and asks the host nothing.
    """

    meets = False

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work

    def launch(self, *, dependent: bool) -> None:  # noqa: ARG002
        """Torch's own kernels always wait for the one before."""
        self._work()


def torch_rows(work: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, *, alike: bool) -> TorchJob:
    """`y` becomes what torch makes of `x`, each row what it would be alone.

    Args:
        work: of `[rows, ...]`, every row by itself.
        alike: whether its sums are the same however many rows there are; those of torch's products and norms are not,
            which then go row by row.
    """
    if alike:
        return TorchJob(lambda: y.copy_(work(x)))

    def one_by_one() -> None:
        for row in range(len(x)):
            y[row : row + 1].copy_(work(x[row : row + 1]))

    return TorchJob(one_by_one)


@dataclass(frozen=True, slots=True)
class AfterTheLast:
    """An operation that never starts before its predecessor ends."""

    job: Launch

    @property
    def meets(self) -> bool:
        return self.job.meets

    def launch(self, *, dependent: bool) -> None:  # noqa: ARG002
        self.job.launch(dependent=False)
