"""Products of one to eight rows without a GPU: kernels run on the CPU, with and without blocks that share x."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from exlchat.ext import products
from exlchat.ext.layout import PackedMatrix, to_stored
from exlchat.ext.products import MAX_ROWS, NormCopy, Normed, Products, Residual
from tests.ext import reference
from tests.ext.chain_cases import Functions
from tests.ext.emulation import GEMV, emulated_library
from tests.ext.matrix_cases import GPTQ, RECIPES, packed, relative_error
from tests.ext.row_cases import same

pytestmark = pytest.mark.timeout(400)
LARGEST = 232448
Make = Callable[..., Products]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return emulated_library(tmp_path_factory.mktemp("emulated"), GEMV, ("-DEMULATED_DELAYS=3",))


@pytest.fixture(params=[9, 8], ids=["two blocks share x", "each by itself"])
def make(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Make:
    """Products on a card of so many multiprocessors."""
    monkeypatch.setattr(products, "check_on_gpu", lambda **_tensors: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=None))
    unused = dict.fromkeys(("exl_dequantize", "exl_embed", "exl_head"))
    running = {**unused, "exl_gemv": lambda *given: _checked(functions["exl_gemv"](*given))}

    def one(processors: int = 4, room: int = 0) -> Products:
        functions["emulated_card"](LARGEST, processors, request.param)
        card = SimpleNamespace(multi_processor_count=processors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
        return Products(Functions(running).library, room=room)

    return one


def _checked(code: int) -> int:
    assert code == 0
    return code


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def check(kernels: Products, matrices: list[PackedMatrix], rows: int, *, dependent: bool = True) -> None:
    """As the reference; and of each row the bits that it has alone."""
    x = to_stored(torch.randn(rows, matrices[0].features).half(), matrices[0])

    def multiplied(part: Tensor) -> Tensor:
        y = poisoned(len(part), sum(matrix.outputs for matrix in matrices))
        kernels.product(matrices, part, y, "float").launch(dependent=dependent)
        return y

    found = multiplied(x)
    assert relative_error(found, reference.product(matrices, x)) < 1e-3
    assert same(found, torch.cat([multiplied(row) for row in x.split(1)]))


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
def test_every_width_and_mix(make: Make, recipe: str) -> None:
    kernels, matrix = make(), packed(416, 96, recipe, "cpu")
    for rows in (2, 4, 8):
        check(kernels, [matrix], rows)


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
def test_any_number_of_rows(make: Make, rows: int) -> None:
    check(make(), [packed(1056, 128, "8, 5, 4", "cpu")], rows, dependent=rows % 2 == 0)


# Few rows of weights are shared by fewer warps; some warps, and some blocks, have nothing to do.
@pytest.mark.parametrize("processors", [2, 3, 8])
@pytest.mark.parametrize(("features", "outputs"), [(32, 32), (96, 64), (416, 32), (640, 352)])
def test_where_some_have_nothing_to_do(make: Make, features: int, outputs: int, processors: int) -> None:
    kernels = make(processors)
    for rows in (2, 3, 8):
        check(kernels, [packed(features, outputs, "4 in groups of 32", "cpu")], rows)


# The last with room for three rows at once, where blocks do not share x, and for all where they do.
@pytest.mark.parametrize("room", [101376, 65536])
def test_with_less_shared_memory(make: Make, room: int) -> None:
    matrix = packed(4096, 32, "4", "cpu")
    check(make(2, room), [matrix], 8)


def test_matrices_side_by_side(make: Make) -> None:
    first = packed(512, 288, "8, 5, 4", "cpu")
    others = [replace(packed(512, 64, recipe, "cpu"), gather=first.gather) for recipe in ("4", "6 in groups of 64")]
    others[0] = replace(others[0], bias=torch.randn(64).half())
    check(make(6), [first, *others], 5)


@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_norm_gate_and_residual(make: Make, rows: int) -> None:
    """The MLP of a layer: what is read behind a norm, what goes to scattered places, what is added and left behind."""
    kernels = make()
    gate = packed(512, 352, "8, 5, 4", "cpu")
    up, down = replace(packed(512, 352, "4", "cpu"), gather=gate.gather), packed(352, 512, "6 in groups of 64", "cpu")
    up = replace(up, bias=torch.randn(352).half())
    hidden, weight = torch.randn(rows, 512), (torch.randn(512) * 0.1 + 1).half()
    of_next = packed(512, 32, "4", "cpu")

    def mlp(part: Tensor) -> list[Tensor]:
        x = Normed(to_stored(part * weight, gate), (part.view(len(part), -1, 16) ** 2).sum(2), 1e-5)
        inner = torch.zeros(len(part), down.stored).half()
        kernels.product([gate, up], x, inner, "gated", scatter=down.scatter).launch(dependent=True)
        copy = NormCopy(torch.zeros(len(part), of_next.stored), of_next.scatter, weight)
        residual = Residual(part.clone(), poisoned(len(part), 32), (copy,))
        kernels.add_product(down, inner, residual).launch(dependent=False)
        return [inner, residual.hidden, residual.squares, copy.values]

    found = mlp(hidden)
    x = Normed(to_stored(hidden * weight, gate), (hidden.view(rows, -1, 16) ** 2).sum(2), 1e-5)
    wanted = torch.zeros(rows, down.stored, dtype=torch.float64)
    wanted[:, down.scatter.long()] = reference.gated(gate, up, x).double()
    assert relative_error(found[0], wanted) < 2e-3
    assert relative_error(found[1], hidden + reference.product([down], found[0])) < 1e-3
    assert torch.allclose(found[2], (found[1].view(rows, -1, 16) ** 2).sum(2), rtol=1e-5)
    assert torch.allclose(found[3], to_stored(found[1] * weight, of_next), rtol=1e-5, atol=1e-6)
    for row in range(rows):
        for whole, one in zip(found, mlp(hidden[row : row + 1]), strict=True):
            assert same(whole[row : row + 1], one)
