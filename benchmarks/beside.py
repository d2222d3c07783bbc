"""How long somebody in front of the screen waits beside a bulk run: gaps between tokens, and the first token of a turn.

    python -m benchmarks.beside [--shape llama-8b] [--mix 4.1bpw] [--device cuda] [--rows 31] [--cached 8192]

As many answers of low rank run all the time, each ended one is followed by another with a prompt of its own. Beside
them a chat is answered, at first with nothing else there, then beside them: milliseconds between two tokens (median,
99 of 100, longest), and from a question of 50 tokens on what is cached to the first token of its answer (of 20).
"""

from __future__ import annotations

import argparse
import itertools
import platform
import random
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from exlchat.engine import GenerationRequest, LocalEngine, load
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.port import Failed
from exlchat.llm.request import Rank
from exlchat.llm.sampling import SamplingSettings

DRAWN = SamplingSettings(0.8, top_k=40, top_p=0.95, min_p=0.05)
TURN, TURNS = 50, 20


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-8b")
    parser.add_argument("--mix", default="4.1bpw")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--rows", type=int, default=31, help="answers of low rank")
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of the prompts of those")
    parser.add_argument("--cached", type=int, default=8192, help="tokens of the chat before its turn")
    parser.add_argument("--tokens", type=int, default=1000, help="of the chat's answer")
    typed = parser.parse_args()
    checkpoint = RandomCheckpoint(named_shape(typed.shape), parse_mix(typed.mix), device=typed.device)
    context = typed.cached + typed.tokens + TURN * (TURNS + 1)
    cache = context * 2 + (typed.rows + 1) * (typed.prompt + 512)
    engine = load(checkpoint, device=typed.device, max_seq_len=context, cache_tokens=cache)
    name = torch.cuda.get_device_name() if typed.device == "cuda" else platform.processor()
    print(f"{name}, torch {torch.__version__}, {typed.shape}, {typed.mix}: ms\n")
    print("| beside | gap, median | 99 of 100 | longest | first token, median | longest |\n|--:|--:|--:|--:|--:|--:|")
    chat = _Chat(engine, typed.cached, typed.tokens)
    for rows in (0, typed.rows):
        with bulk_run(engine, rows, typed.prompt) as made:
            gaps, firsts = chat.gaps(), chat.firsts()
        slowest = f"{1e3 * statistics.quantiles(gaps, n=100)[-1]:.2f}"
        print(
            f"| {rows} | {1e3 * statistics.median(gaps):.2f} | {slowest} | {1e3 * max(gaps):.2f} | "
            f"{1e3 * statistics.median(firsts):.1f} | {1e3 * max(firsts):.1f} |",
            flush=True,
        )
    print(f"\n{len(made):,} answers of low rank were made meanwhile.")
    engine.unload()


class _Chat:
    def __init__(self, engine: LocalEngine, cached: int, tokens: int) -> None:
        self._engine, self._tokens = engine, tokens
        self._said = random.Random(1).choices(range(engine.info.vocab_size), k=cached)
        list(engine.generate(GenerationRequest(self._said, max_new_tokens=1)))

    def gaps(self) -> Sequence[float]:
        request = GenerationRequest(self._said, DRAWN, max_new_tokens=self._tokens, min_new_tokens=self._tokens, seed=1)
        times = [time.perf_counter() for event in self._engine.generate(request) if isinstance(event, TextDelta)]
        return [later - sooner for sooner, later in itertools.pairwise(times)]

    def firsts(self) -> Sequence[float]:
        seconds = []
        for turn in range(TURNS):
            asked = random.Random(f"{turn} {time.time()}").choices(range(self._engine.info.vocab_size), k=TURN)
            began = time.perf_counter()
            with self._engine.generate(GenerationRequest([*self._said, *asked], max_new_tokens=1)) as events:
                next(event for event in events if isinstance(event, TextDelta | Finished))
                seconds.append(time.perf_counter() - began)
        return seconds


@contextmanager
def bulk_run(engine: LocalEngine, rows: int, prompt: int) -> Iterator[list[int]]:
    """Inside, so many answers run; the tokens of each that has ended."""
    made: list[int] = []
    over, ended = threading.Event(), threading.Semaphore(0)

    def begin(number: int) -> None:
        ids = random.Random(number).choices(range(engine.info.vocab_size), k=prompt)

        def take(event: object) -> None:
            if isinstance(event, Finished):
                made.append(event.stats.new_tokens)
            if isinstance(event, Finished | Failed):
                ended.release()
                if not over.is_set():
                    # Not in the engine's thread, which tells this.
                    threading.Thread(target=begin, args=(number + rows,), daemon=True).start()

        handle = engine.submit(
            GenerationRequest(ids, DRAWN, max_new_tokens=256, min_new_tokens=256, seed=number, rank=Rank.BULK), take
        )
        running[number % rows] = handle

    running = dict.fromkeys(range(rows))
    for number in range(rows):
        begin(number)
    while rows and len(made) < 2:
        ended.acquire()
    try:
        yield made
    finally:
        over.set()
        for handle in running.values():
            if handle is not None:
                handle.cancel()


if __name__ == "__main__":
    main()
