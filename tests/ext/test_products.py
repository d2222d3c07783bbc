"""What products refuse before anything reaches the library, and their references. No GPU."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from exlchat.engine.formats import exl2
from exlchat.engine.formats.exl2_writer import EIGHT_BITS, quantize_matrix
from exlchat.engine.formats.packing import pack_exl2
from exlchat.ext.job import check_together
from exlchat.ext.layout import to_stored
from exlchat.ext.library import Library
from exlchat.ext.products import Deferred, Kind, NormCopy, Normed, Products, Residual
from tests.ext import reference
from tests.ext.never_called import NeverCalled, small_matrix

HALF, FLOAT = torch.float16, torch.float32


@pytest.fixture
def products() -> Products:
    return Products(cast(Library, NeverCalled()))


def rows(count: int, width: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.zeros(count, width, dtype=dtype)


@pytest.mark.parametrize(
    ("x", "y", "kind", "words"),
    [
        (rows(1, 64), rows(1, 32), "half", "x is on the cpu"),
        (rows(1, 63), rows(1, 32), "half", "x is torch.float16 (1, 63)"),
        (rows(1, 64, FLOAT), rows(1, 32), "half", "x is torch.float32"),
        (rows(64, 2).T[:1], rows(1, 32), "half", "not contiguous"),
        (rows(9, 64), rows(9, 32), "half", "x has 9 rows"),
        (Normed(rows(2, 64, FLOAT), rows(1, 4, FLOAT), 1e-5), rows(2, 32), "half", "squares is"),
        (Normed(rows(9, 64, FLOAT), rows(9, 4, FLOAT), 1e-5), rows(9, 32), "half", "x has 9 rows"),
        (Normed(rows(1, 64, FLOAT), rows(1, 5, FLOAT), 1e-5), rows(1, 32), "half", "squares is"),
    ],
)
def test_a_product_names_the_tensor_that_does_not_fit(
    products: Products, x: torch.Tensor | Normed, y: torch.Tensor, kind: Kind, words: str
) -> None:
    with pytest.raises(ValueError) as error:
        products.product([small_matrix()], x, y, kind)
    assert words in str(error.value)


def test_matrices_of_one_product_have_one_height(products: Products) -> None:
    with pytest.raises(ValueError, match="64, 96 stored rows"):
        products.product([small_matrix(64), small_matrix(96)], rows(1, 64), rows(1, 64), "half")


def test_matrices_of_one_product_have_as_many_features(products: Products) -> None:
    with pytest.raises(ValueError, match="64, 63 features"):
        products.product([small_matrix(), replace(small_matrix(), features=63)], rows(1, 64), rows(1, 64), "half")


def test_what_reads_and_adds_is_of_one_residual(products: Products) -> None:
    matrix, deferred = small_matrix(), Deferred(rows(1, 32, FLOAT), torch.zeros(1))
    plain = Residual(rows(1, 32, FLOAT), rows(1, 2, FLOAT), ())
    late = replace(plain, squares=torch.zeros(1, 2, 4), deferred=deferred, post_norm=torch.ones(32).half())
    x = Normed(rows(1, 64, FLOAT), rows(1, 4, FLOAT), 1e-5)
    with pytest.raises(ValueError, match="x and what is added to are of one residual"):
        products.add_product(matrix, x, late)
    with pytest.raises(ValueError, match="a norm behind what is added has weights, and is deferred"):
        products.add_product(matrix, x, replace(late, post_norm=None))
    with pytest.raises(ValueError, match="x without a norm before the product is of a residual that defers"):
        products.add_product(matrix, replace(x, before=False), plain)


def test_tensors_of_a_launch_are_on_one_device() -> None:
    check_together(rows(1, 64), rows(2, 32))
    with pytest.raises(ValueError, match="on cpu and meta"):
        check_together(rows(1, 64), rows(1, 64).to("meta"))


def test_weights_go_to_a_tensor_of_their_shape(products: Products) -> None:
    with pytest.raises(ValueError, match="out is"):
        products.dequantize(small_matrix(), rows(32, 64))


def test_the_reference_multiplies_the_weights_of_the_file() -> None:
    tensors = quantize_matrix(torch.randn(96, 32), EIGHT_BITS)
    bias = torch.randn(32).half()
    packed = pack_exl2(tensors, bias)
    x = torch.randn(3, 96).half()
    wanted = x.double() @ exl2.dequantize(tensors).double() + bias.double()
    assert torch.allclose(reference.product([packed], to_stored(x, packed)), wanted)


def test_the_reference_of_a_norm_is_that_of_torch() -> None:
    packed, weight = small_matrix(96), torch.randn(96).half()
    copy = NormCopy(torch.zeros(2, packed.stored), packed.scatter, weight)
    residual = Residual(torch.zeros(2, 96), torch.zeros(2, 6), (copy,))
    hidden = torch.randn(2, 96) * torch.tensor([[1.0], [5.0]])
    reference.put_residual(residual, hidden)
    found = reference.product([packed], Normed(copy.values, residual.squares, 1e-5))
    normed = (torch.nn.functional.rms_norm(hidden.double(), (96,), eps=1e-5) * weight.double()).half()
    assert torch.allclose(found, reference.product([packed], to_stored(normed, packed)), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("activated", {"y": rows(1, 32, FLOAT)}, "y is torch.float32"),
        ("activated", {"y": rows(1, 33)}, "y is torch.float16 (1, 33)"),
        ("activated", {"scatter": torch.zeros(16, dtype=torch.int16)}, "scatter is torch.int16 (16,)"),
        ("half", {"scatter": torch.zeros(32, dtype=torch.int16)}, "only a gated or activated product takes a scatter"),
    ],
)
def test_an_activated_product_names_the_tensor_that_does_not_fit(
    products: Products, kind: Kind, given: dict[str, torch.Tensor], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it all were on a GPU: what follows the checks of x is asked for.
    monkeypatch.setattr("exlchat.ext.products.check_on_gpu", lambda **_tensors: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(multi_processor_count=4))
    with pytest.raises(ValueError) as error:
        products.product([small_matrix()], rows(1, 64), given.get("y", rows(1, 32)), kind, scatter=given.get("scatter"))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("weight", "y", "words"),
    [
        (rows(5, 64), rows(2, 5, FLOAT), "x is on the cpu"),
        (rows(5, 48), rows(2, 5, FLOAT), "weight has 48 inputs; these kernels take multiples of 32"),
        (rows(5, 64, FLOAT), rows(2, 5, FLOAT), "weight is torch.float32"),
        (rows(5, 64), rows(2, 6, FLOAT), "y is torch.float32 (2, 6)"),
    ],
)
def test_a_head_names_the_tensor_that_does_not_fit(
    products: Products, weight: torch.Tensor, y: torch.Tensor, words: str
) -> None:
    with pytest.raises(ValueError) as error:
        products.head_product(weight, Normed(rows(2, 64, FLOAT), rows(2, 4, FLOAT), 1e-5), y)
    assert words in str(error.value)


def test_an_embedding_may_leave_the_residual_alone(products: Products) -> None:
    table, token, hidden = rows(5, 64), torch.tensor([3]), rows(1, 64, FLOAT)
    with pytest.raises(ValueError, match="table is on the cpu"):
        products.embed(table, token, hidden, 8.0)
    with pytest.raises(ValueError, match=r"table is torch\.float16 \(5, 64\)"):
        products.embed(table, token, rows(1, 48, FLOAT))
    reference.embed(table + 0.5, token, hidden, 8.0)
    assert torch.equal(hidden, torch.full((1, 64), 4.0))
