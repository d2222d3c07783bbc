"""A layer of experts behind a residual, from the choice to what is added, against the references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from exlchat.ext.expert_weights import ExpertMatrices
from exlchat.ext.experts import ExpertKernels
from exlchat.ext.layout import PackedMatrix, to_stored
from exlchat.ext.products import NormCopy, Normed, Residual
from exlchat.ext.routing import Choice, RouteRules
from tests.ext import reference_experts
from tests.ext.matrix_cases import relative_error
from tests.ext.row_cases import same

EPS = 1e-5


class ExpertLayer:
    """Experts of one layer, each with orders of its own, behind a residual of `hidden` numbers.

    Args:
        packed: a new matrix of so many features and outputs, which says where all of it lies.
        renormalised: else the router is of floats and has a bias, too.
    """

    def __init__(
        self,
        count: int,
        hidden: int,
        inner: int,
        slots: int,
        packed: Callable[[int, int], PackedMatrix],
        *,
        renormalised: bool = True,
    ) -> None:
        self._packed = packed
        self.next = packed(hidden, 32)
        self.device = self.next.words.device
        self.rules = RouteRules(count, slots, renormalised)
        self.router = torch.randn(count, hidden, device=self.device) * hidden**-0.5
        self.bias = None if renormalised else torch.randn(count, device=self.device)
        if renormalised:
            self.router = self.router.half()
        self.norm = (torch.randn(hidden, device=self.device) * 0.1 + 1).half()
        self.downs = ExpertMatrices([(packed(inner, hidden),) for _ in range(count)])
        self.gates = ExpertMatrices([self._pair(hidden, inner) for _ in range(count)], into=self.downs)
        self.hidden = hidden

    def _pair(self, hidden: int, inner: int) -> tuple[PackedMatrix, PackedMatrix]:
        gate = self._packed(hidden, inner)
        return gate, replace(self._packed(hidden, inner), gather=gate.gather)

    def _poisoned(self, *shape: int) -> Tensor:
        return torch.full(shape, float("nan"), device=self.device)

    def x(self, stream: Tensor) -> Normed:
        """What a residual left in the order of the features."""
        return Normed(stream * self.norm, (stream.view(len(stream), -1, 16) ** 2).sum(2), EPS)

    def run(
        self, kernels: ExpertKernels, stream: Tensor, *, dependent: bool = True, made: bool = False
    ) -> dict[str, Tensor]:
        """All that is computed of rows of the stream; the choice is made once, or by each product."""
        rows, x = len(stream), self.x(stream)
        logits, weights = self._poisoned(rows, len(self.router)), self._poisoned(rows, self.rules.slots)
        chosen = torch.full((rows, self.rules.slots), -1, dtype=torch.int32, device=self.device)
        choice = Choice(logits, self.rules, (chosen, weights) if made else None)
        tickets = torch.zeros(rows, dtype=torch.int32, device=self.device)
        route = kernels.score(x, self.router, self.rules, logits=logits, bias=self.bias)
        if made:
            given = {"logits": logits, "chosen": chosen, "weights": weights, "tickets": tickets}
            route = kernels.route(x, self.router, self.rules, bias=self.bias, **given)
        inner = torch.zeros(choice.slots, self.downs.stored, device=self.device).half()
        copy = NormCopy(torch.zeros(rows, self.next.stored, device=self.device), self.next.scatter, self.norm)
        residual = Residual(stream.clone(), self._poisoned(rows, self.hidden // 16), (copy,), multiplier=0.5)
        for job in (
            route,
            kernels.expert_product(self.gates, choice, x, inner, "gated"),
            kernels.add_experts(self.downs, choice, inner, residual),
        ):
            job.launch(dependent=dependent)
        left = {"hidden": residual.hidden, "squares": residual.squares, "copy": copy.values}
        return {"logits": logits, "inner": inner.view(rows, -1), **left}

    def check(self, kernels: ExpertKernels, stream: Tensor) -> None:
        """Each step as the reference has it of what came before; and of each row the bits that it has alone."""
        rows, x, found = len(stream), self.x(stream), self.run(kernels, stream)
        logits, _, _ = reference_experts.route(x, self.router, self.rules, bias=self.bias)
        assert relative_error(found["logits"], logits) < 1e-5
        # Chosen among the logits as they were rounded.
        choice = Choice(found["logits"], self.rules)
        chosen, _ = reference_experts.made(choice)
        placed = reference_experts.to_places(
            self.gates, chosen, reference_experts.expert_product(self.gates, chosen, x)
        )
        inner = found["inner"].view(placed.shape)
        assert relative_error(inner, placed) < 2e-3
        residual = Residual(stream.clone(), self._poisoned(rows, self.hidden // 16), (), multiplier=0.5)
        reference_experts.add_experts(self.downs, choice, inner, residual)
        assert relative_error(found["hidden"] - stream, residual.hidden - stream) < 1e-3
        assert torch.allclose(found["squares"], (found["hidden"].view(rows, -1, 16) ** 2).sum(2), rtol=1e-5)
        assert torch.allclose(found["copy"], to_stored(found["hidden"] * self.norm, self.next), rtol=1e-5, atol=1e-6)
        again = self.run(kernels, stream, made=True)
        assert all(same(found[name], one) for name, one in again.items())
        for row in range(rows if rows > 1 else 0):
            alone = self.run(kernels, stream[row : row + 1], dependent=False)
            assert all(same(found[name][row : row + 1], one) for name, one in alone.items())
