"""The operations of `experts.py` in plain torch: the definition, and the oracle of the kernel tests."""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.experts import OAI_LIMIT, ExpertActivation
from exlchat.ext.layout import PackedMatrix, decode, unsigned
from exlchat.ext.products import Normed, Residual
from exlchat.ext.routing import Choice, RouteRules
from tests.ext.reference import activated, put_residual, read


def route(
    x: Tensor | Normed, router: Tensor, rules: RouteRules, *, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """float64 logits `[tokens, rows]`; int64 numbers and float64 weights of those chosen, `[tokens, slots]` each, the
    best first.
    """
    if isinstance(x, Normed):  # not rounded to halves
        mean = x.squares.double().sum(1, keepdim=True) / router.shape[1]
        x = x.values.double() * torch.rsqrt(mean + x.eps)
    logits = x.double() @ router.double().T
    if bias is not None:
        logits += bias.double()
    return logits, *made(Choice(logits, rules))


def row_of_each(x: Tensor | Normed, chosen: Tensor) -> Tensor:
    """`[slots, width]` of x, each row of which is of as many slots."""
    x = read(x, x.values.shape[1]) if isinstance(x, Normed) else x
    return x.repeat_interleave(chosen.numel() // len(x), dim=0)


def choose(logits: Tensor, rules: RouteRules) -> tuple[Tensor, Tensor]:
    """The second half of `route`, from logits of any width."""
    logits = logits[: rules.experts].double()
    # A stable sort leaves equals in the order of their numbers.
    chosen = logits.sort(descending=True, stable=True).indices[: rules.slots]
    weights = torch.softmax(logits, 0)[chosen]
    return chosen, weights / weights.sum() if rules.renormalised else weights


def expert_product(
    experts: ExpertMatrices,
    chosen: Tensor,
    x: Tensor | Normed,
    *,
    activation: ExpertActivation = "silu",
    limit: float = OAI_LIMIT,
) -> Tensor:
    """float64 `[slots, outputs]` in the order of the columns, of x `[rows, features]` in that of the features."""
    rows = []
    for row, expert in zip(row_of_each(x, chosen).double(), chosen.flatten().tolist(), strict=True):
        parts = [_one_product(matrix, row) for matrix in experts.experts[expert]]
        rows.append(parts[0] if len(parts) == 1 else gated(parts[0], parts[1], activation, limit))
    return torch.stack(rows)


def made(choice: Choice) -> tuple[Tensor, Tensor]:
    """int64 numbers and float64 weights of those chosen, `[tokens, slots]` each."""
    chosen, weights = zip(*(choose(row, choice.rules) for row in choice.logits), strict=True)
    return torch.stack(chosen), torch.stack(weights)


def add_experts(experts: ExpertMatrices, choice: Choice, x: Tensor, residual: Residual) -> None:
    """`hidden += sum of weight[slot] * x[slot] W`, of x `[tokens * slots, stored]` in stored order."""
    chosen, weights = made(choice)
    places = [unsigned(experts.experts[number][0].scatter) for number in chosen.flatten().tolist()]
    rows = torch.stack([row[place] for row, place in zip(x, places, strict=True)])
    each = expert_product(experts, chosen, rows).view(*chosen.shape, -1)
    put_residual(residual, residual.hidden.double(), (each * weights.unsqueeze(-1)).sum(1))


def to_places(experts: ExpertMatrices, chosen: Tensor, y: Tensor) -> Tensor:
    """`[slots, stored]`: outputs `[slots, outputs]` where the matrices behind them read them; the rest zero."""
    into = experts.into
    if into is None:
        return y
    placed = y.new_zeros(len(y), into.stored)
    for slot, expert in enumerate(chosen.flatten().tolist()):
        placed[slot, unsigned(into.experts[expert][0].scatter)] = y[slot]
    return placed


def dense_expert_product(
    experts: DenseExperts,
    chosen: Tensor,
    x: Tensor,
    *,
    activation: ExpertActivation = "silu",
    limit: float = OAI_LIMIT,
) -> Tensor:
    """float64 `[slots, outputs]`."""
    numbers, rows = chosen.flatten().long(), row_of_each(x, chosen).double()
    parts = []
    for index, weight in enumerate(experts.weights):
        part = torch.einsum("soi,si->so", weight[numbers].double(), rows)
        parts.append(part + experts.biases[index][numbers].double() if experts.biases else part)
    return parts[0] if len(parts) == 1 else gated(parts[0], parts[1], activation, limit)


def gated(gate: Tensor, up: Tensor, activation: ExpertActivation, limit: float) -> Tensor:
    """`activation(gate) * up`, or what gpt-oss has in its place."""
    if activation != "swiglu_oai":
        return activated(gate, activation) * up
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def _one_product(matrix: PackedMatrix, x: Tensor) -> Tensor:
    y = x @ decode(matrix).double()
    return y if matrix.bias is None else y + matrix.bias.double()
