"""The four products of a decoder layer of an 8B Llama, 32 layers as dependent kernels in one CUDA graph, on a GPU.

    python -m benchmarks.kernels

Random weights; every replay reads all of them. Beside each time stand the bytes over it and its share of the copy
bandwidth measured in the same run.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import torch

from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.engine.formats.exl2_tiles import pack_exl2
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Job, Kernels, Norm

LAYERS, HIDDEN, QKV, INNER = 32, 4096, 6144, 14336
RECIPES = {
    **{f"{bits} bits": (Section(bits, 1.0, 128),) for bits in (2, 3, 4, 5, 6, 8)},
    "5 % 8, 10 % 5, 85 % 4 bits": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
}


def main() -> None:
    """Measures and prints."""
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(open_library(ensure_library(Path(folder)), FUNCTIONS))
    limit = copy_bandwidth()
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s\n")
    print("| weights | GB | plain edges | dependent | TB/s | of the copy |\n|---|--:|--:|--:|--:|--:|")
    for name, recipe in RECIPES.items():
        layers = [layer(recipe) for _ in range(LAYERS)]
        size = sum(matrix.bytes for matrices in layers for matrix in matrices)
        jobs = chain(kernels, layers)
        plain, dependent = (graph_seconds(jobs, dependent=edges) for edges in (False, True))
        rate = size / dependent
        print(
            f"| {name} | {size / 1e9:.2f} | {plain * 1e3:.3f} ms | {dependent * 1e3:.3f} ms "
            f"| {rate / 1e12:.2f} | {rate / limit:.0%} |"
        )


@functools.cache
def structure(features: int, recipe: tuple[Section, ...]) -> PackedMatrix:
    """A narrow matrix that is packed as the recipe says."""
    return pack_exl2(quantize_matrix(torch.randn(features, 32, device="cuda"), recipe))


def random_matrix(features: int, outputs: int, recipe: tuple[Section, ...]) -> PackedMatrix:
    """A matrix of the recipe's structure, full of random codes and scales."""
    shape = structure(features, recipe)
    words = (outputs // 16, shape.words.shape[1])
    return PackedMatrix(
        features,
        outputs,
        shape.sections,
        torch.randint(-(2**31), 2**31, words, dtype=torch.int32, device="cuda"),
        torch.randint(256, (outputs // 16, 8, len(shape.scale_max)), dtype=torch.uint8, device="cuda"),
        torch.full_like(shape.scale_max, 1e-5),
        shape.gather,
    )


def layer(recipe: tuple[Section, ...]) -> list[PackedMatrix]:
    """qkv, o, gate, up, down. EXL2 files give gate and up one permutation."""
    qkv, o, gate, up = (random_matrix(HIDDEN, width, recipe) for width in (QKV, HIDDEN, INNER, INNER))
    up = PackedMatrix(up.features, up.outputs, up.sections, up.words, up.scale_index, up.scale_max, gate.gather)
    return [qkv, o, gate, up, random_matrix(INNER, HIDDEN, recipe)]


def chain(kernels: Kernels, layers: list[list[PackedMatrix]]) -> list[Job]:
    """The products of a decode step in order, each reading what the one before has written."""
    hidden = torch.randn(1, HIDDEN, device="cuda")
    norm = Norm(torch.ones(HIDDEN, dtype=torch.float16, device="cuda"), 1e-5)
    qkv, inner = (torch.zeros(1, width, dtype=torch.float16, device="cuda") for width in (QKV, INNER))
    mixed = torch.zeros(1, HIDDEN, dtype=torch.float16, device="cuda")
    jobs = []
    for qkv_weights, o, gate, up, down in layers:
        jobs.append(kernels.gemv([qkv_weights], hidden, qkv, "half", norm=norm))
        jobs.append(kernels.gemv([o], mixed, hidden, "add"))
        jobs.append(kernels.gemv([gate, up], hidden, inner, "gated", norm=norm))
        jobs.append(kernels.gemv([down], inner, hidden, "add"))
    return jobs


if __name__ == "__main__":
    main()
