"""Pages read and written for a prompt, against their definition. What must not be touched is poisoned first."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from exlchat.ext.attention import AttentionRules, AttentionScratch, LayerPages
from exlchat.ext.kv_formats import GROUP, KINDS, PAGE_TOKENS, decode_turned
from exlchat.ext.ops import Kernels
from tests.ext import reference_pages
from tests.gpu.test_attention import KIND_AND_DIM

POISON = 0xA5
LAYERS = 2
EVERY_KIND = pytest.mark.parametrize(("kind", "head_dim"), KIND_AND_DIM)
BOTH_ORDERS = pytest.mark.parametrize("pages_first", [False, True], ids=["heads first", "pages first"])


def poisoned(kind: str, head_dim: int, kv_heads: int, count: int, *, pages_first: bool) -> LayerPages:
    """Pages of one of two layers of a pool, or all pages of a head one behind the other."""

    def rows(row: int, dtype: torch.dtype) -> Tensor:
        lead = (count, LAYERS, kv_heads) if pages_first else (kv_heads, count)
        store = torch.empty(*lead, PAGE_TOKENS, row, dtype=dtype, device="cuda")
        store.view(torch.uint8).fill_(POISON)
        return store[:, 1].transpose(0, 1) if pages_first else store

    key, value = KINDS[kind].key, KINDS[kind].value
    keys, values = rows(key.row(head_dim), key.dtype), rows(value.row(head_dim), value.dtype)
    if not KINDS[kind].has_scales:
        return LayerPages(KINDS[kind], keys, values)
    scales = [rows(element.scales(head_dim), torch.float16) for element in (key, value)]
    return LayerPages(KINDS[kind], keys, values, *scales)


def copy_of(pages: LayerPages) -> LayerPages:
    scales = [None if part is None else part.clone() for part in (pages.key_scales, pages.value_scales)]
    return LayerPages(pages.kind, pages.keys.clone(), pages.values.clone(), *scales)


def gathered(pages: LayerPages, table: Tensor) -> LayerPages:
    """The pages of a sequence alone, those of its last tokens as far as they were written."""
    keys, values, *scales = (
        None if part is None else part[:, table.long()]
        for part in (pages.keys, pages.values, pages.key_scales, pages.value_scales)
    )
    assert keys is not None
    assert values is not None
    return LayerPages(pages.kind, keys, values, *scales)


def scattered(tokens: int) -> tuple[Tensor, int]:
    """A page table of so many tokens in no order, and how many pages there are in all."""
    used = -(-tokens // PAGE_TOKENS)
    return torch.randperm(used + 3, device="cuda")[:used].to(torch.int32), used + 3


def chunk(tokens: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values as a prompt has them: heads of one tensor of queries, keys and values."""
    qkv = torch.randn(tokens, 4 * kv_heads, head_dim, device="cuda").half()
    return qkv[:, 2 * kv_heads : 3 * kv_heads].transpose(0, 1), qkv[:, 3 * kv_heads :].transpose(0, 1)


