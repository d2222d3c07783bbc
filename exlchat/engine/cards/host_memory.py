"""Weights in the machine's memory that a card reads as if they were its own.

Kernels, torch and captured graphs take them like others. A step of an 8B reads them at 50 GB/s over PCIe 5, where a
copy runs at 54 (one H100). What would read them more than once has them copied to the card first: a product of 256 rows
reads its matrix four times, and the experts of a prompt are read for each of its tokens, which took a Qwen3-30B-A3B
200 ms a layer for 512 tokens; the copy of all experts of a layer takes 6 ms.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from exlchat.engine.cards.split import current
from exlchat.ext.pinned import PinnedMemory

# What is read over PCIe is read in such pieces; kernels need 16.
_ALIGNMENT = 128

Part = TypeVar("Part")


class HostMemory:
    """Of one card. On the CPU, which stands for cards in tests, there is nothing to be pinned.

    Args:
        device: of the card.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.bytes = 0
        """Of all that is held."""
        self._largest: HostWeights | None = None
        self._copy = torch.empty(0, dtype=torch.uint8, device=device)

    def hold(self, tensors: Sequence[Tensor]) -> HostWeights:
        """A copy of contiguous tensors.

        Raises:
            MemoryError: the machine has no memory for them.
        """
        held = HostWeights(self, tensors)
        self.bytes += held.bytes
        if self._largest is None or held.bytes > self._largest.bytes:
            self._largest = held
        return held

    def take(self, size: int) -> Tensor:
        """uint8 `[size]` on the card, at the same place whenever it is asked for; what was there is overwritten.

        All is held before the first call.
        """
        if not len(self._copy):
            assert self._largest is not None
            # It is written to by passes and outside of them.
            with torch.inference_mode(False):
                self._copy = torch.empty(self._largest.bytes, dtype=torch.uint8, device=self.device)
        return self._copy[:size]

    @property
    def rate(self) -> float:
        """Bytes a second that the card gets out of the machine's memory; measured now."""
        if self._largest is None:
            return math.inf
        seconds = []
        for _ in range(3):
            begun = time.perf_counter()
            self._largest.fetch()
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            seconds.append(time.perf_counter() - begun)
        return self._largest.bytes / min(seconds)


class HostWeights:
    """Tensors one behind the other in the machine's memory. Made by `HostMemory.hold`."""

    def __init__(self, memory: HostMemory, tensors: Sequence[Tensor]) -> None:
        self._memory = memory
        self._kinds = [(tensor.dtype, tensor.shape, tensor.nbytes) for tensor in tensors]
        self.bytes = sum(map(_whole, (size for _, _, size in self._kinds)))
        self._place = _mapped(self.bytes, memory.device)
        self.tensors = self._cut(self._place)
        """As the card reads them there."""
        for place, tensor in zip(self.tensors, tensors, strict=True):
            place.copy_(tensor)

    def fetch(self) -> tuple[Tensor, ...]:
        """Enqueues their copy to the card, which is good until others of this card are fetched."""
        copy = self._memory.take(self.bytes)
        copy.copy_(self._place, non_blocking=True)
        return self._cut(copy)

    def _cut(self, place: Tensor) -> tuple[Tensor, ...]:
        found, start = [], 0
        for dtype, shape, size in self._kinds:
            found.append(place[start : start + size].view(dtype).view(shape))
            start += _whole(size)
        return tuple(found)


class Hosted(Generic[Part]):
    """How a part of a model whose weights lie in the machine's memory is with its weights on the card.

    Args:
        build: from where they are then, always the same place.
    """

    def __init__(self, weights: HostWeights, build: Callable[[Sequence[Tensor]], Part]) -> None:
        self._weights = weights
        self._build = build
        self._part: Part | None = None

    def fetched(self) -> Part:
        """Good until another part of this card is fetched."""
        found = self._weights.fetch()
        if self._part is None:
            self._part = self._build(found)
        return self._part


class _Mapped:
    """What torch makes a tensor of, which keeps it (Numba, "CUDA Array Interface", version 3)."""

    def __init__(self, size: int, device: torch.device) -> None:
        memory = PinnedMemory(size)
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }
        # At the end of the program the driver does it.
        weakref.finalize(self, _free, memory, device).atexit = False


def _free(memory: PinnedMemory, device: torch.device) -> None:
    torch.cuda.synchronize(device)
    memory.free()


def _mapped(size: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.empty(size, dtype=torch.uint8)
    with current(device):
        return torch.as_tensor(_Mapped(size, device), device=device)


def _whole(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
