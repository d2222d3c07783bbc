"""Decode attention of an 8B Llama (32 heads over 8, 128 wide): 32 layers as dependent kernels in one CUDA graph.

    python -m benchmarks.attention

Each layer reads a cache of its own. The floor is the bytes of the cached tokens over the copy bandwidth measured in
the same run.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages, best_splits
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.job import Job
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, encode
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 32, 8, 128
CONTEXTS = (1, 128, 512, 2048, 8192, 16384, 32768)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--splits", type=int, nargs="*", help="blocks a head; as many as fill the card unless given")
    wanted = parser.parse_args().splits
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(open_library(ensure_library(Path(folder)), FUNCTIONS))
    limit = copy_bandwidth()
    card = torch.cuda.get_device_properties(0)
    print(f"\n{card.name}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s\n")
    print("| cache | splits | cached tokens | plain edges | dependent | TB/s | floor | floor / time |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in ("fp16", "fp8", "q8", "q6", "q4"):
        best = best_splits(HEADS, KV_HEADS, card.multi_processor_count)
        for splits in wanted or [best]:
            for cached in CONTEXTS:
                jobs = chain(kernels, name, cached, splits)
                plain, dependent = (graph_seconds(jobs, dependent=edges) / LAYERS for edges in (False, True))
                size = KINDS[name].token_bytes(HEAD_DIM) * KV_HEADS * cached
                print(
                    f"| {name} | {splits} | {cached:,} | {plain * 1e6:.2f} us | {dependent * 1e6:.2f} us "
                    f"| {size / dependent / 1e12:.2f} | {size / limit * 1e6:.2f} us | {size / limit / dependent:.0%} |"
                )


def chain(kernels: Kernels, name: str, cached: int, splits: int) -> list[Job]:
    """The attention of all layers; each reads the one input and writes the one output."""
    device, count = torch.device("cuda"), cached // PAGE_TOKENS + 1
    qkv = torch.randn(HEADS + 2 * KV_HEADS, HEAD_DIM, device=device).half()
    out = torch.zeros(HEADS * HEAD_DIM, dtype=torch.float16, device=device)
    page_table = torch.arange(count, dtype=torch.int32, device=device)
    position = torch.tensor([cached], dtype=torch.int32, device=device)
    turns = torch.ones(count * PAGE_TOKENS, HEAD_DIM // 2, 2, device=device)
    scratch = AttentionScratch(HEADS, KV_HEADS, HEAD_DIM, splits, device)
    rules = AttentionRules(HEAD_DIM**-0.5)
    return [
        kernels.attention(
            qkv,
            out,
            pages=pages(name, count),
            page_table=page_table,
            position=position,
            turns=turns,
            rules=rules,
            scratch=scratch,
        )
        for _ in range(LAYERS)
    ]


def pages(name: str, count: int) -> LayerPages:
    """A layer's cache of random vectors."""
    kind = KINDS[name]
    rows = torch.randn(2, KV_HEADS, count, PAGE_TOKENS, HEAD_DIM, device="cuda").half()
    keys, key_scales = encode(rows[0], kind.key)
    values, value_scales = encode(rows[1], kind.value)
    return LayerPages(kind, keys, values, key_scales, value_scales)


if __name__ == "__main__":
    main()
