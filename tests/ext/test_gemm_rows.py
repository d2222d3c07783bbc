"""Products of many rows without a GPU: the kernels run on the CPU, those for Hopper and those for all other cards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from exlchat.ext import gemm
from exlchat.ext.gemm import RowProduct, RowProducts
from exlchat.ext.layout import PackedMatrix, to_stored, unsigned
from tests.ext import reference
from tests.ext.chain_cases import Functions
from tests.ext.emulation import GEMM, emulated_library
from tests.ext.matrix_cases import GPTQ, RECIPES, packed, relative_error

pytestmark = pytest.mark.timeout(400)
Make = Callable[..., RowProduct]


@pytest.fixture(scope="module", params=["warps", "warpgroups"])
def functions(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    flags = (f"-DEXL_WGMMA={int(request.param == 'warpgroups')}", "-DEMULATED_DELAYS=3")
    found = emulated_library(tmp_path_factory.mktemp("emulated"), GEMM, flags)
    # Only cards that have those have clusters, whose blocks share a group of columns.
    found["emulated_card"](232448, 132, 9 if request.param == "warpgroups" else 8)
    return found


@pytest.fixture
def make(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Products on a card of so many multiprocessors; what memory they are given holds no numbers."""
    monkeypatch.setattr(gemm, "check_on_gpu", lambda **_tensors: None)
    stream = SimpleNamespace(cuda_stream=None, synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch, "empty", lambda *size, **named: torch.full(size, 255, **named))
    names = ("exl_gemm", "exl_gemm_permutation")
    running = {name: lambda *given, name=name: _checked(functions[name](*given)) for name in names}

    def one(*matrices: PackedMatrix, processors: int = 7, room: int = 0) -> RowProduct:
        card = SimpleNamespace(multi_processor_count=processors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
        return RowProducts(Functions(running).library).row_product(matrices, room=room)

    return one


def _checked(code: int) -> int:
    assert code == 0, code
    return code


def check(product: RowProduct, matrices: list[PackedMatrix], rows: int) -> None:
    x = torch.randn(rows, matrices[0].features).half()
    found = product(x)
    assert relative_error(found, reference.product(matrices, to_stored(x, matrices[0]))) < 1e-3
    assert torch.equal(product(x), found), "what one run leaves is none of the next one's business"
    permutation = product.permutation(rows)
    if permutation is not None:
        permuted = torch.zeros_like(x)
        permuted[:, unsigned(permutation)] = x
        assert torch.equal(product(permuted, permuted=True), found)


@pytest.mark.parametrize("rows", [9, 50])
@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
def test_every_width_and_mix(make: Make, recipe: str, rows: int) -> None:
    matrix = packed(800, 288, recipe, "cpu")
    check(make(matrix), [matrix], rows)


@pytest.mark.parametrize("rows", [1, 8, 17, 33, 56, 64, 65, 130])
def test_any_number_of_rows(make: Make, rows: int) -> None:
    matrix = packed(416, 96, "8, 5, 4", "cpu")
    check(make(matrix), [matrix], rows)


@pytest.mark.parametrize("processors", [1, 2, 3, 5, 11, 16])
def test_however_many_blocks_share_a_group_of_columns(make: Make, processors: int) -> None:
    first = packed(1536, 288, "4", "cpu")
    matrices = [first, replace(packed(1536, 64, "6 in groups of 64", "cpu"), gather=first.gather)]
    matrices[1] = replace(matrices[1], bias=torch.randn(64).half())
    check(make(*matrices, processors=processors), matrices, 20)


@pytest.mark.parametrize("functions", ["warps"], indirect=True)
def test_a_block_that_does_not_come_ends_the_product_with_an_error(functions: dict[str, Any], make: Make) -> None:
    matrix = packed(1536, 32, "4", "cpu")
    product, x = make(matrix, processors=4), torch.randn(20, 1536).half()
    functions["emulated_missing"](2, 50)
    try:
        with pytest.raises(AssertionError, match="719"):  # cudaErrorLaunchFailure
            product(x)
    finally:
        functions["emulated_missing"](-1, 300000)
    check(make(matrix, processors=4), [matrix], 20)


@pytest.mark.parametrize("rows", [9, 16, 17, 64, 130])
def test_x_in_the_order_of_the_product(make: Make, rows: int) -> None:
    matrix = replace(packed(1536, 288, "4", "cpu"), gather=torch.randperm(1536).short())
    assert make(matrix).permutation(rows) is not None
    for processors in (7, 16):
        check(make(matrix, processors=processors), [matrix], rows)


@pytest.mark.parametrize("functions", ["warps"], indirect=True)
def test_x_in_the_order_of_the_product_on_a_card_with_little_memory(functions: dict[str, Any], make: Make) -> None:
    matrix = replace(packed(1536, 288, "8", "cpu"), gather=torch.randperm(1536).short())
    functions["emulated_card"](65536, 132, 7)
    try:
        check(make(matrix), [matrix], 40)
    finally:
        functions["emulated_card"](232448, 132, 8)


# Room for four slots, for three, for two and for one.
@pytest.mark.parametrize("room", [166912, 101376, 65536, 38912])
@pytest.mark.parametrize("rows", [9, 130])
def test_with_less_shared_memory(make: Make, room: int, rows: int) -> None:
    matrix = packed(640, 160, "4", "cpu")
    check(make(matrix, room=room), [matrix], rows)
