"""What the cache saves: turns on a long conversation, decoding with each kind of cache, pages back from disk.

    python -m benchmarks.prefix_reuse [--shape llama-8b] [--mix 4.1bpw] [--disk FOLDER]

Random weights of a named shape on this machine's GPU. Prints three tables. The restart is a second engine in the same
process: the weights are made again, and what it knows of the conversation is what lies on the disk. Known rates are
removed before, so that pages are read even where computing them is faster; the last column says which one it would be.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from exlchat.engine import LocalEngine, load
from exlchat.engine.bench.figures import BenchSettings, Report
from exlchat.engine.bench.measure import benchmark
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.kv.disk.rates import RATES_FILE
from exlchat.llm.events import Finished, GenerationStats
from exlchat.llm.request import GenerationRequest

KINDS = ("fp16", "fp8", "q8", "q6", "q4")
CONTEXTS = (16384, 32768)
CACHED, TURN, TURNS = 8192, 50, 40
GB = 10**9

Make = Callable[[], RandomCheckpoint]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--disk", type=Path, help="folder for pages (default: a temporary one)")
    typed = parser.parse_args()

    def make() -> RandomCheckpoint:
        return RandomCheckpoint(named_shape(typed.shape), parse_mix(typed.mix), device="cuda")

    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {typed.shape}, {typed.mix}\n")
    settings = BenchSettings(
        device="cuda", kv_caches=KINDS, contexts=CONTEXTS, turn_cached=128, turn_new=TURN, new_tokens=64, runs=5
    )
    report = Report(settings)
    for result in benchmark(make, settings, lambda line: print(line, file=sys.stderr)):
        report.add(result)
    print_turns(report, {kind: turns(make, kind) for kind in KINDS})
    with tempfile.TemporaryDirectory(dir=typed.disk) as folder:
        print("\n| cache | on disk | computed | restored | what pays | first token after a restart |")
        print("|---|--:|--:|--:|--:|--:|")
        for kind in ("q4", "fp16"):
            print_restart(make, kind, Path(folder) / kind)


def turns(make: Make, kind: str) -> list[float]:
    """Milliseconds to the first token of turns on a long conversation, shortest first."""
    draws = random.Random(2)
    engine = load(make(), device="cuda", kv_cache=kind, max_seq_len=16384, cache_tokens=16384)
    vocab = range(engine.info.vocab_size)
    before = draws.choices(vocab, k=CACHED)
    answer(engine, before)
    prompts = [before + draws.choices(vocab, k=TURN) for _ in range(TURNS)]
    return sorted(1000 * answer(engine, prompt).time_to_first_token for prompt in prompts)


def print_turns(report: Report, turns_of: dict[str, list[float]]) -> None:
    """Decode rates at long contexts and turns, a row a kind."""
    names = " | ".join(f"decode at {context:,}" for context in CONTEXTS)
    print(f"| cache | {names} | {TURNS} turns of {TURN} on {CACHED:,}: median | nine of ten |")
    print("|---|" + "--:|" * (len(CONTEXTS) + 2))
    for kind in KINDS:
        cells = []
        for context in CONTEXTS:
            figure = report.find("decode", context, kind)
            cells.append("" if figure is None else f"{figure.median:,.0f} tok/s")
        times = turns_of[kind]
        cells += [f"{statistics.median(times):.1f} ms", f"below {times[len(times) * 9 // 10]:.1f} ms"]
        print(f"| {kind} | {' | '.join(cells)} |")


def print_restart(make: Make, kind: str, folder: Path) -> None:
    """One row: a conversation computed, put on disk, and brought back by another engine."""
    draws = random.Random(1)

    def open_engine() -> LocalEngine:
        return load(make(), device="cuda", kv_cache=kind, max_seq_len=16384, page_folder=folder, page_bytes=64 * GB)

    engine = open_engine()
    prompt = draws.choices(range(engine.info.vocab_size), k=CACHED)
    answer(engine, draws.choices(range(engine.info.vocab_size), k=CACHED))
    computed = answer(engine, prompt).time_to_first_token
    archive = engine._parts.archive
    assert archive is not None
    archive.flush(60)
    report = engine.cache_report().disk
    engine.close()
    del engine, archive
    gc.collect()
    torch.cuda.empty_cache()
    for rates in folder.rglob(RATES_FILE):
        rates.unlink()
    engine = open_engine()
    archive = engine._parts.archive
    assert archive is not None
    assert report is not None
    cache = engine._parts.cache
    start = time.perf_counter()
    archive.restore(prompt, len(prompt), lambda: False)
    torch.cuda.synchronize()
    restored = time.perf_counter() - start
    found = cache.known(prompt)
    again = answer(engine, prompt)
    archive.note_prefill(CACHED, computed)
    pays = "restored" if archive.pays(CACHED) else "computed"
    print(
        f"| {kind} | {report.bytes / 1e6:,.0f} MB | {computed:.3f} s | {restored:.3f} s ({found:,} tokens) | {pays} "
        f"| {again.time_to_first_token:.3f} s, {again.cached_tokens:,} cached |"
    )
    engine.close()
    del engine, archive, cache
    gc.collect()
    torch.cuda.empty_cache()


def answer(engine: LocalEngine, prompt: list[int]) -> GenerationStats:
    """One token behind a prompt."""
    *_, last = engine.generate(GenerationRequest(prompt, max_new_tokens=1, seed=1))
    assert isinstance(last, Finished)
    return last.stats


if __name__ == "__main__":
    main()
