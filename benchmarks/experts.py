"""The experts of two mixtures (Qwen3-30B-A3B's and Mixtral-8x7B's): route, gate and up, down of every layer in one
CUDA graph, on a GPU, with edges as the engine has them: gate and up never start early.

    python -m benchmarks.experts

Random weights in 4 bits, which read the residual and add to it, and as halves, which do not. Every layer has its own
experts, so that a replay reads far more than L2 holds; bytes are those of the experts chosen, and of the router for
`route`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from benchmarks.compiled import compiled_library
from benchmarks.kernels import DEVICE, exl2, widened
from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.engine.decode.kernels import AfterTheLast
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.ops import Kernels
from exlchat.ext.products import NormCopy, Normed, Residual
from exlchat.ext.routing import Choice, RouteRules

FOUR_BITS = (Section(4, 1.0, 128),)


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a mixture, and of how many layers of it are measured: some gigabytes."""

    hidden: int
    experts: int
    slots: int
    inner: int
    layers: int
    dense_layers: int


SHAPES = {
    "Qwen3-30B-A3B": Shape(hidden=2048, experts=128, slots=8, inner=768, layers=16, dense_layers=8),
    "Mixtral-8x7B": Shape(hidden=4096, experts=8, slots=2, inner=14336, layers=8, dense_layers=4),
}


@dataclass(frozen=True, slots=True)
class Layer:
    """Its three jobs, and the bytes that each reads."""

    jobs: dict[str, Launch]
    bytes: dict[str, int]


def main() -> None:
    """Measures and prints."""
    kernels = Kernels(compiled_library())
    limit = copy_bandwidth()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s\n")
    print("| layer | weights | kernels | MB | plain edges | dependent | GB/s | of the copy |")
    print("|---|---|---|--:|--:|--:|--:|--:|")
    for name, shape in SHAPES.items():
        for weights in ("4 bits", "halves"):
            for row in rows_of(kernels, shape, weights, limit):
                print(f"| {name} | {weights} {row}")
            torch.cuda.empty_cache()


def rows_of(kernels: Kernels, shape: Shape, weights: str, limit: float) -> list[str]:
    """The lines of one mixture: all three kernels of a layer, and each by itself."""
    count = shape.layers if weights == "4 bits" else shape.dense_layers
    buffers = Buffers.of(shape)
    layers = [buffers.layer(kernels, shape, quantized=weights == "4 bits") for _ in range(count)]
    rows = []
    for which in (tuple(layers[0].jobs), *((kind,) for kind in layers[0].jobs)):
        # The products by themselves take the experts that the whole mixture, measured first, has chosen.
        jobs = [layer.jobs[kind] for layer in layers for kind in which]
        plain, dependent = (graph_seconds(jobs, dependent=edges) / count for edges in (False, True))
        size = sum(layers[0].bytes[kind] for kind in which)
        rate = size / dependent
        rows.append(
            f"| {' + '.join(which)} | {size / 1e6:.1f} | {plain * 1e6:.2f} us | {dependent * 1e6:.2f} us "
            f"| {rate / 1e9:.0f} | {rate / limit:.0%} |"
        )
    return rows


@dataclass(frozen=True, slots=True)
class Buffers:
    """What the layers of a step share."""

    x: Tensor
    logits: Tensor
    weights: Tensor
    tickets: Tensor
    mixed: Tensor
    y: Tensor
    normed: Normed
    residual: Residual

    @classmethod
    def of(cls, shape: Shape) -> Buffers:
        """Empty ones but for x."""
        hidden, squares = torch.randn(1, shape.hidden, device=DEVICE), torch.ones(1, shape.hidden // 16, device=DEVICE)
        order = torch.arange(shape.hidden, device=DEVICE).to(torch.int16)
        copy = NormCopy(torch.zeros_like(hidden), order, torch.ones(shape.hidden, dtype=torch.float16, device=DEVICE))
        return cls(
            normed=Normed(hidden, squares, 1e-5),
            residual=Residual(hidden.clone(), squares.clone(), (copy,)),
            x=torch.randn(1, shape.hidden, device=DEVICE).half(),
            logits=torch.zeros(1, shape.experts, device=DEVICE),
            weights=torch.zeros(1, shape.slots, device=DEVICE),
            tickets=torch.zeros(1, dtype=torch.int32, device=DEVICE),
            mixed=torch.zeros(shape.slots, shape.inner, dtype=torch.float16, device=DEVICE),
            y=torch.zeros(shape.slots, shape.hidden, device=DEVICE),
        )

    def layer(self, kernels: Kernels, shape: Shape, *, quantized: bool) -> Layer:
        """A layer of random weights. It keeps its own choice."""
        router = (torch.randn(shape.experts, shape.hidden, device=DEVICE) * shape.hidden**-0.5).half()
        rules = RouteRules(shape.experts, shape.slots, renormalised=True)
        if quantized:
            downs, gates = packed_experts(shape)
            choice = Choice(torch.randn(1, shape.experts, device=DEVICE), rules)
            route = kernels.score(self.normed, router, rules, logits=choice.logits)
            first = kernels.expert_product(gates, choice, self.normed, self.mixed, "gated")
            second = kernels.add_experts(downs, choice, self.mixed, self.residual)
            sizes = gates.bytes, downs.bytes
        else:
            chosen = torch.arange(shape.slots, dtype=torch.int32, device=DEVICE).view(1, -1)
            route = kernels.route(
                self.x,
                router,
                rules,
                logits=self.logits,
                chosen=chosen,
                weights=self.weights,
                tickets=self.tickets,
            )
            dense_gates, dense_downs = dense_experts(shape)
            first = kernels.dense_expert_product(dense_gates, chosen, self.x, self.mixed, "gated")
            second = kernels.dense_expert_product(dense_downs, chosen, self.mixed, self.y, "float")
            sizes = dense_gates.bytes, dense_downs.bytes
        return Layer(
            {"route": route, "gate and up": AfterTheLast(first), "down": second},
            {"route": router.nbytes, "gate and up": sizes[0] * shape.slots, "down": sizes[1] * shape.slots},
        )


def packed_experts(shape: Shape) -> tuple[ExpertMatrices, ExpertMatrices]:
    """Down, and gate and up, of a layer; each expert has orders of its own."""
    of_hidden, of_inner = exl2(shape.hidden, FOUR_BITS), exl2(shape.inner, FOUR_BITS)
    downs = ExpertMatrices([(reordered(widened(of_inner, shape.hidden)),) for _ in range(shape.experts)])
    gates = []
    for _ in range(shape.experts):
        gate = reordered(widened(of_hidden, shape.inner))
        gates.append((gate, replace(widened(of_hidden, shape.inner), gather=gate.gather)))
    return downs, ExpertMatrices(gates, into=downs)


def reordered(matrix: PackedMatrix) -> PackedMatrix:
    """With a random order of its inputs."""
    order = torch.randperm(matrix.features, device=DEVICE).to(torch.int32).to(torch.int16)
    return replace(matrix, gather=order)


def dense_experts(shape: Shape) -> tuple[DenseExperts, DenseExperts]:
    """Gate and up, and down, of a layer."""

    def weights(outputs: int, inputs: int) -> Tensor:
        made = torch.randn(shape.experts, outputs, inputs, dtype=torch.float16, device=DEVICE)
        return made.mul_(inputs**-0.5)

    gates = (weights(shape.inner, shape.hidden), weights(shape.inner, shape.hidden))
    return DenseExperts(gates), DenseExperts((weights(shape.hidden, shape.inner),))


if __name__ == "__main__":
    main()
