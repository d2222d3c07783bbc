"""Keys and values in few bits: error bounds, exact cases, and the transform by its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from exlchat.ext.kv_formats import (
    CODES4,
    CODES8,
    FLOAT8,
    FLOAT16,
    FLOAT32,
    GROUP,
    KINDS,
    Element,
    decode,
    decode_turned,
    encode,
    turn,
    turned_size,
)

HEAD_DIMS = (64, 96, 128, 256)


@st.composite
def vectors(draw: st.DrawFn) -> Tensor:
    """float32 `[3, head_dim]` of every magnitude that a half holds, some rows with one outlier, some zero."""
    head_dim = draw(st.sampled_from(HEAD_DIMS))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x: Tensor = torch.randn(3, head_dim, generator=generator) * 10.0 ** draw(st.floats(-4, 3))
    if draw(st.booleans()):
        x[0, draw(st.integers(0, head_dim - 1))] *= 30
    if draw(st.booleans()):
        x[1] = 0
    return x


def encode_codes(x: Tensor, element: Element) -> tuple[Tensor, Tensor]:
    """Codes and their scales, which these have."""
    codes, scales = encode(x, element)
    assert scales is not None
    return codes, scales


@given(vectors(), st.sampled_from([CODES4, CODES8]))
def test_every_element_is_within_half_a_step_of_what_was_stored(x: Tensor, element: Element) -> None:
    codes, scales = encode_codes(x, element)
    wanted, found = turn(x), decode_turned(codes, scales, element).float()
    step = scales.abs().float().repeat_interleave(GROUP, -1)
    # Half a step, and what the rounding of scale and product to halves adds at the outermost code.
    rounding = 2 ** (element.bits - 1) * (2**-10 * step + 6e-8)
    assert bool(((found - wanted).abs() <= step / 2 + rounding).all())


@given(vectors(), st.sampled_from([CODES4, CODES8]))
def test_the_largest_of_a_group_is_exact_where_the_other_side_is_small(x: Tensor, element: Element) -> None:
    codes, scales = encode_codes(x, element)
    groups = turn(x).view(3, -1, GROUP)
    found = decode_turned(codes, scales, element).float().view(3, -1, GROUP)
    where = groups.abs().argmax(-1, keepdim=True)
    wanted = groups.gather(-1, where)
    step = scales.abs().float().unsqueeze(-1)
    assert bool(((found.gather(-1, where) - wanted).abs() <= step / 2 + wanted.abs() * 2**-9 + 1e-5).all())
    one_sided = groups.abs()
    codes, scales = encode_codes(turn(one_sided.flatten(1)), element)
    found = decode_turned(codes, scales, element).float().view(3, -1, GROUP)
    wanted = one_sided.gather(-1, where)
    assert torch.allclose(found.gather(-1, where), wanted, rtol=2**-9, atol=2 ** (element.bits - 1) * 6e-8)


@pytest.mark.parametrize(("element", "worst"), [(CODES4, 0.096), (CODES8, 0.0059)], ids=["4", "8"])
def test_rms_error_is_no_larger_than_the_known_formats(element: Element, worst: float) -> None:
    """exllamav2's cache formats, measured on the same normal data: 0.096 and 0.0059 (its section 3.6 example aside)."""
    x = torch.randn(4000, 128, generator=torch.Generator().manual_seed(0))
    error = (decode(*encode(x, element), element) - x).square().mean().sqrt()
    assert error < worst


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_the_transform_by_its_definition(head_dim: int) -> None:
    size = turned_size(head_dim)
    assert head_dim % size == 0
    assert size == {64: 64, 96: 32, 128: 128, 256: 256}[head_dim]
    signs = torch.tensor([[(-1.0) ** (i & j).bit_count() for j in range(size)] for i in range(size)])
    x = torch.randn(2, head_dim)
    wanted = (x.view(2, -1, size) @ signs / size**0.5).flatten(1)
    assert torch.allclose(turn(x), wanted, atol=1e-5)
    assert torch.allclose(turn(turn(x)), x, atol=1e-5)


