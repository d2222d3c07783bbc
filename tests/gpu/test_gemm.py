"""Products of many rows against their reference. Memory that outputs may come from is poisoned first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from exlchat.ext import layout
from exlchat.ext.gemm import RowProducts
from exlchat.ext.layout import PackedMatrix, to_stored, unsigned
from tests.ext import reference
from tests.ext.matrix_cases import GPTQ, RECIPES, packed, plain, relative_error

ROWS = (1, 2, 5, 8, 9, 17, 33, 50, 64, 65, 130, 256)


def poison() -> None:
    """What `torch.empty` hands out next holds NaN."""
    # Held together, so that each has memory of its own.
    blocks = [torch.full((size,), 255, dtype=torch.uint8, device="cuda") for size in (2**18, 2**20, 2**22, 40 * 2**20)]
    del blocks


def check(kernels: RowProducts, matrices: list[PackedMatrix], rows: int, room: int = 0) -> None:
    """The product of some random rows."""
    x = torch.randn(rows, matrices[0].features, device="cuda").half()
    product = kernels.row_product(matrices, room=room)
    poison()
    found = product(x)
    assert not found.isnan().any()
    assert relative_error(found, reference.product(matrices, to_stored(x, matrices[0]))) < 1e-3
    permutation = product.permutation(rows)
    if permutation is not None:
        permuted = torch.zeros_like(x)
        permuted[:, unsigned(permutation)] = x
        assert torch.equal(product(permuted, permuted=True), found)


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
@pytest.mark.parametrize(("features", "outputs"), [(128, 32), (800, 96), (4096, 1024), (1536, 160), (96, 2080)])
def test_products(kernels: RowProducts, recipe: str, features: int, outputs: int) -> None:
    matrix = packed(features, outputs, recipe)
    weights = layout.decode(matrix).double()
    product = kernels.row_product([matrix])
    for rows in ROWS:
        x = torch.randn(rows, features, device="cuda").half()
        poison()
        found = product(x)
        assert not found.isnan().any()
        assert relative_error(found, x.double() @ weights) < 1e-3


@pytest.mark.parametrize("rows", ROWS)
def test_three_matrices_with_biases(kernels: RowProducts, rows: int) -> None:
    first = packed(1024, 512, "8, 5, 4")
    others = [packed(1024, 96, "4"), packed(1024, 128, "6 in groups of 64")]
    matrices = [replace(m, gather=first.gather) for m in (first, *others)]
    matrices[1] = replace(matrices[1], bias=torch.randn(96, device="cuda").half())
    check(kernels, matrices, rows)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("outputs", [16, 48, 272])
def test_columns_are_any_multiple_of_16(kernels: RowProducts, rows: int, outputs: int) -> None:
    matrix = plain(1024, outputs, 64)
    check(kernels, [replace(matrix, bias=torch.randn(outputs, device="cuda").half())], rows)


def test_wide_rows(kernels: RowProducts) -> None:
    # The first fits into shared memory while it is put in stored order, the second does not.
    for features in (14336, 28672):
        check(kernels, [packed(features, 64, "8, 5, 4")], 40)


@pytest.mark.parametrize("rows", [9, 64, 130])
@pytest.mark.parametrize("recipe", ["2", "4", "8", "8, 5, 4", "GPTQ 32"])
# Of compute capability 7.5, 8.6 and 8.0; then room for one slot with 4 bits or two with 2.
@pytest.mark.parametrize("room", [65536, 101376, 166912, 38912])
def test_cards_with_less_shared_memory(kernels: RowProducts, room: int, recipe: str, rows: int) -> None:
    if room == 38912 and "8" in recipe:
        pytest.skip("no card has so little")
    check(kernels, [packed(1536, 288, recipe)], rows, room)


def test_no_rows(kernels: RowProducts) -> None:
    x = torch.empty(0, 128, dtype=torch.float16, device="cuda")
    assert kernels.row_product([packed(128, 32, "4")])(x).shape == (0, 32)


@pytest.mark.parametrize("rows", [9, 50, 130])
def test_a_hundred_runs_give_the_same_bits(kernels: RowProducts, rows: int) -> None:
    product = kernels.row_product([packed(4096, 2048, "8, 5, 4")])
    x = torch.randn(rows, 4096, device="cuda").half()
    first = product(x)
    for _ in range(100):
        poison()
        assert torch.equal(product(x), first)


@pytest.mark.parametrize("wrong", [lambda t: t.cpu(), lambda t: t.float(), lambda t: t[:, ::2], lambda t: t[:, :127]])
def test_wrong_tensors_are_refused(kernels: RowProducts, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    product = kernels.row_product([packed(128, 32, "4")])
    with pytest.raises(ValueError, match=r"x is|on cpu and cuda"):
        product(wrong(torch.zeros(9, 128, dtype=torch.float16, device="cuda")))
