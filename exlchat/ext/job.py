"""A checked launch of a kernel, and the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from exlchat.ext import functions as c


class Job:
    """A launch whose arguments have been checked. Keeps the tensors that it points to alive.

    Making one checks device, dtype, shape and contiguity; launching it costs a few microseconds and is what a CUDA
    graph captures.
    """

    def __init__(
        self, function: Callable[..., None], structure: Any, tensors: tuple[Tensor, ...], *, meets: bool = False
    ) -> None:
        self.meets = meets
        """Whether it takes part in an exchange with other cards."""
        self._function = function
        self._structure = structure
        self._argument = c.address(structure)
        self._tensors = tensors

    def launch(self, *, dependent: bool) -> None:
        """On torch's current stream. `dependent`: may start before its predecessor ends (sm_90 and later)."""
        self._function(self._argument, dependent, torch.cuda.current_stream().cuda_stream)


def check(name: str, tensor: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raises `ValueError` where a tensor is not of this dtype and shape, or not contiguous."""
    if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
        layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)}, {layout}; it must be {dtype} {shape}, contiguous"
        )


def check_on_gpu(**tensors: Tensor) -> None:
    """Raises `ValueError` where one of the named tensors is not on a GPU."""
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise ValueError(f"{name} is on the {tensor.device}; the kernels work on a GPU")


def check_together(*tensors: Tensor) -> None:
    """Raises `ValueError` where tensors of one launch are on more than one device."""
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1:
        raise ValueError(f"tensors of one operation are on {' and '.join(devices)}; they must be on one GPU")
