"""Pages read and written for a prompt: the definition against `kv_formats`, and what the operations refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from exlchat.ext.attention import AttentionRules, LayerPages
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, decode, encode
from exlchat.ext.library import Library
from exlchat.ext.pages import PageKernels
from tests.ext import reference_attention, reference_pages
from tests.ext.never_called import NeverCalled


def empty_pages(kind: str, count: int, kv_heads: int = 2, head_dim: int = 64) -> LayerPages:
    """Zeros."""
    parts: list[Tensor | None] = []
    for element in (KINDS[kind].key, KINDS[kind].value):
        lead = (kv_heads, count, PAGE_TOKENS)
        parts.append(torch.zeros(*lead, element.row(head_dim), dtype=element.dtype))
        scales = torch.zeros(*lead, element.scales(head_dim), dtype=torch.float16)
        parts.append(scales if element.scaled else None)
    keys, key_scales, values, value_scales = parts
    assert keys is not None
    assert values is not None
    return LayerPages(KINDS[kind], keys, values, key_scales, value_scales)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("start", "tokens"), [(0, 1), (0, 256), (255, 2), (37, 600), (511, 257)])
def test_what_was_written_is_read(kind: str, start: int, tokens: int) -> None:
    pages, table = empty_pages(kind, 5), torch.tensor([3, 0, 4], dtype=torch.int32)
    new = torch.randn(tokens, 4, 64)
    keys, values = new[:, :2].transpose(0, 1), new[:, 2:].transpose(0, 1)
    reference_pages.write_pages(pages, table, start, keys, values)
    out = torch.full((2, 2, tokens + 3, 64), 7.0)
    reference_pages.read_pages(pages, table, start, tokens, keys_out=out[0], values_out=out[1])
    for found, given, element in zip(out, (keys, values), (pages.kind.key, pages.kind.value), strict=True):
        # Products of other shapes round differently, which can change a code by one.
        wanted = decode(*encode(given, element), element)
        assert int(((found[:, :tokens] - wanted).abs() > 1e-5).sum()) <= 0.05 * wanted.numel()
        assert bool((found[:, tokens:] == 7.0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_but_the_new_tokens_is_written(kind: str) -> None:
    pages, table = empty_pages(kind, 4), torch.tensor([2, 0], dtype=torch.int32)
    reference_pages.write_pages(pages, table, 250, *torch.randn(2, 2, 10, 64))
    written = (pages.keys != 0).any(-1).nonzero().tolist()
    places = [(0, row) for row in range(4)] + [(2, row) for row in range(250, 256)]
    assert written == [[head, page, row] for head in (0, 1) for page, row in places]


@pytest.mark.parametrize("kind", ["fp16", "fp8", "q8", "q6", "q4"])
def test_a_token_is_stored_as_attention_stores_it(kind: str) -> None:
    ours, theirs, table = empty_pages(kind, 2), empty_pages(kind, 2), torch.tensor([1, 0], dtype=torch.int32)
    qkv, turns = torch.randn(6, 64).half(), torch.tensor([1.0, 0.0]).expand(512, 32, 2)
    rules = AttentionRules(0.1)
    reference_attention.attention(qkv, pages=theirs, page_table=table, position=256, turns=turns, rules=rules)
    reference_pages.write_pages(ours, table, 256, qkv[2:4].unsqueeze(1), qkv[4:].unsqueeze(1))
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)


def test_a_wanted_dtype() -> None:
    pages, table = empty_pages("q8", 1), torch.zeros(1, dtype=torch.int32)
    reference_pages.write_pages(pages, table, 0, *torch.randn(2, 2, 9, 64).bfloat16())
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        keys, values = reference_pages.cached_rows(pages, table, 2, 5, dtype)
        assert keys.dtype == values.dtype == dtype
        assert keys.shape == (2, 5, 64)
    assert reference_pages.cached_rows(pages, table, 0, 0, torch.float32)[0].shape == (2, 0, 64)


def arguments(kind: str = "q8") -> dict[str, Any]:
    """20 tokens behind 250."""
    plain = torch.zeros(2, 20, 64, dtype=torch.float16)
    return {
        "pages": empty_pages(kind, 3),
        "page_table": torch.tensor([2, 0], dtype=torch.int32),
        "first": 250,
        "tokens": 20,
        "keys": plain,
        "values": plain.clone(),
    }


def wrong(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    given = arguments()
    given[name] = change(given[name])
    return given


@pytest.mark.parametrize("writes", [False, True], ids=["read", "write"])
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (arguments(), "plain_keys is on the cpu"),
        (arguments("fp8"), "plain_keys is on the cpu"),
        (arguments("fp32"), "do not read fp32 heads of 64"),
        (wrong("pages", lambda p: replace(p, key_scales=None)), "key_scales belong to pages of codes"),
        (wrong("pages", lambda p: replace(p, values=p.values[:, :1])), "values is"),
        (wrong("page_table", lambda t: t.long()), "page_table is torch.int64"),
        (wrong("page_table", lambda t: t[:1]), "20 tokens from 250 on are not all in the 1 pages"),
        (wrong("first", lambda _: -1), "20 tokens from -1 on"),
        (wrong("first", lambda _: 493), "20 tokens from 493 on"),
        (wrong("keys", lambda t: t.float()), "is torch.float32"),
        (wrong("values", lambda t: t[:1]), "is torch.float16 (1, 20, 64); it must be torch.float16 (2, 20, 64)"),
        (wrong("keys", lambda t: t[:, :19]), "it must be torch.float16 (2, 20, 64)"),
        (wrong("keys", lambda t: t.mT.contiguous().mT), "elements of a head must be neighbours"),
        (wrong("values", lambda t: torch.zeros(2, 20, 68).half()[..., :64]), "at whole 16 bytes"),
        (wrong("values", lambda t: torch.zeros(4 + 2 * 20 * 64).half()[4:].view(2, 20, 64)), "at whole 16 bytes"),
    ],
)
def test_the_operations_name_what_does_not_fit(given: dict[str, Any], words: str, writes: bool) -> None:
    kernels = PageKernels(cast(Library, NeverCalled()))
    pages, table, first, tokens, keys, values = given.values()
    if writes and keys.shape[1] != tokens:
        # How many tokens there are is told by the keys.
        words = f"values is torch.float16 (2, 20, 64); it must be torch.float16 (2, {keys.shape[1]}, 64)"
    if writes:
        call = partial(kernels.write_pages, pages, table, first, keys, values)
    else:
        call = partial(kernels.read_pages, pages, table, first, tokens, keys_out=keys, values_out=values)
    with pytest.raises(ValueError) as error:
        call()
    assert words in str(error.value)


def test_outputs_may_have_room_behind() -> None:
    given = arguments()
    keys, values = torch.zeros(2, 2, 50, 64, dtype=torch.float16)
    kernels = PageKernels(cast(Library, NeverCalled()))
    with pytest.raises(ValueError, match="on the cpu"):
        kernels.read_pages(given["pages"], given["page_table"], 3, 20, keys_out=keys, values_out=values)
