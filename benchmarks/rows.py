"""What a pass of several tokens costs beside one token: a random model's step as a graph, on a GPU.

    python -m benchmarks.rows [--shape llama-8b] [--mix 4.1bpw] [--cached 128,2048,8192] [--kv-cache fp16]

Replays of the graph of 1 to 8 rows, without the choice of tokens, of one sequence and of a sequence each, with
keys and values of its own; then the same as drafting calls it, from ids on the host to the best ids on the host; and
what the first call of each number of rows costs, which captures it. GB/s counts the bytes that a single step reads for
every row: what single steps would need to be as fast.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.decode.captured import launch_all
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.decode.over_cards import splits_of
from exlchat.engine.decode.plan import DecodePlan, Tables
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.kv.sizes import pages_of
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from exlchat.ext.products import MAX_ROWS

DEVICE = torch.device("cuda")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--cached", default="128,2048,8192", help="tokens in the cache, with commas between them")
    parser.add_argument("--kv-cache", default="fp16")
    typed = parser.parse_args()
    contexts = [int(text) for text in typed.cached.split(",")]
    limit = copy_bandwidth()
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(open_library(ensure_library(Path(folder)), FUNCTIONS))
    length = max(contexts) + MAX_ROWS
    transformer, sequences = open_model(typed.shape, typed.mix, typed.kv_cache, length, kernels, sequences=MAX_ROWS)
    lines = table(transformer, sequences, kernels, contexts)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s")
    print(f"{typed.shape}, {typed.mix}, cache {typed.kv_cache}\n")
    print("\n".join(lines))


def open_model(
    shape: str, mix: str, kind: str, length: int, kernels: Kernels, *, sequences: int = 1
) -> tuple[Transformer, list[KVSequence]]:
    """A random model, and sequences of zeros that have room for so many tokens each."""
    checkpoint = RandomCheckpoint(named_shape(shape), parse_mix(mix), device="cuda")
    spec = read_spec(checkpoint.config, "config.json")
    transformer = load_transformer(spec, LayerLoader(checkpoint, DEVICE, torch.float16, kernels), True, lambda: None)
    # Two more pages for the step itself, which is warmed up.
    pages = sequences * pages_of(length) + 2
    cache = KVCache(spec, kind, torch.float16, DEVICE, length, tokens=pages * PAGE_TOKENS)
    opened = [KVSequence(cache) for _ in range(sequences)]
    for sequence in opened:
        sequence.reserve(length)
    return transformer, opened


@torch.inference_mode()
def table(
    transformer: Transformer, sequences: Sequence[KVSequence], kernels: Kernels, contexts: Sequence[int]
) -> list[str]:
    """The lines: a row for each number of tokens, three columns for each context."""
    cache = sequences[0].cache
    chain = DecodePlan(transformer, cache, kernels, splits=splits_of(transformer.spec, DEVICE), rows=MAX_ROWS)
    replays: dict[Tables, dict[int, list[float]]] = {"shared": {}, "own": {}}
    for tables, of_rows in replays.items():
        own = tables == "own"
        chain.tables.show(cache.tables, [sequence.row for sequence in (sequences if own else sequences[:1])])
        for rows in range(1, MAX_ROWS + 1):
            jobs = chain.jobs(rows, tables)
            launch_all(jobs, dependent=False)  # CUDA loads kernels when they are first launched, not in a capture
            for cached in contexts:
                chain.position.copy_(torch.full((MAX_ROWS,), cached) + (0 if own else torch.arange(MAX_ROWS)))
                of_rows.setdefault(rows, []).append(graph_seconds(jobs, dependent=True))
    calls, captures = called(DecodeGraphs(transformer, cache, kernels), sequences[0], contexts[0])
    names = " | ".join(f"us at {cached:,} | x one | a sequence each" for cached in contexts)
    head = [f"| rows | {names} | GB/s at {contexts[0]:,} | call, us | first call, ms | memory, MB |"]
    lines = [*head, "|--:" * (3 * len(contexts) + 5) + "|"]
    one = replays["shared"][1]
    for rows, seconds in replays["shared"].items():
        each = replays["own"][rows]
        cells = [
            f"{s * 1e6:.0f} | {s / alone:.2f} | {apart * 1e6:.0f}"
            for s, alone, apart in zip(seconds, one, each, strict=True)
        ]
        rate = transformer.bytes_per_token * rows / seconds[0] / 1e9
        capture, memory = captures[rows]
        calling = f"{rate:,.0f} | {calls[rows] * 1e6:.0f} | {capture * 1e3:.0f} | {memory / 1e6:.1f}"
        lines.append(f"| {rows} | {' | '.join(cells)} | {calling} |")
    return lines


def called(
    step: DecodeGraphs, sequence: KVSequence, cached: int
) -> tuple[dict[int, float], dict[int, tuple[float, float]]]:
    """Seconds of a call by rows, median of 30; seconds and bytes on the device of the first one."""
    calls, captures = {}, {}
    for rows in range(1, MAX_ROWS + 1):
        free, _ = torch.cuda.mem_get_info()
        start = time.perf_counter()
        step.verify(sequence, [1] * rows, cached)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        captures[rows] = seconds, float(free - torch.cuda.mem_get_info()[0])
        times = []
        for _ in range(33):
            start = time.perf_counter()
            step.verify(sequence, [1] * rows, cached)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
        calls[rows] = sorted(times[3:])[15]
    return calls, captures


if __name__ == "__main__":
    main()
