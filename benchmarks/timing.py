"""Times on the device, and the bandwidth they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch

from exlchat.engine.layers.quantized_linear import Launch


def graph_seconds(jobs: Sequence[Launch], *, dependent: bool) -> float:
    """Median time of 30 replays of one graph of all jobs."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for job in jobs:
            job.launch(dependent=dependent)
    return event_seconds(graph.replay, repeat=30)


def event_seconds(work: Callable[[], object], *, repeat: int) -> float:
    """Median time of one call on the device, after three for warming up."""
    times: list[float] = []
    for _ in range(repeat + 3):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times[3:])


def copy_bandwidth() -> float:
    """Bytes a second of a large device-to-device copy, read and written bytes counted."""
    source = torch.empty(2**31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / event_seconds(lambda: target.copy_(source), repeat=10)
