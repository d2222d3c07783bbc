"""Where the time of a decode step goes: the step of a random model as a graph, and its kernels alone, on a GPU.

    python -m benchmarks.step [--shape llama-8b] [--mix 4.1bpw] [--cached 128]

The step without its sampler, with dependent and with plain edges; its layers, with and without their attention; and
each of the five kernels of a layer alone, those of all layers twice in one graph. What a kernel takes alone and what a
layer takes less without it differ by what kernels do to each other: their beginnings and ends overlap, and they share
caches.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.timing import copy_bandwidth, graph_seconds
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.model.architecture import read_spec
from exlchat.ext.attention import best_splits
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels

DEVICE = torch.device("cuda")
OF_A_LAYER = ("qkv", "attention", "output", "gate, up", "down")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--cached", type=int, default=128, help="tokens in the cache")
    typed = parser.parse_args()
    limit = copy_bandwidth()
    chain, layers = build_chain(typed.shape, typed.mix, typed.cached)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s")
    print(f"{typed.shape}, {typed.mix}, {typed.cached} tokens cached, without the sampler\n")
    for line in rows(chain.jobs(), layers):
        print(line)


def build_chain(shape: str, mix: str, cached: int) -> tuple[DecodePlan, int]:
    """The operations of a step of a random model with an FP16 cache, and how many layers it has."""
    checkpoint = RandomCheckpoint(named_shape(shape), parse_mix(mix), device="cuda")
    spec = read_spec(checkpoint.config, "config.json")
    with tempfile.TemporaryDirectory() as folder:
        kernels = Kernels(open_library(ensure_library(Path(folder)), FUNCTIONS))
    loader = LayerLoader(checkpoint, DEVICE, torch.float16, kernels)
    transformer = load_transformer(spec, loader, True, lambda: None)
    cache = KVCache(spec, "fp16", torch.float16, DEVICE, cached + 1)
    sequence = KVSequence(cache)
    sequence.reserve(cached + 1)
    multiprocessors = torch.cuda.get_device_properties(DEVICE).multi_processor_count
    splits = best_splits(spec.num_heads, spec.num_kv_heads, multiprocessors)
    chain = DecodePlan(transformer, cache, kernels, splits=splits)
    chain.tables.show(cache.tables, [sequence.row])
    chain.position.fill_(cached)
    return chain, spec.num_layers


def rows(jobs: Sequence[Launch], layers: int) -> list[str]:
    """The lines of the table."""
    body = jobs[1:-1]
    if len(body) != layers * len(OF_A_LAYER):
        raise SystemExit(f"{len(jobs)} kernels for {layers} layers: queries, keys and values do not share one order")
    for job in jobs:  # CUDA loads kernels when they are first launched, which must not fall into a capture
        job.launch(dependent=False)
    rest = [job for index, job in enumerate(body) if index % len(OF_A_LAYER) != OF_A_LAYER.index("attention")]

    def a_layer(part: Sequence[Launch], *, times: int = 1, dependent: bool = True) -> float:
        return graph_seconds([*part] * times, dependent=dependent) * 1e6 / layers / times

    found = [
        ("step", graph_seconds(jobs, dependent=True) * 1e6),
        ("step, plain edges", graph_seconds(jobs, dependent=False) * 1e6),
        ("layer", a_layer(body)),
        ("layer, plain edges", a_layer(body, dependent=False)),
        ("layer without attention", a_layer(rest)),
        *((name, a_layer(body[place :: len(OF_A_LAYER)], times=2)) for place, name in enumerate(OF_A_LAYER)),
        ("head", graph_seconds([jobs[-1]] * 16, dependent=True) * 1e6 / 16),
    ]
    return ["| | us |\n|---|--:|", *(f"| {name} | {microseconds:.2f} |" for name, microseconds in found)]


if __name__ == "__main__":
    main()
