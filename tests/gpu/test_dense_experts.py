"""Products of chosen experts that are not quantized, and whole mixtures in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from exlchat.ext.expert_weights import ExpertMatrices
from exlchat.ext.experts import ExpertActivation
from exlchat.ext.ops import Kernels
from exlchat.ext.routing import RouteRules
from tests.ext import reference_experts
from tests.gpu.expert_cases import (
    BOTH_EDGES,
    DEVICE,
    FLOAT,
    HALF,
    HALF_ERROR,
    Routed,
    check_close,
    dense,
    numbers,
    pairs,
    poisoned,
    randn,
    singles,
)


@BOTH_EDGES
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(8, 2), (352, 96), (768, 2048), (1408, 162), (2048, 768), (2880, 2880), (4096, 50), (14336, 64)],
)
def test_dense_experts(kernels: Kernels, inputs: int, outputs: int, dependent: bool) -> None:
    for chosen in (numbers(3), numbers(4, 0), numbers(2, 2, 4, 1, 0, 3, 3, 2)):
        for kind, matrices in (("gated", 2), ("float", 1)):
            for rows, fused, bias in ((1, False, False), (len(chosen), True, True)):
                experts = dense(5, inputs, outputs, matrices=matrices, bias=bias, fused=fused)
                x = randn(rows, inputs).half()
                y = poisoned(len(chosen), outputs, dtype=HALF if kind == "gated" else FLOAT)
                kernels.dense_expert_product(experts, chosen, x, y, kind).launch(dependent=dependent)
                wanted = reference_experts.dense_expert_product(experts, chosen, x)
                bound = HALF_ERROR if kind == "gated" else 1e-5
                check_close(
                    y, wanted, bound, f"{kind} of {chosen.tolist()}, {rows} rows of x, fused {fused}, bias {bias}"
                )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swiglu_oai"])
def test_activations_of_dense_experts(kernels: Kernels, activation: ExpertActivation) -> None:
    experts, chosen = dense(3, 512, 256, matrices=2, bias=True), numbers(1, 2)
    for size in (0.1, 1.0, 10.0):
        x, y = (randn(1, 512) * size).half(), poisoned(2, 256, dtype=HALF)
        kernels.dense_expert_product(experts, chosen, x, y, "gated", activation=activation).launch(dependent=True)
        wanted = reference_experts.dense_expert_product(experts, chosen, x, activation=activation)
        check_close(y, wanted, HALF_ERROR, f"x of {size}")


class Mixture:
    """route, gate and up, down as a step has them, and what they should give."""

    def __init__(self, kernels: Kernels, *, quantized: bool, count: int, slots: int, hidden: int, inner: int) -> None:
        self.x = randn(1, hidden).half()
        self.router = (randn(count, hidden) * 2 * hidden**-0.5).half()
        self.routed = Routed(kernels, self.x, self.router, RouteRules(count, slots, True), None)
        self.y, chosen = poisoned(slots, hidden, dtype=FLOAT), self.routed.chosen
        self.quantized = quantized
        if quantized:
            self.downs = ExpertMatrices(singles(count, inner, hidden, "8, 5, 4"))
            self.gates = ExpertMatrices(pairs(count, hidden, inner, "4"), into=self.downs)
            self.mixed = torch.zeros(slots, self.downs.stored, dtype=HALF, device=DEVICE)
            jobs = [
                kernels.expert_product(self.gates, chosen, self.x, self.mixed, "gated"),
                kernels.expert_product(self.downs, chosen, self.mixed, self.y, "float", order="stored"),
            ]
        else:
            self.dense_downs = dense(count, inner, hidden, matrices=1)
            self.dense_gates = dense(count, hidden, inner, matrices=2)
            self.mixed = poisoned(slots, inner, dtype=HALF)
            jobs = [
                kernels.dense_expert_product(self.dense_gates, chosen, self.x, self.mixed, "gated"),
                kernels.dense_expert_product(self.dense_downs, chosen, self.mixed, self.y, "float"),
            ]
        self.jobs = [self.routed.job, *jobs]

    def launch(self, *, dependent: bool) -> None:
        for job in self.jobs:
            job.launch(dependent=dependent)

    def check(self, case: object) -> None:
        self.routed.check(self.x, self.router, None, case)
        chosen = self.routed.chosen
        if self.quantized:
            inner = reference_experts.expert_product(self.gates, chosen, self.x)
            wanted = reference_experts.expert_product(self.downs, chosen, inner.half())
        else:
            inner = reference_experts.dense_expert_product(self.dense_gates, chosen, self.x)
            wanted = reference_experts.dense_expert_product(self.dense_downs, chosen, inner.half())
        check_close(self.y, wanted, 3e-3, f"{case}: experts {chosen.tolist()}")


@BOTH_EDGES
@pytest.mark.parametrize("quantized", [True, False], ids=["quantized", "dense"])
@pytest.mark.parametrize("size", [(8, 2, 1024, 768), (24, 8, 512, 352), (16, 4, 704, 1408)], ids=str)
def test_a_graph_follows_the_choice(
    kernels: Kernels, quantized: bool, size: tuple[int, int, int, int], dependent: bool
) -> None:
    count, slots, hidden, inner = size
    mixture = Mixture(kernels, quantized=quantized, count=count, slots=slots, hidden=hidden, inner=inner)
    mixture.launch(dependent=dependent)
    mixture.check("outside a graph")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixture.launch(dependent=dependent)
    seen = set()
    for replay in range(12):
        mixture.x.copy_(randn(1, hidden))
        mixture.y.fill_(float("nan"))
        graph.replay()
        mixture.check(f"replay {replay}")
        seen.add(tuple(mixture.routed.chosen[0].tolist()))
    assert len(seen) > 1, "every replay chose the same experts"


def test_replays_one_behind_the_other_give_the_same_bits(kernels: Kernels) -> None:
    """Four layers a replay with dependent edges, nothing between replays: what is not waited for shows."""
    layers = [Mixture(kernels, quantized=True, count=8, slots=2, hidden=512, inner=352) for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer.launch(dependent=True)
    first: list[Tensor] = []
    for run in range(50):
        for layer in layers:
            layer.y.fill_(float("nan"))
        for _ in range(5):
            graph.replay()
        found = [layer.y.clone() for layer in layers]
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True)), f"run {run}"
    for number, layer in enumerate(layers):
        layer.check(f"layer {number}")
