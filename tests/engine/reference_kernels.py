"""The operations of the CUDA extension as their references compute them, for tests without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from exlchat.ext import layout
from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.exchange import Exchange, Peers
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.experts import OAI_LIMIT, ExpertActivation, ExpertKind, InputOrder
from exlchat.ext.heads import HeadNorms
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import Activation, Kind, Normed, Residual
from exlchat.ext.routing import Choice, RouteRules
from exlchat.ext.settle import Joining, KernelNorm, NormedCopy
from tests.ext import (
    reference,
    reference_attention,
    reference_experts,
    reference_heads,
    reference_sampling,
    reference_settle,
)


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
    monkeypatch.setattr(reference_experts, "decode", decode)
    yield
    torch.set_num_threads(threads)


class ReferenceJob:
    """A prepared operation."""

    def __init__(self, work: Callable[[], object], *, meets: bool = False) -> None:
        self._work = work
        self.meets = meets

    def launch(self, *, dependent: bool) -> None:
        self._work()


def sum_of(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class Meeting:
    """Exchanges of cards whose operations run by turns: whoever comes last finishes for all."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, tuple[Tensor, Callable[[list[Tensor]], object]]]] = {}

    def come(self, exchange: Exchange, own: Tensor, finish: Callable[[list[Tensor]], object]) -> None:
        """`finish` gets what every card came with, in their order."""
        there = self._waiting.setdefault(exchange.number, {})
        assert exchange.peers.card not in there
        there[exchange.peers.card] = own.clone(), finish
        if len(there) == exchange.peers.cards:
            del self._waiting[exchange.number]
            for _, finished in there.values():
                finished([there[card][0] for card in sorted(there)])


class ReferenceRowProduct:
    """Of x in stored order where that has a place for each feature and no other."""

    def __init__(self, matrices: Sequence[PackedMatrix]) -> None:
        self._matrices = matrices

    def __call__(self, x: Tensor, *, permuted: bool = False) -> Tensor:
        return reference.product(self._matrices, x if permuted else layout.to_stored(x, self._matrices[0])).half()

    def permutation(self, _rows: int) -> Tensor | None:
        first = self._matrices[0]
        return first.scatter if first.features == first.stored else None


