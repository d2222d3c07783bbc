"""Operations captured as CUDA graphs: how that is done, and lists of launches of each card that are captured once."""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

import torch

from exlchat.engine.cards.split import current
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.llm.info import ModelError

_Key = TypeVar("_Key", bound=Hashable)

NO_MEMORY = "no memory for the decode step beside weights and cache; take a smaller --context"
# From this compute capability on a kernel may start while the one before it still runs.
_DEPENDENT_LAUNCH = (9, 0)
_CAPTURE = threading.Lock()


class CapturedSteps(Generic[_Key]):
    """What a key stands for, captured when it has been launched once: by then its kernels are loaded.

    Args:
        plans: of each card, in order.
        made: operations of each card, none where it has nothing to do.
        dependent: whether kernels may start before their predecessors end.
    """

    def __init__(
        self, plans: Sequence[DecodePlan], made: Callable[[_Key], list[list[Launch]]], *, dependent: bool
    ) -> None:
        self._plans, self._made, self._dependent = plans, made, dependent
        # Torch's own stream for captures is of the card that was the first to need one.
        self._asides = [torch.cuda.Stream(plan.device) for plan in plans]  # type: ignore[no-untyped-call]
        self._ends = [torch.cuda.Event() for _ in plans] if plans[0].direct else []  # type: ignore[no-untyped-call]
        """Of what each card did last, where kernels send to the next card and to the first one."""
        self._jobs: dict[_Key, list[list[Launch]]] = {}
        """They keep alive what the graphs point to."""
        self._graphs: dict[_Key, list[torch.cuda.CUDAGraph | None]] = {}

    def jobs(self, key: _Key) -> list[list[Launch]]:
        if key not in self._jobs:
            self._jobs[key] = self._made(key)
        return self._jobs[key]

    def launch(self, key: _Key, rows: int) -> None:
        """Enqueues it, the first time one by one."""
        self.run(key, rows)
        self.prepare(key)

    def run(self, key: _Key, rows: int) -> None:
        """Card after card: its graph, or one by one what would be in it, and what it leaves for the next card."""
        graphs = self._graphs.get(key)
        if graphs is None and self._plans[0].together is not None:
            for card, job in by_turns(self.jobs(key)):
                with current(self._plans[card].device):
                    job.launch(dependent=False)
            return
        for number, (plan, jobs) in enumerate(zip(self._plans, self.jobs(key), strict=True)):
            with current(plan.device):
                if self._ends:
                    self._ends[number - 1].wait()
                graph = None if graphs is None else graphs[number]
                if graphs is None:
                    launch_all(jobs, dependent=False)
                elif graph is not None:
                    graph.replay()
                if self._ends:
                    self._ends[number].record()
            if rows and plan.together is None and number + 1 < len(self._plans):
                plan.send(rows)

    def prepare(self, key: _Key) -> None:
        """Captures it; its kernels are loaded.

        Raises `ModelError` when there is no memory or the GPU refuses.
        """
        if key not in self._graphs:
            self._graphs[key] = [
                self._captured(plan.device, aside, jobs) if jobs else None
                for plan, aside, jobs in zip(self._plans, self._asides, self.jobs(key), strict=True)
            ]

    def _captured(self, device: torch.device, aside: torch.cuda.Stream, jobs: list[Launch]) -> torch.cuda.CUDAGraph:
        with current(device), refusals_named("the decode step"), torch.cuda.stream(aside):
            try:
                return captured(lambda: launch_all(jobs, dependent=self._dependent), None)
            except torch.OutOfMemoryError as error:
                raise ModelError(NO_MEMORY) from error


def captured(work: Callable[[], object], other: torch.cuda.CUDAGraph | None) -> torch.cuda.CUDAGraph:
    """What `work` enqueues, captured on torch's current stream, which is not the default one.

    Without what `torch.cuda.graph` does around every capture: it collects garbage and empties torch's caches, which for
    each of some 30 graphs would take seconds, and of a step holds up whoever is answered when another one comes.

    Args:
        other: never runs at the same time; they share their memory.
    """
    graph = torch.cuda.CUDAGraph()
    with _nothing_collected():
        # Other threads, as that of the pages on disk, may go on with what a capture forbids.
        graph.capture_begin(pool=None if other is None else other.pool(), capture_error_mode="thread_local")
        try:
            work()
        except RuntimeError:
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Keeps Python from collecting cycles: among them may be graphs of a model that is gone, and to destroy one breaks
    the capture that is under way in the same thread.
    """
    # One capture at a time, or the first to end would turn it on for the others.
    with _CAPTURE:
        was_on = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if was_on:
                gc.enable()


@contextmanager
def refusals_named(what: str) -> Iterator[None]:
    """Inside, a capture that the GPU refuses raises `ModelError` in one line; a lack of memory stays what it is."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"the GPU could not prepare {what} ({reason}); start exlchat again") from error


def launches_dependently(device: torch.device) -> bool:
    """Whether a kernel of a card may start while the one before it still runs."""
    card = torch.cuda.get_device_properties(device)
    return (card.major, card.minor) >= _DEPENDENT_LAUNCH


def by_turns(lists: Sequence[Sequence[Launch]]) -> Iterator[tuple[int, Launch]]:
    """Operations of cards that meet in exchanges, each with its card: up to one on every card, then that one on all.

    What loads a kernel may wait for one that runs, which must not wait for another card's that is not launched yet.
    """
    left = [deque(jobs) for jobs in lists]
    while any(left):
        for card, jobs in enumerate(left):
            while jobs and not jobs[0].meets:
                yield card, jobs.popleft()
        for card, jobs in enumerate(left):
            if jobs:
                yield card, jobs.popleft()


def launch_all(jobs: Sequence[Launch], *, dependent: bool) -> None:
    """One after the other; the first waits for what was launched before."""
    for index, job in enumerate(jobs):
        job.launch(dependent=dependent and index > 0)
