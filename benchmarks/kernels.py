"""The four products of a decoder layer of an 8B Llama, 32 layers as 128 dependent kernels in one CUDA graph, on a GPU.

    python -m benchmarks.kernels

Random weights, all of which every replay reads. Beside each time stand the bytes over it and its share of the copy
bandwidth measured in the same run. The second table has each of the four products alone, 128 of them in a graph, the
third what a layer takes of several rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext import layout
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.job import Job
from exlchat.ext.layout import PIECE_ROWS, TILE_COLUMNS, PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from exlchat.ext.products import NormCopy, Normed, Products, Residual
from exlchat.ext.tiles import pack_tiles

DEVICE = torch.device("cuda")
LAYERS, HIDDEN, QKV, INNER = 32, 4096, 6144, 14336
EPS = 1e-5
# EXL2 needs whole 32 columns, two column tiles.
NARROW = 32
EACH_OF = "4 bits"
SEVERAL_OF, ROWS = ("4 bits", "5 % 8, 10 % 5, 85 % 4 bits"), (1, 2, 4, 8)


def main() -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(open_library(ensure_library(Path(folder)), FUNCTIONS))
    limit = copy_bandwidth()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s\n")
    print("| weights | GB | plain edges | dependent | TB/s | of the copy |\n|---|--:|--:|--:|--:|--:|")
    for name, narrow in STRUCTURES.items():
        print(whole_row(kernels, name, random_layers(narrow), limit))
    print(f"\n| {EACH_OF} | MB | a kernel | TB/s | of the copy |\n|---|--:|--:|--:|--:|")
    for row in rows_of_each(kernels, random_layers(STRUCTURES[EACH_OF]), limit):
        print(row)
    print(f"\n| us a layer, rows | {' | '.join(map(str, ROWS))} |\n|---{'|--:' * len(ROWS)}|")
    for name in SEVERAL_OF:
        print(of_several(kernels, name, random_layers(STRUCTURES[name])))


@dataclass(frozen=True, slots=True)
class Layer:
    """The matrices of one decoder layer."""

    qkv: PackedMatrix
    output: PackedMatrix
    gate: PackedMatrix
    up: PackedMatrix
    down: PackedMatrix

    @property
    def products(self) -> dict[str, tuple[PackedMatrix, ...]]:
        """Which of them each product reads, in the order of a step."""
        return {
            "qkv, normed": (self.qkv,),
            "output, added": (self.output,),
            "gate and up, normed": (self.gate, self.up),
            "down, added": (self.down,),
        }

    @property
    def bytes(self) -> int:
        """What the four products read."""
        return sum(matrix.bytes for matrices in self.products.values() for matrix in matrices)


def whole_row(kernels: Products, name: str, layers: list[Layer], limit: float) -> str:
    """The line of one structure."""
    jobs = [job for four in chain(kernels, layers) for job in four]
    plain, dependent = (graph_seconds(jobs, dependent=edges) for edges in (False, True))
    size = sum(layer.bytes for layer in layers)
    return (
        f"| {name} | {size / 1e9:.2f} | {plain * 1e3:.3f} ms | {dependent * 1e3:.3f} ms "
        f"| {size / dependent / 1e12:.2f} | {size / dependent / limit:.0%} |"
    )


def rows_of_each(kernels: Products, layers: list[Layer], limit: float) -> list[str]:
    """The lines of the four products, each in a graph without the others."""
    rows = []
    fours = chain(kernels, layers)
    for kind, (name, matrices) in enumerate(layers[0].products.items()):
        jobs = 4 * [four[kind] for four in fours]
        seconds = graph_seconds(jobs, dependent=True) / len(jobs)
        size = sum(matrix.bytes for matrix in matrices)
        rate = size / seconds
        rows.append(f"| {name} | {size / 1e6:.1f} | {seconds * 1e6:.2f} us | {rate / 1e12:.2f} | {rate / limit:.0%} |")
    return rows


def of_several(kernels: Products, name: str, layers: list[Layer]) -> str:
    """The line of one structure."""
    times = []
    for rows in ROWS:
        jobs = [job for four in chain(kernels, layers, rows) for job in four]
        times.append(graph_seconds(jobs, dependent=True) / LAYERS)
    return f"| {name} | {' | '.join(f'{seconds * 1e6:.1f}' for seconds in times)} |"


def exl2(features: int, sections: tuple[Section, ...]) -> PackedMatrix:
    """A narrow matrix as EXL2 files have it, of weights that keep the size of what they are multiplied with."""
    return pack_exl2(quantize_matrix(torch.randn(features, NARROW, device=DEVICE) * features**-0.5, sections))


def gptq(features: int, group_size: int) -> PackedMatrix:
    """A narrow matrix as symmetric GPTQ files have it, its rows permuted as by act-order."""
    pieces = features // PIECE_ROWS
    section = layout.LayoutSection(4, "plain", group_size, row=0, piece=0, pieces=pieces, word=0, scale=0)
    groups = (features // group_size, NARROW)
    # 16 codes of one step each have a deviation of 4.6 steps.
    step = torch.full(groups, features**-0.5 / 4.6, dtype=torch.float16, device=DEVICE)
    zero = torch.full(groups, 7, dtype=torch.uint8, device=DEVICE)
    codes = torch.randint(16, (features, NARROW), dtype=torch.int32, device=DEVICE)
    return PackedMatrix(
        features=features,
        outputs=NARROW,
        sections=(section,),
        words=pack_tiles(codes, section.bits),
        scales=layout.plain_scales(step, zero, section),
        gather=torch.randperm(features, device=DEVICE).to(torch.int32).to(torch.int16),
    )


STRUCTURES: dict[str, Callable[[int], PackedMatrix]] = {
    **{f"{bits} bits": partial(exl2, sections=(Section(bits, 1.0, 128),)) for bits in (2, 3, 4, 5, 6, 8)},
    "4 bits in groups of 32": partial(exl2, sections=(Section(4, 1.0, 32),)),
    "5 % 8, 10 % 5, 85 % 4 bits": partial(
        exl2, sections=(Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128))
    ),
    "GPTQ in groups of 128": partial(gptq, group_size=128),
}
"""Number of features -> a narrow matrix, whose structure those of the layers have."""


def random_layers(narrow: Callable[[int], PackedMatrix]) -> list[Layer]:
    """All layers; each has codes of its own."""
    of_hidden, of_inner = narrow(HIDDEN), narrow(INNER)
    return [
        Layer(
            qkv=widened(of_hidden, QKV),
            output=widened(of_hidden, HIDDEN),
            gate=widened(of_hidden, INNER),
            up=widened(of_hidden, INNER),
            down=widened(of_inner, HIDDEN),
        )
        for _ in range(LAYERS)
    ]


def widened(narrow: PackedMatrix, outputs: int) -> PackedMatrix:
    """A matrix of the same structure, full of random codes; its columns have the scales of the first ones."""
    tiles = outputs // TILE_COLUMNS
    words = torch.randint(-(2**31), 2**31, (tiles, narrow.words.shape[1]), dtype=torch.int32, device=DEVICE)
    return replace(narrow, outputs=outputs, words=words, scales=narrow.scales[:1].repeat(tiles, 1))


def chain(kernels: Products, layers: list[Layer], rows: int = 1) -> list[list[Job]]:
    """The four products of each layer, reading what the ones before have written; attention is left out."""
    hidden, squares = torch.zeros(rows, HIDDEN, device=DEVICE), torch.zeros(rows, HIDDEN // 16, device=DEVICE)
    # Codes are half a step off centre; random signs keep that from adding up.
    weight = (2 * torch.randint(2, (HIDDEN,), device=DEVICE) - 1).half()
    for_qkv, for_gate = (torch.zeros(rows, HIDDEN, device=DEVICE) for _ in range(2))
    heads, inner = (torch.zeros(rows, width, dtype=torch.float16, device=DEVICE) for width in (QKV, INNER))
    mixed = torch.randn(rows, HIDDEN, device=DEVICE).half()
    jobs = []
    # A replay goes on where the last one has ended.
    for layer, following in zip(layers, [*layers[1:], layers[0]], strict=True):
        to_gate = Residual(hidden, squares, (NormCopy(for_gate, layer.gate.scatter, weight),))
        to_qkv = Residual(hidden, squares, (NormCopy(for_qkv, following.qkv.scatter, weight),))
        gate_up = [layer.gate, layer.up]
        jobs.append(
            [
                kernels.product([layer.qkv], Normed(for_qkv, squares, EPS), heads, "half"),
                kernels.add_product(layer.output, mixed, to_gate),
                kernels.product(gate_up, Normed(for_gate, squares, EPS), inner, "gated", scatter=layer.down.scatter),
                kernels.add_product(layer.down, inner, to_qkv),
            ]
        )
    return jobs


if __name__ == "__main__":
    main()
