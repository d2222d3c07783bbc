"""The four products of a decoder layer of an 8B Llama for the rows of a prompt, on a GPU: one kernel, or written out.

    python -m benchmarks.prompt_products

4 bits, random weights; ten layers in one CUDA graph, so that none of their weights are left in L2. "Kernel" reads the
codes once for up to 64 rows and takes x in the order of the features; "written out" makes float16 weights and
multiplies them with cuBLAS. Times are of one layer; where the ratio passes 1, the engine goes from one to the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from benchmarks.compiled import compiled_library
from benchmarks.kernels import DEVICE, STRUCTURES, Layer, random_layers
from benchmarks.timing import copy_bandwidth, event_seconds
from exlchat.engine.layers.quantized_linear import Scratch
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.ops import Kernels

ROWS = (9, 16, 32, 50, 64, 96, 128, 192, 256, 320, 384)
LAYERS = 10

Product = Callable[[], object]
"""One product of one layer, ready to run."""


def main() -> None:
    """Measures and prints."""
    kernels = Kernels(compiled_library())
    print_table(kernels, random_layers(STRUCTURES["4 bits"])[:LAYERS])


def print_table(kernels: Kernels, layers: Sequence[Layer]) -> None:
    """A line for each number of rows."""
    limit, size = copy_bandwidth(), layers[0].bytes
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}; all weights of a layer at the copy bandwidth,")
    print(f"{limit / 1e12:.2f} TB/s: {size / limit * 1e6:.1f} us\n")
    print("| rows | qkv | output | gate, up | down | kernel, all | written out, all | ratio |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    for rows in ROWS:
        kernel, written = (microseconds(make, kernels, layers, rows) for make in (with_kernel, written_out))
        each = " | ".join(f"{time:.1f}" for time in kernel)
        ratio = sum(kernel) / sum(written)
        print(f"| {rows} | {each} | {sum(kernel):.0f} us | {sum(written):.0f} us | {ratio:.2f} |", flush=True)


def microseconds(
    make: Callable[[Kernels, tuple[PackedMatrix, ...], int], Product],
    kernels: Kernels,
    layers: Sequence[Layer],
    rows: int,
) -> list[float]:
    """The time of each of the four products."""
    return [
        graph_microseconds([make(kernels, layer.products[name], rows) for layer in layers])
        for name in layers[0].products
    ]


def with_kernel(kernels: Kernels, matrices: tuple[PackedMatrix, ...], rows: int) -> Product:
    """All matrices in one kernel."""
    x = torch.randn(rows, matrices[0].features, device=DEVICE).half()
    product = kernels.row_product(matrices)
    return lambda: product(x)


def written_out(kernels: Kernels, matrices: tuple[PackedMatrix, ...], rows: int) -> Product:
    """As the engine does it for long prompts: a matrix at a time."""
    x = torch.randn(rows, matrices[0].features, device=DEVICE).half()
    y = torch.empty(rows, sum(matrix.outputs for matrix in matrices), dtype=torch.float16, device=DEVICE)
    places = torch.split(y, [matrix.outputs for matrix in matrices], dim=1)

    def work() -> None:
        for matrix, place in zip(matrices, places, strict=True):
            weights = scratch().take(matrix.features, matrix.outputs)
            kernels.dequantize(matrix, weights)
            torch.mm(x, weights, out=place)

    return work


@functools.cache
def scratch() -> Scratch:
    """Where weights are written out to, one matrix after the other."""
    return Scratch(DEVICE)


def graph_microseconds(products: Sequence[Product]) -> float:
    """Median time of one of them, all in one graph."""
    for product in products:
        product()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for product in products:
            product()
    return event_seconds(graph.replay, repeat=20) / len(products) * 1e6


if __name__ == "__main__":
    main()
