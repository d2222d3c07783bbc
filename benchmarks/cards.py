"""What a step takes on one card, with its layers over two, and with a part of every layer on each of two.

    python -m benchmarks.cards [--shape llama-8b] [--mix 4.1bpw] [--cached 128,8192]

Steps are launched one behind the other, and nobody reads their tokens in between, as `exlchat bench` does.
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.timing import copy_bandwidth
from exlchat.engine import GREEDY, LocalEngine, load
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.llm.cards import CardWishes

STEPS = 200


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--cached", default="128,8192", help="tokens in the cache, with commas between them")
    typed = parser.parse_args()
    contexts = [int(text) for text in typed.cached.split(",")]
    shape, limit = named_shape(typed.shape), copy_bandwidth()
    checkpoint = RandomCheckpoint(shape, parse_mix(typed.mix), device="cuda")
    half = shape.layers // 2
    ways = {
        "one card": CardWishes(cards=(0,)),
        "layers split": CardWishes(cards=(0, 1), split=(shape.layers - half, half)),
        "every layer together": CardWishes(cards=(0, 1), tensor_parallel=2),
    }
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, copy bandwidth {limit / 1e12:.2f} TB/s")
    print(f"{typed.shape}, {typed.mix}; us a step\n")
    print("| cached | " + " | ".join(map(str, contexts)) + " |\n|---|" + "--:|" * len(contexts))
    for name, wishes in ways.items():
        engine = load(checkpoint, device="cuda", kv_cache="fp16", max_seq_len=max(contexts) + 3 * STEPS, cards=wishes)
        found = [f"{seconds_a_step(engine, cached) * 1e6:,.0f}" for cached in contexts]
        print(f"| {name} | " + " | ".join(found) + " |", flush=True)
        engine.unload()


def seconds_a_step(engine: LocalEngine, cached: int) -> float:
    """The faster of two runs behind a context whose keys and values are whatever stands there."""
    step, sequence = engine._parts.scheduler.runner.step, KVSequence(engine._parts.cache)
    assert step is not None
    sequence.reserve(cached + 3 * STEPS)
    sequence.extend([5] * cached)
    step.begin(sequence, [*sequence.ids, 7], DeviceDraws(GREEDY, 0, index=0))
    # The first run loads what is used.
    *_, first, second = (_seconds_of_steps(engine) for _ in range(3))
    sequence.close()
    return min(first, second)


def _seconds_of_steps(engine: LocalEngine) -> float:
    step, devices = engine._parts.scheduler.runner.step, engine._parts.transformer.split.devices
    assert step is not None
    begun = time.perf_counter()
    for _ in range(STEPS):
        step.launch()
    for device in devices:
        torch.cuda.synchronize(device)
    return (time.perf_counter() - begun) / STEPS


if __name__ == "__main__":
    main()
