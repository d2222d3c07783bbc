"""The product kernels against their references. Outputs are poisoned first, so that what is not written shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from exlchat.engine.formats.exl2 import dequantize
from exlchat.engine.formats.exl2_writer import quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext import layout
from exlchat.ext.build import ensure_library
from exlchat.ext.errors import ExtensionError
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.layout import to_stored
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from exlchat.ext.products import Activation, NormCopy, Normed, Products, Residual
from tests.ext import reference
from tests.ext.matrix_cases import GPTQ, RECIPES, packed, relative_error

BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])


def poisoned(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
@pytest.mark.parametrize(("features", "outputs"), [(128, 32), (800, 96), (4096, 1024), (1536, 160), (96, 2080)])
def test_products_and_weights(kernels: Kernels, recipe: str, features: int, outputs: int) -> None:
    matrix = packed(features, outputs, recipe)
    weights = poisoned(features, outputs, dtype=torch.float16)
    kernels.dequantize(matrix, weights)
    assert torch.equal(weights, layout.decode(matrix))
    for rows in (1, 2, 5, 8):
        x = to_stored(torch.randn(rows, features, device="cuda").half(), matrix)
        wanted = reference.product([matrix], x)
        results = []
        for dependent in (False, True):
            y = poisoned(rows, outputs, dtype=torch.float32)
            kernels.product([matrix], x, y, "float").launch(dependent=dependent)
            results.append(y)
        assert relative_error(results[0], wanted) < 1e-3
        assert torch.equal(results[0], results[1])


def test_dequantized_weights_are_those_of_the_file(kernels: Kernels) -> None:
    tensors = quantize_matrix(torch.randn(1536, 160, device="cuda") * 0.05, RECIPES["8, 5, 4"])
    weights = poisoned(1536, 160, dtype=torch.float16)
    kernels.dequantize(pack_exl2(tensors), weights)
    assert torch.equal(weights, dequantize(tensors))


@pytest.mark.parametrize("features", [14336, 28672])
def test_a_wide_row_of_many_rows(kernels: Kernels, features: int) -> None:
    matrix = packed(features, 64, "4")
    for rows in (1, 3, 8):
        x = to_stored(torch.randn(rows, features, device="cuda").half(), matrix)
        y = poisoned(rows, 64, dtype=torch.float16)
        kernels.product([matrix], x, y, "half").launch(dependent=True)
        assert relative_error(y, reference.product([matrix], x)) < 1e-3


# Of compute capability 7.5, and of 8.6 and 8.9.
@BOTH_EDGES
@pytest.mark.parametrize(
    ("room", "features"), [(65536, 4096), (65536, 14336), (101376, 4096), (101376, 14336), (101376, 28672)]
)
def test_cards_with_less_shared_memory(build_cache: Path, room: int, features: int, dependent: bool) -> None:
    products = Products(open_library(ensure_library(build_cache), FUNCTIONS), room=room)
    matrix = packed(features, 2080, "8, 5, 4")
    for rows in (1, 2, 5, 8):
        x = to_stored(torch.randn(rows, features, device="cuda").half(), matrix)
        y = poisoned(rows, 2080, dtype=torch.float16)
        products.product([matrix], x, y, "half").launch(dependent=dependent)
        assert relative_error(y, reference.product([matrix], x)) < 1e-3


def test_what_does_not_fit_a_card_is_refused(build_cache: Path) -> None:
    products = Products(open_library(ensure_library(build_cache), FUNCTIONS), room=24576)
    matrix, x, y = packed(14336, 32, "4"), torch.zeros(1, 14336).half().cuda(), torch.zeros(1, 32).half().cuda()
    with pytest.raises(ExtensionError):
        products.product([matrix], x, y, "half").launch(dependent=False)


def test_a_hundred_runs_give_the_same_bits(kernels: Kernels) -> None:
    matrix = packed(4096, 512, "8, 5, 4")
    x = torch.randn(1, 4096, device="cuda").half()
    first = poisoned(1, 512, dtype=torch.float32)
    kernels.product([matrix], x, first, "float").launch(dependent=False)
    for _ in range(100):
        again = poisoned(1, 512, dtype=torch.float32)
        kernels.product([matrix], x, again, "float").launch(dependent=True)
        assert torch.equal(again, first)


@BOTH_EDGES
def test_three_matrices_with_biases(kernels: Kernels, dependent: bool) -> None:
    first = packed(1024, 512, "8, 5, 4")
    others = [packed(1024, 96, "4"), packed(1024, 128, "6 in groups of 64")]
    matrices = [replace(m, gather=first.gather) for m in (first, *others)]
    matrices[1] = replace(matrices[1], bias=torch.randn(96, device="cuda").half())
    x = torch.randn(1, 1024, device="cuda").half()
    y = poisoned(1, 736, dtype=torch.float16)
    kernels.product(matrices, x, y, "half").launch(dependent=dependent)
    assert relative_error(y, reference.product(matrices, x)) < 1e-3


@BOTH_EDGES
@pytest.mark.parametrize(("activation", "room"), [("silu", 0), ("gelu_tanh", 0), ("silu", 65536), ("silu", 40960)])
def test_norm_gate_and_residual(build_cache: Path, dependent: bool, activation: Activation, room: int) -> None:
    kernels = Products(open_library(ensure_library(build_cache), FUNCTIONS), room=room)
    gate = packed(1024, 512, "8, 5, 4")
    up = replace(packed(1024, 512, "4"), gather=gate.gather)
    down = packed(512, 1024, "6 in groups of 64")
    weight = (torch.randn(1024, device="cuda") * 0.1 + 1).half()

    def stream() -> Residual:
        copies = tuple(
            NormCopy(torch.zeros(1, m.stored, device="cuda"), m.scatter, weight) for m in (gate, packed(1024, 32, "4"))
        )
        hidden, squares = poisoned(1, 1024, dtype=torch.float32), poisoned(1, 64, dtype=torch.float32)
        return Residual(hidden, squares, copies)

    table, token = torch.randn(50, 1024, device="cuda").half(), torch.tensor([37], device="cuda")
    ours = stream()
    theirs = Residual(
        ours.hidden.clone(), ours.squares.clone(), tuple(replace(c, values=c.values.clone()) for c in ours.copies)
    )
    inner, wanted_inner = (torch.zeros(1, 512, dtype=torch.float16, device="cuda") for _ in range(2))
    x = Normed(ours.copies[0].values, ours.squares, 1e-5)
    jobs = [
        kernels.embed(table, token, ours),
        kernels.product([gate, up], x, inner, "gated", scatter=down.scatter, activation=activation),
        kernels.add_product(down, inner, ours),
    ]
    for job in jobs:
        job.launch(dependent=dependent)
    reference.embed(table, token, theirs)
    their_x = Normed(theirs.copies[0].values, theirs.squares, 1e-5)
    wanted_inner[:, layout.unsigned(down.scatter)] = reference.gated(gate, up, their_x, activation).half()
    assert relative_error(inner, wanted_inner.double()) < 2e-3
    reference.add_product(down, wanted_inner, theirs)
    assert relative_error(ours.hidden, theirs.hidden.double()) < 1e-3
    assert relative_error(ours.squares, theirs.squares.double()) < 1e-3
    for our_copy, their_copy in zip(ours.copies, theirs.copies, strict=True):
        assert relative_error(our_copy.values, their_copy.values.double()) < 1e-3


@BOTH_EDGES
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "gelu_erf"])
@pytest.mark.parametrize("outputs", [512, 2080, 6144])
def test_an_ungated_mlp(kernels: Kernels, activation: Activation, outputs: int, dependent: bool) -> None:
    up = replace(packed(1024, outputs, "8, 5, 4"), bias=(torch.randn(outputs, device="cuda") * 0.5).half())
    down = packed(outputs, 1024, "6 in groups of 64")
    places, order = down.scatter, layout.unsigned(down.scatter)
    for rows in (1, 2, 8):
        x = to_stored(torch.randn(rows, 1024, device="cuda").half(), up)
        wanted = reference.activated(reference.product([up], x), activation)
        plain = poisoned(rows, outputs, dtype=torch.float16)
        kernels.product([up], x, plain, "activated", activation=activation).launch(dependent=dependent)
        assert relative_error(plain, wanted) < 1e-3, f"{rows} rows"
        room = torch.full((rows, down.stored + 32), -7.0, dtype=torch.float16, device="cuda")
        kernels.product([up], x, room, "activated", scatter=places, activation=activation).launch(dependent=dependent)
        assert torch.equal(room[:, order], plain), f"{rows} rows, scattered"
        room[:, order] = -7.0
        assert bool((room == -7.0).all()), f"{rows} rows: places that nothing scatters to have changed"


@BOTH_EDGES
def test_several_activated_matrices_stand_side_by_side(kernels: Kernels, dependent: bool) -> None:
    first = packed(1024, 512, "8, 5, 4")
    other = replace(packed(1024, 96, "4"), gather=first.gather, bias=torch.randn(96, device="cuda").half())
    x = to_stored(torch.randn(1, 1024, device="cuda").half(), first)
    wanted = reference.activated(reference.product([first, other], x), "gelu_erf")
    places = torch.randperm(700, device="cuda")[:608].to(torch.int16)
    y = poisoned(1, 700, dtype=torch.float16)
    job = kernels.product([first, other], x, y, "activated", scatter=places, activation="gelu_erf")
    job.launch(dependent=dependent)
    assert relative_error(y[:, places.long()], wanted) < 1e-3
    assert int(y.isnan().sum()) == 92


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf"])
def test_every_activation_of_a_gated_product(kernels: Kernels, activation: Activation) -> None:
    gate = packed(1024, 512, "8, 5, 4")
    up = replace(packed(1024, 512, "4"), gather=gate.gather)
    for rows in (1, 3):
        x = to_stored(torch.randn(rows, 1024, device="cuda").half() * 3, gate)
        y = poisoned(rows, 512, dtype=torch.float16)
        kernels.product([gate, up], x, y, "gated", activation=activation).launch(dependent=True)
        assert relative_error(y, reference.gated(gate, up, x, activation)) < 1e-3, f"{rows} rows"


@BOTH_EDGES
@pytest.mark.parametrize("width", [16, 1024, 5120])
@pytest.mark.parametrize("multiplier", [1.0, 12.0, 32**0.5])
def test_embeddings_with_a_multiplier(kernels: Kernels, width: int, multiplier: float, dependent: bool) -> None:
    table, token = torch.randn(50, width, device="cuda").half(), torch.tensor([37], device="cuda")
    wanted = table[37].double() * multiplier
    hidden = poisoned(1, width, dtype=torch.float32)
    kernels.embed(table, token, hidden, multiplier).launch(dependent=dependent)
    assert relative_error(hidden[0], wanted) < 1e-6
    residual = Residual(torch.zeros_like(hidden), poisoned(1, width // 16, dtype=torch.float32), ())
    kernels.embed(table, token, residual, multiplier).launch(dependent=dependent)
    assert torch.equal(residual.hidden, hidden)
    assert relative_error(residual.squares[0], wanted.square().view(-1, 16).sum(1)) < 1e-6


@pytest.mark.parametrize("wrong", [lambda t: t.cpu(), lambda t: t.float(), lambda t: t[:, ::2]])
def test_wrong_tensors_are_refused(kernels: Kernels, wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
    matrix = packed(128, 32, "4")
    x = torch.zeros(1, 128, dtype=torch.float16, device="cuda")
    with pytest.raises(ValueError, match="x is"):
        kernels.product([matrix], wrong(x), poisoned(1, 32, dtype=torch.float16), "half")
