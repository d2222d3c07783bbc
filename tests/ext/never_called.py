"""For tests of what is refused before anything reaches a library."""

from __future__ import annotations

from collections.abc import Callable

import torch

from exlchat.engine.formats.exl2_writer import EIGHT_BITS, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext.layout import PackedMatrix


class NeverCalled:
    """A library none of whose functions may be reached."""

    def function(self, name: str) -> Callable[..., None]:
        def call(*_arguments: object) -> None:
            raise AssertionError(f"{name} was called")

        return call


def small_matrix(features: int = 64, outputs: int = 32) -> PackedMatrix:
    """A matrix of random weights in 8 bits, on the CPU."""
    return pack_exl2(quantize_matrix(torch.randn(features, outputs), EIGHT_BITS))