class ReferenceKernels:
    """As `exlchat.ext.ops.Kernels`, on the CPU."""

    def __init__(self) -> None:
        self._meeting = Meeting()

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
            if kind not in ("gated", "activated"):
                y.copy_(reference.product(matrices, x))
                return
            if kind == "gated":
                gate, up = matrices
                value = reference.gated(gate, up, x, activation).to(y.dtype)
            else:
                value = reference.activated(reference.product(matrices, x), activation).to(y.dtype)
            if scatter is None:
                y.copy_(value)
            else:
                y[:, layout.unsigned(scatter)] = value

        return ReferenceJob(work)

    def add_product(self, matrix: PackedMatrix, x: Tensor | Normed, residual: Residual) -> ReferenceJob:
        exchange = residual.exchange
        if exchange is None:
            return ReferenceJob(lambda: reference.add_product(matrix, x, residual))

        def add(parts: list[Tensor]) -> None:
            reference.put_residual(residual, reference.stream_of(residual), sum_of(parts))

        return ReferenceJob(
            lambda: self._meeting.come(exchange, reference.product([matrix], x).float(), add), meets=True
        )

    def exchange_sums(self, values: Tensor, exchange: Exchange) -> ReferenceJob:
        return ReferenceJob(
            lambda: self._meeting.come(exchange, values, lambda parts: values.copy_(sum_of(parts))), meets=True
        )

    def exchange_parts(
        self, values: Tensor, exchange: Exchange, *, ends: Sequence[int], to: Sequence[int]
    ) -> ReferenceJob:
        card, starts = exchange.peers.card, (0, *ends)
        begin = starts[card] if card in to else 0
        own = values[:, begin : begin + ends[card] - starts[card]]
        if card in to or not card:
            assert begin == starts[card]

        def take(parts: list[Tensor]) -> None:
            if card in to:
                for sender, part in enumerate(parts):
                    values[:, starts[sender] : ends[sender]] = part

        return ReferenceJob(lambda: self._meeting.come(exchange, own, take), meets=True)

    def count_exchanges(self, peers: Peers, count: int) -> ReferenceJob:
        def work() -> None:
            peers.state[0] += count

        return ReferenceJob(work)

    def send(self, parts: Sequence[tuple[Tensor, Tensor]]) -> ReferenceJob:
        def work() -> None:
            for source, target in parts:
                target.copy_(source)

        return ReferenceJob(work)

    def reach(self, devices: Sequence[torch.device]) -> bool:
        return all(device.type == "cpu" for device in devices)

    def embed(self, table: Tensor, token: Tensor, residual: Residual | Tensor, multiplier: float = 1.0) -> ReferenceJob:
        return ReferenceJob(lambda: reference.embed(table, token, residual, multiplier))

    def head_product(self, weight: Tensor, x: Tensor | Normed, y: Tensor) -> ReferenceJob:
        return ReferenceJob(lambda: y.copy_(reference.head_product(weight, x)))

    def settle(
        self, hidden: Tensor, copies: Sequence[NormedCopy], *, norm: KernelNorm | None, joining: Joining | None = None
    ) -> ReferenceJob:
        return ReferenceJob(lambda: reference_settle.settle(hidden, copies, norm=norm, joining=joining))

    def norm_heads(self, qkv: Tensor, norms: HeadNorms, *, kv_heads: int) -> ReferenceJob:
        return ReferenceJob(lambda: reference_heads.norm_heads(qkv, norms, kv_heads=kv_heads))

    def scale_logits(self, logits: Tensor, *, scale: float = 1.0, softcap: float = 0.0) -> ReferenceJob:
        return ReferenceJob(lambda: logits.copy_(reference_sampling.scale_logits(logits, scale=scale, softcap=softcap)))

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
    ) -> ReferenceJob:
        def work() -> None:
            for place, found in zip(
                (logits, chosen, weights), reference_experts.route(x, router, rules, bias=bias), strict=True
            ):
                place.copy_(found)

        return ReferenceJob(work)

    def score(
        self, x: Tensor | Normed, router: Tensor, rules: RouteRules, *, logits: Tensor, bias: Tensor | None = None
    ) -> ReferenceJob:
        return ReferenceJob(lambda: logits.copy_(reference_experts.route(x, router, rules, bias=bias)[0]))

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
    ) -> ReferenceJob:
        def work() -> None:
            numbers = reference_experts.made(chosen)[0] if isinstance(chosen, Choice) else chosen
            rows = reference_experts.row_of_each(x, numbers)
            if order == "stored":
                places = [layout.unsigned(experts.experts[one][0].scatter) for one in numbers.flatten().tolist()]
                rows = torch.stack([row[place] for row, place in zip(rows, places, strict=True)])
            found = reference_experts.expert_product(experts, numbers, rows, activation=activation, limit=limit)
            y.copy_(reference_experts.to_places(experts, numbers, found))

        return ReferenceJob(work)

    def add_experts(self, experts: ExpertMatrices, choice: Choice, x: Tensor, residual: Residual) -> ReferenceJob:
        assert experts.why_not_summed(choice.rules.slots) is None
        assert residual.exchange is None
        return ReferenceJob(lambda: reference_experts.add_experts(experts, choice, x, residual))

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
    ) -> ReferenceJob:
        return ReferenceJob(
            lambda: y.copy_(
                reference_experts.dense_expert_product(experts, chosen, x, activation=activation, limit=limit)
            )
        )

    def row_product(self, matrices: Sequence[PackedMatrix]) -> ReferenceRowProduct:
        return ReferenceRowProduct(matrices)

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
        least: int = 0,
    ) -> ReferenceJob:
        def work() -> None:
            for row, place in enumerate(position.tolist()):
                mixed = reference_attention.attention(
                    qkv if qkv.ndim == 2 else qkv[row],
                    pages=pages,
                    page_table=page_table if page_table.ndim == 1 else page_table[row],
                    position=place,
                    turns=turns,
                    rules=rules,
                ).flatten()
                to = out if out.ndim == 1 else out[row]
                to[slice(None) if scatter is None else layout.unsigned(scatter)] = mixed.to(out.dtype)

        return ReferenceJob(work)