def same_bytes(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def check_stored(found: LayerPages, wanted: LayerPages) -> None:
    """But for a value here and there, the same: sums in another order can round a value to the neighbouring one."""
    for name, element in (("key", found.kind.key), ("value", found.kind.value)):
        ours, theirs = getattr(found, f"{name}s"), getattr(wanted, f"{name}s")
        if not element.turned:
            assert same_bytes(ours, theirs)
            continue
        our_scales, their_scales = getattr(found, f"{name}_scales"), getattr(wanted, f"{name}_scales")
        one, other = (decode_turned(*pair, element).float() for pair in ((ours, our_scales), (theirs, their_scales)))
        if element.scaled:
            assert torch.allclose(our_scales.abs(), their_scales.abs(), rtol=2**-9, atol=1e-6)
            step = their_scales.abs().float().repeat_interleave(GROUP, -1) * 1.1
        else:
            step = torch.clamp(torch.maximum(one.abs(), other.abs()) / 8, min=2**-9)
        assert bool(((one - other).abs() <= step + 1e-6).all())
        assert int((ours != theirs).sum()) <= 0.001 * ours.numel() + GROUP


@BOTH_ORDERS
@EVERY_KIND
@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 3000])
@pytest.mark.parametrize("start", [0, 1, 255, 301])
def test_write(kernels: Kernels, kind: str, head_dim: int, tokens: int, start: int, *, pages_first: bool) -> None:
    table, count = scattered(start + tokens)
    found = poisoned(kind, head_dim, 3, count, pages_first=pages_first)
    wanted = copy_of(found)
    keys, values = chunk(tokens, 3, head_dim)
    kernels.write_pages(found, table, start, keys, values)
    reference_pages.write_pages(wanted, table, start, keys, values)
    check_stored(gathered(found, table), gathered(wanted, table))
    token = torch.arange(start, start + tokens, device="cuda")
    inside = torch.zeros(count, PAGE_TOKENS, dtype=torch.bool, device="cuda")
    inside[table.long()[token // PAGE_TOKENS], token % PAGE_TOKENS] = True
    for part in (found.keys, found.values, found.key_scales, found.value_scales):
        if part is not None:
            assert bool((part[:, ~inside].contiguous().view(torch.uint8) == POISON).all())


@pytest.mark.parametrize("kind", ["fp16", "fp8", "q8", "q6", "q4"])
def test_a_pools_other_layers_are_left_alone(kernels: Kernels, kind: str) -> None:
    table, count = scattered(700)
    pages = poisoned(kind, 128, 2, count, pages_first=True)
    kernels.write_pages(pages, table, 0, *chunk(700, 2, 128))
    stores = [pages.keys, pages.values, pages.key_scales, pages.value_scales]
    for part in (part for part in stores if part is not None):
        # A view of the whole pool: layer 0 lies before the layer that was given.
        row, elements = part.shape[3], count * LAYERS * 2 * PAGE_TOKENS * part.shape[3]
        pool = part.as_strided((elements,), (1,), 0).view(count, LAYERS, 2 * PAGE_TOKENS * row)
        assert bool((pool[:, 0].contiguous().view(torch.uint8) == POISON).all())


@BOTH_ORDERS
@EVERY_KIND
@pytest.mark.parametrize("tokens", [1, 255, 256, 257, 3000])
@pytest.mark.parametrize("first", [0, 1, 255, 301])
def test_read(kernels: Kernels, kind: str, head_dim: int, tokens: int, first: int, *, pages_first: bool) -> None:
    table, count = scattered(first + tokens)
    pages = poisoned(kind, head_dim, 3, count, pages_first=pages_first)
    reference_pages.write_pages(pages, table, 0, *chunk(first + tokens, 3, head_dim))
    wanted = reference_pages.cached_rows(pages, table, first, tokens, torch.float16)
    room = torch.full((2, 3, tokens + 5, head_dim), float("nan"), dtype=torch.float16, device="cuda")
    kernels.read_pages(pages, table, first, tokens, keys_out=room[0], values_out=room[1])
    for found, rows in zip(room, wanted, strict=True):
        if pages.kind.quantized:
            error = (found[:, :tokens].float() - rows.float()).abs()
            assert bool((error <= rows.float().abs() * 2**-9 + 1e-4).all())
        else:
            assert torch.equal(found[:, :tokens], rows)
        assert bool(found[:, tokens:].isnan().all())


@pytest.mark.parametrize("kind", ["fp16", "fp8", "q4"])
def test_outputs_of_other_strides(kernels: Kernels, kind: str) -> None:
    table, count = scattered(600)
    pages = poisoned(kind, 64, 4, count, pages_first=False)
    keys, values = chunk(600, 4, 64)
    kernels.write_pages(pages, table, 0, keys, values)
    plain = torch.zeros(2, 4, 600, 64, dtype=torch.float16, device="cuda")
    kernels.read_pages(pages, table, 0, 600, keys_out=plain[0], values_out=plain[1])
    turned = torch.full((601, 9, 64), 7.0, dtype=torch.float16, device="cuda")
    outputs = {"keys_out": turned[:, :4].transpose(0, 1), "values_out": turned[:, 4:8].transpose(0, 1)}
    kernels.read_pages(pages, table, 0, 600, **outputs)
    assert torch.equal(turned[:600, :8].transpose(0, 1), plain.flatten(0, 1))
    assert bool((turned[600] == 7.0).all())
    assert bool((turned[:, 8] == 7.0).all())


@EVERY_KIND
@pytest.mark.parametrize("position", [0, 300])
@pytest.mark.parametrize("factor", [1.0, 0.0, 1e-6, 3000.0])
def test_a_token_has_the_bytes_that_attention_stores(
    kernels: Kernels, kind: str, head_dim: int, position: int, factor: float
) -> None:
    """Of a key that is not turned to its position and not normed, so that both are given the same."""
    table, count = scattered(position + 1)
    pages = poisoned(kind, head_dim, 2, count, pages_first=False)
    if position:
        kernels.write_pages(pages, table, 0, *chunk(position, 2, head_dim))
    stepped = copy_of(pages)
    qkv = (torch.randn(12, head_dim, device="cuda") * factor).half()
    kernels.write_pages(pages, table, position, qkv[8:10].unsqueeze(1), qkv[10:].unsqueeze(1))
    kernels.attention(
        qkv,
        torch.empty(8 * head_dim, dtype=torch.float16, device="cuda"),
        pages=stepped,
        page_table=table,
        position=torch.tensor([position], dtype=torch.int32, device="cuda"),
        turns=torch.zeros(len(table) * PAGE_TOKENS, 0, 2, device="cuda"),
        rules=AttentionRules(0.1),
        scratch=AttentionScratch(8, 2, head_dim, 8, qkv.device),
    ).launch(dependent=False)
    for name in ("keys", "values", "key_scales", "value_scales"):
        assert same_bytes(getattr(pages, name), getattr(stepped, name)), name


@pytest.mark.parametrize("kind", ["fp8", "q8", "q6", "q4"])
def test_extremes(kernels: Kernels, kind: str) -> None:
    """What is read is finite and near what the definition makes of it."""
    table, count = scattered(3)
    pages = poisoned(kind, 128, 1, count, pages_first=False)
    given = torch.tensor([65504.0, 0.0, -1e-7], device="cuda").half().view(1, 3, 1).expand(1, 3, 128).contiguous()
    kernels.write_pages(pages, table, 0, given, given)
    out = torch.full((2, 1, 3, 128), float("nan"), dtype=torch.float16, device="cuda")
    kernels.read_pages(pages, table, 0, 3, keys_out=out[0], values_out=out[1])
    reference_pages.write_pages(pages, table, 0, given, given)
    for found, wanted in zip(out, reference_pages.cached_rows(pages, table, 0, 3, torch.float16), strict=True):
        assert bool(found.isfinite().all())
        assert torch.allclose(found, wanted, rtol=0.01, atol=1e-6)
