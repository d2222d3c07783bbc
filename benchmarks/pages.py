"""Pages of an 8B Llama's layer (8 heads, 128 wide) read and written for a prompt.

    python -m benchmarks.pages

One call a layer of 32 in a CUDA graph, each on pages and outputs of its own. GB/s counts the bytes of stored and plain
vectors once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.attention import HEAD_DIM, KV_HEADS, LAYERS, pages
from benchmarks.compiled import compiled_library
from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS
from exlchat.ext.ops import Kernels

TOKENS = (512, 2048, 8192)


@dataclass(frozen=True, slots=True)
class Call:
    """An immediate operation that a graph captures like a launch."""

    work: Callable[[], None]

    def launch(self, *, dependent: bool) -> None:
        """Nothing may start before its predecessor ends here."""
        assert not dependent
        self.work()


def main() -> None:
    """Measures and prints."""
    kernels = Kernels(compiled_library())
    limit = copy_bandwidth()
    card = torch.cuda.get_device_properties(0)
    print(f"\n{card.name}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s\n")
    print("| cache | tokens | read | GB/s | write | GB/s |")
    print("|---|--:|--:|--:|--:|--:|")
    for name in ("fp16", "fp8", "q8", "q6", "q4"):
        for tokens in TOKENS:
            size = KV_HEADS * tokens * (KINDS[name].token_bytes(HEAD_DIM) + 4 * HEAD_DIM)
            read, write = (graph_seconds(jobs, dependent=False) / LAYERS for jobs in calls(kernels, name, tokens))
            print(
                f"| {name} | {tokens:,} | {read * 1e6:.2f} us | {size / read / 1e9:,.0f} "
                f"| {write * 1e6:.2f} us | {size / write / 1e9:,.0f} |"
            )


def calls(kernels: Kernels, name: str, tokens: int) -> tuple[list[Call], list[Call]]:
    """Reading and writing all tokens of all layers."""
    table = torch.randperm(-(-tokens // PAGE_TOKENS), device="cuda").to(torch.int32)
    layers = [pages(name, len(table)) for _ in range(LAYERS)]
    plain = torch.randn(LAYERS, 2, KV_HEADS, tokens, HEAD_DIM, dtype=torch.float16, device="cuda")
    reads, writes = [], []
    for layer, (keys, values) in zip(layers, plain, strict=True):
        reads.append(Call(partial(kernels.read_pages, layer, table, 0, tokens, keys_out=keys, values_out=values)))
        writes.append(Call(partial(kernels.write_pages, layer, table, 0, keys, values)))
    return reads, writes


if __name__ == "__main__":
    main()
