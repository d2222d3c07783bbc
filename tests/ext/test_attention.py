"""Decode attention without a GPU: its definition against torch's own attention, and what the operation refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.nn import functional
from transformers.models.glm4.modeling_glm4 import apply_rotary_pos_emb
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from exlchat.ext.attention import Attention, AttentionRules, AttentionScratch, LayerPages, best_splits
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, decode, encode
from exlchat.ext.library import Library
from tests.ext import reference_attention, reference_pages
from tests.ext.never_called import NeverCalled


def arguments(kind: str = "fp16", head_dim: int = 64, cached: int = 300) -> dict[str, Any]:
    """4 heads over 2 behind random tokens."""
    count = cached // PAGE_TOKENS + 1
    rows = torch.randn(2, 2, count, PAGE_TOKENS, head_dim).half()
    keys, key_scales = encode(rows[0], KINDS[kind].key)
    values, value_scales = encode(rows[1], KINDS[kind].value)
    pages = LayerPages(KINDS[kind], keys, values, key_scales, value_scales)
    return {
        "qkv": torch.randn(8, head_dim).half(),
        "out": torch.zeros(4 * head_dim, dtype=torch.float16),
        "pages": pages,
        "page_table": torch.randperm(count).to(torch.int32),
        "position": torch.tensor([cached], dtype=torch.int32),
        "turns": torch.randn(count * PAGE_TOKENS, head_dim // 2, 2),
        "rules": AttentionRules(head_dim**-0.5),
        "scratch": AttentionScratch(4, 2, head_dim, 8, torch.device("cpu")),
    }


@pytest.mark.parametrize("kind", ["fp16", "fp8", "q8", "q6", "q4"])
@pytest.mark.parametrize("window", [0, 100])
def test_the_definition_is_torchs_attention(kind: str, window: int) -> None:
    given = arguments(kind)
    pages, table = given["pages"], given["page_table"]
    given["turns"] = torch.tensor([1.0, 0.0]).expand(512, 32, 2)
    rules = replace(given["rules"], window=window)
    before = [
        decode(part, scales, element)[:, table.long()].flatten(1, 2)[:, :300]
        for part, scales, element in (
            (pages.keys, pages.key_scales, pages.kind.key),
            (pages.values, pages.value_scales, pages.kind.value),
        )
    ]
    found = reference_attention.attention(
        given["qkv"], pages=pages, page_table=table, position=300, turns=given["turns"], rules=rules
    )
    queries, keys, values = (part.float() for part in given["qkv"].split((4, 2, 2)))
    all_keys = torch.cat((before[0], keys.unsqueeze(1)), 1)[:, -window if window else 0 :]
    all_values = torch.cat((before[1], values.unsqueeze(1)), 1)[:, -window if window else 0 :]
    wanted = functional.scaled_dot_product_attention(
        queries.unsqueeze(1)[None], all_keys[None], all_values[None], enable_gqa=True
    )
    assert torch.allclose(found.float(), wanted[0, :, 0], atol=2e-5)


def test_interleaved_and_partial_turns_are_those_of_glm() -> None:
    heads, angles = torch.randn(1, 4, 5, 16), torch.rand(1, 5, 4) * 6
    both = torch.cat((angles, angles), dim=-1)
    wanted, _ = apply_rotary_pos_emb(heads, heads, both.cos(), both.sin())
    turns = torch.stack((angles.cos(), angles.sin()), dim=-1)
    assert torch.allclose(reference_attention.turned(heads, turns, interleaved=True).float(), wanted, atol=1e-5)


def test_sinks_are_those_of_gpt_oss() -> None:
    given = arguments()
    pages, table = given["pages"], given["page_table"]
    given["turns"] = torch.tensor([1.0, 0.0]).expand(512, 32, 2)
    old_keys, old_values = reference_pages.cached_rows(pages, table, 0, 300, torch.float32)
    sinks = torch.tensor([-2.0, 0.0, 3.0, 9.0])
    queries, keys, values = (part.float().unsqueeze(1) for part in given["qkv"].split((4, 2, 2)))
    module = SimpleNamespace(num_key_value_groups=2, sinks=sinks, training=False)
    all_keys, all_values = torch.cat((old_keys, keys), 1), torch.cat((old_values, values), 1)
    wanted, _ = eager_attention_forward(
        cast(torch.nn.Module, module), queries[None], all_keys[None], all_values[None], None, 64**-0.5
    )
    found = reference_attention.attention(
        given["qkv"],
        pages=pages,
        page_table=table,
        position=300,
        turns=given["turns"],
        rules=replace(given["rules"], sinks=sinks),
    )
    assert torch.allclose(found.float(), wanted[0, 0], atol=2e-5)


def test_the_new_token_is_stored_where_the_table_says() -> None:
    given = arguments(cached=257)
    pages, table = given["pages"], given["page_table"]
    before = pages.values.clone()
    reference_attention.attention(
        given["qkv"], pages=pages, page_table=table, position=257, turns=given["turns"], rules=given["rules"]
    )
    changed = (pages.values != before).any(-1)
    assert changed.nonzero().tolist() == [[head, int(table[1]), 1] for head in (0, 1)]
    assert torch.equal(pages.values[:, int(table[1]), 1], given["qkv"][-2:])


def wrong(name: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    given = arguments("q8")
    given[name] = change(given[name])
    return given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (arguments(), "qkv is on the cpu"),
        (arguments("q4"), "qkv is on the cpu"),
        (arguments("fp8"), "qkv is on the cpu"),
        (wrong("qkv", lambda t: t[:7]), "qkv has 7 rows"),
        (wrong("qkv", lambda t: t.float()), "qkv is torch.float32"),
        (wrong("qkv", lambda t: t[:, :32].contiguous()), "qkv is torch.float16 (8, 32)"),
        (wrong("out", lambda t: t[1:]), "out is"),
        (wrong("position", lambda t: t.long()), "position is torch.int64"),
        (wrong("page_table", lambda t: t.long()), "page_table is torch.int64"),
        (wrong("turns", lambda t: t[:100]), "turns is (100, 32, 2); it must have 512 positions"),
        (wrong("scratch", lambda _: AttentionScratch(4, 2, 128, 8, torch.device("cpu"))), "scratch is"),
        (wrong("pages", lambda p: replace(p, values=p.values[:, :1])), "values is"),
        (wrong("pages", lambda p: replace(p, key_scales=None)), "key_scales belong to pages of codes"),
        (wrong("pages", lambda p: replace(p, value_scales=p.value_scales.float())), "value_scales is torch.float32"),
        (wrong("pages", lambda p: replace(p, kind=KINDS["fp8"])), "these are fp8"),
        (wrong("pages", lambda p: replace(p, kind=KINDS["fp32"])), "the kernels do not read fp32 heads of 16"),
        (wrong("rules", lambda r: replace(r, key_norm=torch.ones(64))), "key_norm is torch.float32"),
        (wrong("rules", lambda r: replace(r, sinks=torch.ones(2))), "sinks is torch.float32 (2,)"),
        (wrong("rules", lambda r: replace(r, sinks=torch.ones(4).half())), "sinks is torch.float16"),
        (wrong("turns", lambda t: t.repeat(1, 1, 2)), "turns is torch.float32 (512, 32, 4)"),
    ],
)
def test_the_operation_names_the_tensor_that_does_not_fit(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as error:
        Attention(cast(Library, NeverCalled())).attention(**given)
    assert words in str(error.value)


def test_heads_that_the_kernels_do_not_read() -> None:
    given = arguments(head_dim=48)
    with pytest.raises(ValueError, match="do not read fp16 heads of 48"):
        Attention(cast(Library, NeverCalled())).attention(**given)


def test_more_rows_than_the_kernels_count() -> None:
    given = arguments()
    far = torch.empty(0, dtype=torch.float16, device="meta").as_strided((2, 2, 256, 64), (2**37, 256 * 64, 64, 1))
    given["pages"] = replace(given["pages"], keys=far, values=far)
    with pytest.raises(ValueError, match="keys reach over 2147484160 rows"):
        Attention(cast(Library, NeverCalled())).attention(**given)


def test_scratch_and_splits() -> None:
    with pytest.raises(ValueError, match="1 to 64"):
        AttentionScratch(4, 2, 64, 65, torch.device("cpu"))
    assert AttentionScratch(36, 2, 64, 3, torch.device("cpu")).partial.shape == (1, 6, 3, 8, 66)
    assert AttentionScratch(36, 2, 64, 3, torch.device("cpu"), rows=4).tickets.shape == (4, 6)


def test_splits_fill_an_h200() -> None:
    assert best_splits(32, 8, 132) == 16
    assert best_splits(32, 32, 16) == 1
    assert best_splits(16, 1, 132) == 64
