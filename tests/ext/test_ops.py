"""What the operations refuse before anything reaches the library. No GPU: the library is a set of stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch

from exlchat.engine.formats.exl2_tiles import pack_exl2
from exlchat.engine.formats.exl2_writer import EIGHT_BITS, quantize_matrix
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import Library
from exlchat.ext.ops import Kernels, Norm, Output

HALF, FLOAT = torch.float16, torch.float32


class NeverCalled:
    """A library none of whose functions may be reached."""

    def function(self, name: str) -> Callable[..., None]:
        def call(*_arguments: object) -> None:
            raise AssertionError(f"{name} was called")

        return call


@pytest.fixture
def kernels() -> Kernels:
    return Kernels(cast(Library, NeverCalled()))


def matrix(features: int = 64, outputs: int = 32) -> PackedMatrix:
    return pack_exl2(quantize_matrix(torch.randn(features, outputs), EIGHT_BITS))


def rows(count: int, width: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(count, width, dtype=dtype)


@pytest.mark.parametrize(
    ("x", "y", "output", "words"),
    [
        (rows(1, 64), rows(1, 32), "half", "x is on the cpu"),
        (rows(1, 63), rows(1, 32), "half", "x is torch.float16 (1, 63)"),
        (rows(1, 64, FLOAT), rows(1, 32), "half", "x is torch.float32"),
        (rows(64, 2).T[:1], rows(1, 32), "half", "not contiguous"),
        (rows(1, 64), rows(1, 32), "float", "y is torch.float16"),
        (rows(1, 64), rows(1, 33), "half", "y is torch.float16 (1, 33)"),
    ],
)
def test_a_product_names_the_tensor_that_does_not_fit(
    kernels: Kernels, x: torch.Tensor, y: torch.Tensor, output: Output, words: str
) -> None:
    with pytest.raises(ValueError) as error:
        kernels.gemv([matrix()], x, y, output)
    assert words in str(error.value)


def test_a_norm_takes_float32_and_one_row(kernels: Kernels) -> None:
    norm = Norm(torch.ones(64, dtype=HALF), 1e-6)
    with pytest.raises(ValueError, match="x is torch"):
        kernels.gemv([matrix()], rows(1, 64), rows(1, 32), "half", norm=norm)


def test_weights_go_to_a_tensor_of_their_shape(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="out is"):
        kernels.dequantize(matrix(), rows(32, 64))
