"""What several answers at once take beside one: a random model on a GPU, through the public generator.

    python -m benchmarks.several [--shape llama-8b] [--mix 4.1bpw] [--prompt 128,2048] [--tokens 200]

Tokens a second of all answers together, behind a prompt that is in the cache, for 1 to 8 of them; the median of three
runs each. One is made as any answer is, with the device ahead of the host. Drawn with the four usual samplers, and with
penalties.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import torch

from exlchat.engine import GenerationRequest, LocalEngine, PrefillProgress, SamplingSettings, load
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape

RUNS = 3
DRAWN = {
    "usual": SamplingSettings(0.8, top_k=50, top_p=0.95, min_p=0.05),
    "penalties": SamplingSettings(0.8, top_k=50, top_p=0.95, min_p=0.05, repetition_penalty=1.1, dry_multiplier=0.8),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--prompt", default="128,2048", help="tokens, with commas between them")
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    typed = parser.parse_args()
    checkpoint = RandomCheckpoint(named_shape(typed.shape), parse_mix(typed.mix), device="cuda")
    engine = load(checkpoint, device="cuda", max_seq_len=8192, cache_tokens=65536)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {typed.shape}, {typed.mix}\n")
    print("| prompt | drawn | " + " | ".join(f"{count}" for count in range(1, 9)) + " | eight times one |")
    print("|--:|---|" + "--:|" * 9)
    for length in map(int, typed.prompt.split(",")):
        for name, sampling in DRAWN.items():
            rates = [rate(engine, length, sampling, count, typed.tokens) for count in range(1, 9)]
            figures = " | ".join(f"{one:,.0f}" for one in rates)
            print(f"| {length:,} | {name} | {figures} | {rates[-1] / rates[0]:.2f} x |", flush=True)


def rate(engine: LocalEngine, length: int, sampling: SamplingSettings, count: int, tokens: int) -> float:
    """Tokens a second of all answers, from the first token to the last."""
    prompt = [11 + 7 * place % 1000 for place in range(length)]
    request = GenerationRequest(prompt, sampling, max_new_tokens=tokens, min_new_tokens=tokens)
    seconds = []
    for run in range(RUNS + 1):
        began = 0.0
        alone = dataclasses.replace(request, seed=run)
        for told in engine.generate(alone) if count == 1 else engine.generate_several(request, range(run, run + count)):
            if not began and not isinstance(told, PrefillProgress):
                began = time.perf_counter()
        seconds.append(time.perf_counter() - began)
    return count * tokens / statistics.median(seconds[1:])  # the first run captures


if __name__ == "__main__":
    main()
