"""What is under way on a device, without waiting for it: how long a piece of work took, and numbers for the host."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from exlchat.engine.cards.split import current

_NAP = 20e-6  # seconds


class Stopwatch:
    """Of a device, which may still be at it when what it does was launched.

    What a device that has failed says of it goes unheard: whoever has work there is told.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._running: deque[tuple[torch.cuda.Event, torch.cuda.Event, int]] = deque()
        self._known: list[tuple[int, float]] = []

    @contextmanager
    def timed(self) -> Iterator[list[int]]:
        """Inside, work is launched; how much is put into the list. Where it is nothing, nothing is measured."""
        amounts: list[int] = []
        if self._device.type != "cuda":
            began = time.perf_counter()
            yield amounts
            if sum(amounts):
                self._known.append((sum(amounts), time.perf_counter() - began))
            return
        begin, end = self._mark(), None
        yield amounts
        if sum(amounts):
            end = self._mark()
        if begin is not None and end is not None:
            self._running.append((begin, end, sum(amounts)))

    def ended(self) -> list[tuple[int, float]]:
        """Amount and seconds of what has ended since the last call."""
        with suppress(RuntimeError):
            while self._running and _over(self._running[0][1]):
                begin, end, amount = self._running.popleft()
                self._known.append((amount, begin.elapsed_time(end) / 1e3))
        known, self._known = self._known, []
        return known

    def _mark(self) -> torch.cuda.Event | None:
        try:
            event = _event(timing=True)
            event.record(torch.cuda.current_stream(self._device))
        except RuntimeError:
            return None
        return event


class ForHost:
    """Numbers that a device is to compute, on their way to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._copied: torch.cuda.Event | None = None
        self.values = numbers
        """Once they are `here`."""
        if numbers.is_cuda:
            self.values = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            with current(numbers.device):
                self.values.copy_(numbers, non_blocking=True)
                self._copied = _event()
                self._copied.record()

    @property
    def here(self) -> bool:
        """Whoever asks again and again leaves the processor to others."""
        if self._copied is None or _over(self._copied):
            return True
        time.sleep(_NAP)
        return False


def _event(*, timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing)  # type: ignore[no-untyped-call]


def _over(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]
