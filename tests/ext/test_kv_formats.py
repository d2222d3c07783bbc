"""Keys and values in few bits: error bounds, exact cases, and the transform by its definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exlchat.ext.kv_formats import GROUP, KINDS, decode, decode_turned, encode, turn, turned_size

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


@settings(max_examples=200, deadline=None)
@given(vectors(), st.sampled_from([4, 8]))
def test_every_element_is_within_half_a_step_of_what_was_stored(x: Tensor, bits: int) -> None:
    codes, scales = encode(x, bits)
    wanted, found = turn(x), decode_turned(codes, scales, bits).float()
    step = scales.abs().float().repeat_interleave(GROUP, -1)
    # Half a step, and what the rounding of scale and product to halves adds at the outermost code.
    rounding = 2 ** (bits - 1) * (2**-10 * step + 6e-8)
    assert bool(((found - wanted).abs() <= step / 2 + rounding).all())


@settings(max_examples=50, deadline=None)
@given(vectors(), st.sampled_from([4, 8]))
def test_the_largest_of_a_group_is_exact_where_the_other_side_is_small(x: Tensor, bits: int) -> None:
    codes, scales = encode(x, bits)
    groups = turn(x).view(3, -1, GROUP)
    found = decode_turned(codes, scales, bits).float().view(3, -1, GROUP)
    where = groups.abs().argmax(-1, keepdim=True)
    wanted = groups.gather(-1, where)
    step = scales.abs().float().unsqueeze(-1)
    assert bool(((found.gather(-1, where) - wanted).abs() <= step / 2 + wanted.abs() * 2**-9 + 1e-5).all())
    one_sided = groups.abs()
    codes, scales = encode(turn(one_sided.flatten(1)), bits)
    found = decode_turned(codes, scales, bits).float().view(3, -1, GROUP)
    wanted = one_sided.gather(-1, where)
    assert torch.allclose(found.gather(-1, where), wanted, rtol=2**-9, atol=2 ** (bits - 1) * 6e-8)


@pytest.mark.parametrize(("bits", "worst"), [(4, 0.096), (8, 0.0059)])
def test_rms_error_is_no_larger_than_the_known_formats(bits: int, worst: float) -> None:
    """exllamav2's cache formats, measured on the same normal data: 0.096 and 0.0059 (its section 3.6 example aside)."""
    x = torch.randn(4000, 128, generator=torch.Generator().manual_seed(0))
    error = (decode(*encode(x, bits), bits) - x).square().mean().sqrt()
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


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_extremes_and_shapes(bits: int) -> None:
    assert bool((decode(*encode(torch.zeros(5, 64), bits), bits) == 0).all())
    codes, scales = encode(torch.full((2, 7, 128), 65504.0, dtype=torch.float16), bits)
    assert codes.shape == (2, 7, 128 * bits // 8)
    assert scales.shape == (2, 7, 4)
    assert bool(torch.isfinite(decode(codes, scales, bits)).all())
    assert encode(torch.zeros(3, 0, 64), bits)[0].shape == (3, 0, 64 * bits // 8)
    outlier = torch.zeros(1, 128)
    outlier[0, 5] = 100.0
    assert torch.allclose(decode(*encode(outlier, bits), bits), outlier, atol=0.05)


def test_an_example_written_out() -> None:
    """One group: 8, -7 and 1 in turned space. Eight steps down and seven up: the step is 1, negative."""
    turned = torch.zeros(1, 64)
    turned[0, :3] = torch.tensor([8.0, -7.0, 1.0])
    codes, scales = encode(turn(turned), 4)
    assert scales.tolist() == [[-1.0, 0.0]]
    assert codes[0, :2].tolist() == [0xF0, 0x87]


def test_what_a_token_takes() -> None:
    """Llama 3.1 8B, 32 layers of 8 heads: the figures of the format's reference."""
    sizes = {name: 32 * 8 * kind.token_bytes(128) for name, kind in KINDS.items()}
    assert sizes == {"fp32": 262144, "fp16": 131072, "q8": 69632, "q6": 53248, "q4": 36864}
    assert not KINDS["q4"].fits(80)
    assert KINDS["fp16"].fits(80)
