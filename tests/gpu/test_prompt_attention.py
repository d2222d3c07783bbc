"""Attention of a prompt's chunk on the card."""

from __future__ import annotations

import pytest
import torch

from exlchat.ext.ops import Kernels
from tests.ext.prompt_attention_cases import CASES, Chunk

CUDA = torch.device("cuda")


def check(kernels: Kernels, chunk: Chunk) -> None:
    chunk.check(kernels, lambda job: job.launch(dependent=True))


@pytest.mark.parametrize("processors", [1, 132], ids=["one block a tile", "several"])
@pytest.mark.parametrize("case", CASES)
def test_a_chunk_comes_to_its_definition(kernels: Kernels, case: str, processors: int) -> None:
    start, tokens, rows, rules = CASES[case]
    check(kernels, Chunk(CUDA, start, tokens, rows, processors=processors, **rules))


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(32, 8), (3, 3), (7, 1)])
def test_heads_of_every_length(kernels: Kernels, head_dim: int, heads: tuple[int, int]) -> None:
    for window in (0, 40, 1000):
        check(kernels, Chunk(CUDA, 2000, 250, 256, head_dim=head_dim, heads=heads, processors=132, window=window))
