"""What products of many rows refuse before anything reaches the library. No GPU."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import cast

import pytest
import torch

from exlchat.ext import functions as c
from exlchat.ext.gemm import RowProducts
from exlchat.ext.library import Library
from exlchat.ext.record import SOURCES
from tests.ext.never_called import NeverCalled, small_matrix


@pytest.fixture
def products() -> RowProducts:
    return RowProducts(cast(Library, NeverCalled()))


def test_matrices_stay_on_a_gpu(products: RowProducts) -> None:
    with pytest.raises(ValueError, match="weights is on the cpu"):
        products.row_product([small_matrix()])


def test_matrices_of_one_product_have_one_height(products: RowProducts) -> None:
    with pytest.raises(ValueError, match="64, 96 stored rows"):
        products.row_product([small_matrix(64), small_matrix(96)])


@pytest.mark.parametrize("count", [0, 4])
def test_there_are_one_to_three_matrices(products: RowProducts, count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} matrices; there can be 1 to 3"):
        products.row_product([small_matrix()] * count)


def test_a_bias_has_a_number_for_every_column(products: RowProducts) -> None:
    with pytest.raises(ValueError, match=r"bias is torch.float16 \(31,\)"):
        products.row_product([replace(small_matrix(), bias=torch.zeros(31).half())])


def test_sizes_are_those_of_the_header() -> None:
    header = (SOURCES / "exlchat.h").read_text(encoding="utf-8")
    assert f"#define EXL_GEMM_BLOCK_BYTES {c.GEMM_BLOCK_BYTES}\n" in header
    assert f"#define EXL_GEMM_MAX_ROWS {c.GEMM_MAX_ROWS}\n" in header
    # Three matrices, five pointers, five numbers and what fills them up.
    assert ctypes.sizeof(c.CGemm) == 3 * ctypes.sizeof(c.CMatrix) + 5 * 8 + 6 * 4
