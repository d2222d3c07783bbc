"""Where the time of a pass of many rows goes: milliseconds a pass, tokens a second, and its kernels.

    python -m benchmarks.wide [--shape llama-8b] [--mix 4.1bpw] [--rows 16,32,64,128] [--prompt 1024] [--passes 30]

So many answers to prompts of their own, every second one drawn with the four usual samplers. They are counted once all
of them answer; the kernels are those of five passes more. Kernels overlap: a time is that from the end of the one
before to its own end, so that they add up to the pass.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from functools import partial

import torch
from torch.profiler import ProfilerActivity, profile

from exlchat.engine import GenerationRequest, LocalEngine, load
from exlchat.engine.bench.figures import ALL_SAMPLERS
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.llm.events import TextDelta
from exlchat.llm.port import Handle
from exlchat.llm.request import Rank
from exlchat.llm.sampling import GREEDY

_NAMED = 12
_PROFILED = 5
_WARM = 6


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[16, 32, 64, 128])
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--passes", type=int, default=30)
    typed = parser.parse_args()
    checkpoint = RandomCheckpoint(named_shape(typed.shape), parse_mix(typed.mix), device="cuda")
    row = typed.prompt + 512
    engine = load(checkpoint, device="cuda", max_seq_len=row, cache_tokens=(max(typed.rows) + 1) * row)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {typed.shape}, {typed.mix}")
    for rows in typed.rows:
        _measure(engine, rows, typed.prompt, typed.passes)


def _measure(engine: LocalEngine, rows: int, prompt: int, passes: int) -> None:
    scheduler, told = engine._parts.scheduler, Counter[int]()
    handles = _asked(engine, rows, prompt, told)
    while len(told) < rows:
        scheduler.step()
    for _ in range(_WARM):
        scheduler.step()
    torch.cuda.synchronize()
    before, longest, began = told.total(), 0.0, time.perf_counter()
    for _ in range(passes):
        start = time.perf_counter()
        scheduler.step()
        longest = max(longest, time.perf_counter() - start)
    took = time.perf_counter() - began
    tokens = (told.total() - before) / took
    print(f"\n{rows} rows: {1e3 * took / passes:.2f} ms a pass, longest {1e3 * longest:.2f}; {tokens:,.0f} tok/s")
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(_PROFILED):
            scheduler.step()
        torch.cuda.synchronize()
    spent: Counter[str] = Counter()
    kernels = [event for event in profiled.events() or () if event.device_type == torch.autograd.DeviceType.CUDA]
    ended = min(event.time_range.start for event in kernels)
    for event in sorted(kernels, key=lambda event: event.time_range.end):
        spent[event.name.partition("(")[0]] += event.time_range.end - ended
        ended = event.time_range.end
    for name, microseconds in spent.most_common(_NAMED):
        print(f"  {microseconds / 1e3 / _PROFILED:7.3f} ms  {name}")
    for handle in handles:
        scheduler.drop(handle)  # type: ignore[arg-type]


def _asked(engine: LocalEngine, rows: int, prompt: int, told: Counter[int]) -> list[Handle]:
    """So many answers on their way; how many tokens of each are there goes into `told`."""
    ids = random.Random(rows)

    def take(number: int, event: object) -> None:
        if isinstance(event, TextDelta):
            told[number] += len(event.token_ids)

    return [
        engine._parts.scheduler.add(
            GenerationRequest(
                ids.choices(range(engine.info.vocab_size), k=prompt),
                ALL_SAMPLERS if number % 2 else GREEDY,
                max_new_tokens=512,
                min_new_tokens=512,
                seed=number,
                rank=Rank.BULK,
            ),
            partial(take, number),
        )
        for number in range(rows)
    ]


if __name__ == "__main__":
    main()