@pytest.mark.parametrize("element", [CODES4, CODES8], ids=["4", "8"])
def test_zeros_extremes_and_shapes(element: Element) -> None:
    assert bool((decode(*encode(torch.zeros(5, 64), element), element) == 0).all())
    codes, scales = encode_codes(torch.full((2, 7, 128), 65504.0, dtype=torch.float16), element)
    assert codes.shape == (2, 7, 128 * element.bits // 8)
    assert scales.shape == (2, 7, 4)
    assert bool(torch.isfinite(decode(codes, scales, element)).all())
    assert encode(torch.zeros(3, 0, 64), element)[0].shape == (3, 0, 64 * element.bits // 8)
    outlier = torch.zeros(1, 128)
    outlier[0, 5] = 100.0
    assert torch.allclose(decode(*encode(outlier, element), element), outlier, atol=0.05)


def test_an_example_written_out() -> None:
    """One group: 8, -7 and 1 in turned space. Eight steps down and seven up: the step is 1, negative."""
    turned = torch.zeros(1, 64)
    turned[0, :3] = torch.tensor([8.0, -7.0, 1.0])
    codes, scales = encode_codes(turn(turned), CODES4)
    assert scales.tolist() == [[-1.0, 0.0]]
    assert codes[0, :2].tolist() == [0xF0, 0x87]


def test_what_a_token_takes() -> None:
    """Llama 3.1 8B, 32 layers of 8 heads: the figures of the format's reference."""
    sizes = {name: 32 * 8 * kind.token_bytes(128) for name, kind in KINDS.items()}
    assert sizes == {"fp32": 262144, "fp16": 131072, "fp8": 65536, "q8": 69632, "q6": 53248, "q4": 36864}
    assert not KINDS["q4"].fits(80)
    assert not KINDS["fp8"].fits(80)
    assert KINDS["fp16"].fits(80)


def test_plain_elements_are_stored_as_they_are() -> None:
    x = torch.randn(3, 80)
    for element, dtype in ((FLOAT16, torch.float16), (FLOAT32, torch.float32)):
        stored, scales = encode(x, element)
        assert stored.dtype == dtype
        assert scales is None
        assert torch.equal(decode(stored, None, element), x.to(dtype).float())


def float8(turned: list[float]) -> list[int]:
    """The bytes of a vector that is these values when it is turned; the transform of these is exact."""
    x = torch.zeros(1, 64)
    x[0, : len(turned)] = torch.tensor(turned)
    stored, scales = encode(turn(x), FLOAT8)
    assert scales is None
    assert stored.dtype == torch.uint8
    return stored[0, : len(turned)].tolist()


def test_8_bit_floats_written_out() -> None:
    """Sign, 4 bits of exponent with a bias of 7, 3 bits of mantissa; no infinities."""
    assert float8([1.0, -1.5, 448.0, -448.0]) == [0x38, 0xBC, 0x7E, 0xFE]
    assert float8([2**-6, 2**-9, 7 * 2**-9]) == [0x08, 0x01, 0x07]
    # Between two of them: the one whose last bit is 0.
    assert float8([17.0, 19.0, 1.5 * 2**-9, 2.5 * 2**-9, 0.5 * 2**-9]) == [0x58, 0x5A, 0x02, 0x02, 0x00]
    # Beyond the largest: that one, neither NaN nor infinity.
    assert float8([465.0, -1e6]) == [0x7E, 0xFE]


@given(vectors())
def test_8_bit_floats_are_torchs_and_the_nearest(x: Tensor) -> None:
    stored, _ = encode(x, FLOAT8)
    wanted = turn(x).clamp(-448, 448)
    assert torch.equal(stored, wanted.to(torch.float8_e4m3fn).view(torch.uint8))
    assert not bool((stored & 0x7F == 0x7F).any())
    found = decode_turned(stored, None, FLOAT8)
    assert torch.equal(found.float(), stored.view(torch.float8_e4m3fn).float())
    # Half a step: a 16th of the value, or half of the smallest.
    assert bool(((found - wanted).abs() <= torch.clamp(wanted.abs() / 16, min=2**-10)).all())


def test_rms_error_of_8_bit_floats() -> None:
    """A uniform mantissa of 3 bits: steps of 1/8 to 1/16 of the value, whose errors have an RMS of step / sqrt(12)."""
    x = torch.randn(4000, 128, generator=torch.Generator().manual_seed(0))
    error = float((decode(*encode(x, FLOAT8), FLOAT8) - x).square().mean().sqrt())
    assert 1 / 16 / 12**0.5 < error < 1 / 8 / 12**0.5
    outlier = torch.zeros(1, 128)
    outlier[0, 5] = 100.0
    assert torch.allclose(decode(*encode(outlier, FLOAT8), FLOAT8), outlier, atol=4.0)
    assert bool(torch.isfinite(decode(*encode(torch.full((1, 256), 65504.0), FLOAT8), FLOAT8)).all())
