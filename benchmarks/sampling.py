"""The sampler inside a CUDA graph, and what the host costs a step that runs ahead of it, on a GPU.

    python benchmarks/sampling.py

First table: the time of one sampler in a graph of 50, each waiting for the one before, the logits in L2 as the head's
product leaves them. Second: steps of a known length (a kernel that only waits) with the sampler behind, as bare replays
and read one behind by `RunAheadTokens`: alone, beside a thread that computes 4 ms of every 33 as a UI that draws does,
and the same with the interpreter's switch interval as the app sets it.
"""

from __future__ import annotations

import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.compiled import compiled_library
from exlchat.engine import GREEDY, SamplingSettings
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.token_sources import RunAheadTokens
from exlchat.ext.sampling import SamplerKernels, SamplerState

VOCABULARIES = {"32k": 32000, "128k": 128256, "256k": 256000}
ALL_FOUR = SamplingSettings(0.8, top_k=50, top_p=0.95, min_p=0.02)
SETTINGS = {
    "greedy": GREEDY,
    "temperature": SamplingSettings(0.8),
    "temperature, min-p": SamplingSettings(0.8, min_p=0.02),
    "temperature, top-k": SamplingSettings(0.8, top_k=50),
    "temperature, top-p": SamplingSettings(0.8, top_p=0.95),
    "all four": ALL_FOUR,
}
COPIES = 50
STEP_SECONDS = (0.25e-3, 1.3e-3)
TOKENS = 400


class Step:
    """A `DecodeStep` that computes nothing: it waits, then draws from fixed logits."""

    def __init__(self, kernels: SamplerKernels, logits: torch.Tensor, cycles: int, copies: int = 1) -> None:
        self.state = SamplerState(logits.device)
        self.ring = self.state.ring
        self.capacity = 10**9
        self._token = torch.zeros(1, dtype=torch.int64, device="cuda")
        self._position = torch.zeros(1, dtype=torch.int32, device="cuda")
        job = kernels.sample(logits, self.state, token=self._token, position=self._position)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            if cycles:
                torch.cuda._sleep(cycles)
            for _ in range(copies):
                job.launch(dependent=True)

    def begin(self, _: object, context: Sequence[int], draws: DeviceDraws) -> None:
        """Sets token, position and draw."""
        self._token.fill_(context[-1])
        self._position.fill_(len(context) - 1)
        self.state.set(draws.c_draw())

    def grow(self, length: int) -> None:
        """Never needed."""

    def launch(self) -> None:
        """One replay."""
        self._graph.replay()

    def running(self) -> bool:
        """Whether the stream is busy."""
        return not torch.cuda.current_stream().query()


def main() -> None:
    """Measures and prints."""
    kernels = SamplerKernels(compiled_library())
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}\n")
    print(f"| sampler, us | {' | '.join(VOCABULARIES)} |\n|---|{'--:|' * len(VOCABULARIES)}")
    for name, settings in SETTINGS.items():
        times = [sampler_seconds(kernels, vocab, settings) for vocab in VOCABULARIES.values()]
        print(f"| {name} | {' | '.join(f'{seconds * 1e6:.1f}' for seconds in times)} |")
    print("\n| step | bare replays | read one behind | beside a UI | switching after 0.1 ms |\n|--:|--:|--:|--:|--:|")
    for seconds in STEP_SECONDS:
        rates = run_ahead_rates(kernels, seconds)
        shares = " | ".join(f"{rate:.0f}/s ({rate / rates[0]:.1%})" for rate in rates[1:])
        print(f"| {seconds * 1e3:.2f} ms | {rates[0]:.0f}/s | {shares} |")


def logits_like_a_model(vocab: int) -> torch.Tensor:
    """float32 `[vocab]`: a broad bell, and a few tokens far above it."""
    logits = torch.randn(vocab, device="cuda") * 2
    logits[torch.randint(vocab, (40,), device="cuda")] += 8
    return logits


def sampler_seconds(kernels: SamplerKernels, vocab: int, settings: SamplingSettings) -> float:
    """Median time of one sampler."""
    step = Step(kernels, logits_like_a_model(vocab), cycles=0, copies=COPIES)
    step.begin(None, [0], DeviceDraws(settings, seed=1, index=0))
    return event_seconds(step.launch, repeat=30) / COPIES


def event_seconds(work: Callable[[], object], *, repeat: int) -> float:
    """Median time of one call on the device, after three for warming up."""
    times = []
    for _ in range(repeat + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


def run_ahead_rates(kernels: SamplerKernels, seconds: float) -> list[float]:
    """Tokens a second: bare replays, then through `RunAheadTokens` alone and beside a thread, twice."""
    cycles = 10**6
    cycles = int(cycles * seconds / event_seconds(lambda: torch.cuda._sleep(cycles), repeat=20))
    step = Step(kernels, logits_like_a_model(VOCABULARIES["128k"]), cycles)
    step.begin(None, [0], DeviceDraws(ALL_FOUR, seed=1, index=0))
    step.launch()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(TOKENS):
        step.launch()
    torch.cuda.synchronize()
    bare = TOKENS / (time.perf_counter() - start)
    rates = [bare, read_rate(step)]
    default = sys.getswitchinterval()
    for interval in (default, 1e-4):
        sys.setswitchinterval(interval)
        stop = threading.Event()
        thread = threading.Thread(target=draw_frames, args=(stop,), daemon=True)
        thread.start()
        rates.append(read_rate(step))
        stop.set()
        thread.join()
    sys.setswitchinterval(default)
    return rates


def read_rate(step: Step) -> float:
    """Tokens a second that `RunAheadTokens` reads."""
    source = RunAheadTokens(step, [], [0], DeviceDraws(ALL_FOUR, seed=1, index=1), most=TOKENS)
    token = 0
    start = time.perf_counter()
    for _ in range(TOKENS):
        source.go_on()
        token = source.follow(token)
    seconds = time.perf_counter() - start
    source.close()
    return TOKENS / seconds


def draw_frames(stop: threading.Event) -> None:
    """Pure Python for 4 ms, 30 times a second, until told to stop."""
    while not stop.is_set():
        end = time.perf_counter() + 0.004
        while time.perf_counter() < end:
            sum(range(100))
        time.sleep(0.029)


if __name__ == "__main__":
    main()
