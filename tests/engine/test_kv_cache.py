"""Caches of every kind: what later calls see, growth, and how much of the model's logits they keep."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
import torch
from safetensors.torch import load_file

from exlchat.config.schema import Settings
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.rows import SeenRows
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.kv_formats import CODES4, KINDS, Element, decode, encode
from exlchat.llm.info import ModelError
from exlchat.llm.limits import KV_CACHES
from tests.engine.decoding import logits_in_steps, open_transformer
from tests.ext.reference_pages import cached_rows
from tests.shared_data import DATA, needs_shared

CPU = torch.device("cpu")


def spec(head_dim: int = 64, layers: int = 2) -> ModelSpec:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 4 * head_dim,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "vocab_size": 64,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    }
    return read_spec(config, "config.json")


def elements(kind: str) -> tuple[Element, Element]:
    return KINDS[kind].key, KINDS[kind].value


def same(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """But for a vector here and there: products of other shapes round differently, which can change a code by one."""
    return int(((found - wanted).abs() > 1e-5).sum()) <= 0.05 * wanted.numel()


def stored(part: torch.Tensor, element: Element) -> torch.Tensor:
    return decode(*encode(part, element), element)


def table_of(sequence: KVSequence, layer: int) -> torch.Tensor:
    """int32 `[pages]` of one layer."""
    cache = sequence.cache
    return cache.tables.of(cache.memory.is_narrow(layer))[sequence.row]


def rows_of(cache: KVSequence, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as they are stored, `[kv_heads, tokens, head_dim]`."""
    return cached_rows(cache.cache.layer(layer), table_of(cache, layer), 0, len(cache), torch.float32)


def compute(cache: KVSequence, new: torch.Tensor, ids: Sequence[int]) -> list[list[SeenRows]]:
    """The next positions in both layers; what was seen in each."""
    start = len(cache)
    cache.reserve(start + len(ids))
    seen = []
    for layer in (0, 1):
        parts = cache.append(layer, start, new)
        seen.append([SeenRows(part.tokens, part.keys.clone(), part.values.clone()) for part in parts])
    cache.extend(ids)
    return seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_sees_its_own_page_as_it_was_and_older_ones_as_they_are_stored(kind: str) -> None:
    whole = torch.randn(2, 2, 700, 64)
    rounded = torch.stack([stored(part, element) for part, element in zip(whole, elements(kind), strict=True)])
    cache = KVSequence(KVCache(spec(), kind, torch.float32, CPU, 4096))
    covered = 0
    for start, end in ((0, 300), (300, 301), (301, 700)):
        for layer in compute(cache, whole[:, :, start:end], range(start, end)):
            for part in layer:
                last = start + part.tokens.stop
                page = (last - 1) // 256 * 256 if KINDS[kind].quantized else last
                assert same(torch.stack((part.keys, part.values))[:, :, :page], rounded[:, :, :page])
                assert torch.equal(torch.stack((part.keys, part.values))[:, :, page:], whole[:, :, page:last])
                covered += part.tokens.stop - part.tokens.start
        for layer in (0, 1):
            assert same(torch.stack(rows_of(cache, layer)), rounded[:, :, :end])
    assert covered == 2 * 700
    assert cache.capacity == 768
    pages = cache.cache.layer(1)
    assert pages.keys.shape[:3] == (2, 16, 256)
    assert pages.head_dim == 64
    assert table_of(cache, 1).tolist()[:3] == [0, 1, 2]


@pytest.mark.parametrize("reached", ["by the host", "by the device"])
def test_what_is_not_known_exactly_is_seen_as_it_is_stored(reached: str) -> None:
    """The device stores tokens itself; a page that was copied has other rows behind."""
    whole = torch.randn(2, 2, 60, 64)
    cache = KVSequence(KVCache(spec(), "q4", torch.float32, CPU, 4096))
    compute(cache, whole[:, :, :20], range(20))
    if reached == "by the device":
        cache.reserve(30)
        cache.extend(range(20, 30))
    else:
        compute(cache, whole[:, :, 20:30], range(20, 30))
    (part,), _ = compute(cache, whole[:, :, 30:40], range(30, 40))
    exact = [torch.equal(part.keys[:, row], whole[0, :, row]) for row in (5, 35)]
    assert exact == [reached == "by the host", True]
    # Back to the middle of the page: what was before is still known.
    assert cache.begin([*range(10), 77]) == 10
    (part,), _ = compute(cache, whole[:, :, 40:50], range(40, 50))
    assert torch.equal(part.keys[:, 5], whole[0, :, 5]) == (reached == "by the host")
    # Another sequence, and back: nothing is.
    cache.begin([99])
    compute(cache, whole[:, :, :1], [99])
    assert cache.begin(range(10)) == 10
    (part,), _ = compute(cache, whole[:, :, 50:60], range(50, 60))
    assert not torch.equal(part.keys[:, 5], whole[0, :, 5])
    assert torch.equal(part.keys[:, 15], whole[0, :, 55])


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_what_the_format_says(kind: str) -> None:
    """formats/kv-cache.md: elements of key and value, and a float16 scale for 32 of them."""
    elements = 2 * 2 * 64  # layers, key-value heads, head
    wanted = {
        "fp32": elements * 8,
        "fp16": elements * 4,
        "fp8": elements * 2,
        "q8": elements * (2 + 4 / 32),
        "q6": elements * (1.5 + 4 / 32),
        "q4": elements * (1 + 4 / 32),
    }[kind]
    cache = KVCache(spec(), kind, torch.float32, CPU, 1024, tokens=5_000)
    assert cache.bytes_per_token == wanted
    assert cache.memory.bytes == cache.bytes == 19 * 256 * wanted


def test_a_chunk_that_came_to_nothing_leaves_nothing_exact() -> None:
    """It may have overwritten what was known of the page before."""
    whole = torch.randn(2, 2, 300, 64)
    cache = KVSequence(KVCache(spec(), "q4", torch.float32, CPU, 4096))
    compute(cache, whole[:, :, :250], range(250))
    cache.reserve(300)
    for layer in (0, 1):
        list(cache.append(layer, 250, whole[:, :, 250:]))
    assert cache.begin(range(250)) == 250
    (part,), _ = compute(cache, whole[:, :, 250:255], range(250, 255))
    assert torch.equal(part.keys[:, :250], rows_of(cache, 0)[0][:, :250])


def test_a_page_that_is_shared_to_its_middle_is_copied() -> None:
    cache = KVSequence(KVCache(spec(), "q4", torch.float32, CPU, 4096, tokens=8192))
    first, second = torch.randn(2, 2, 20, 64), torch.randn(2, 2, 10, 64)
    compute(cache, first, range(20))
    assert cache.begin([*range(10), 77, 78]) == 10
    compute(cache, second, [77, 78, *range(100, 108)])
    assert same(rows_of(cache, 1)[0], stored(torch.cat((first[0, :, :10], second[0]), 1), CODES4))
    assert cache.begin(range(20)) == 20
    assert same(rows_of(cache, 1)[0], stored(first[0], CODES4))


@pytest.mark.parametrize(("length", "free"), [(699, 13), (513, 13), (512, 14), (511, 14), (256, 15), (1, 15), (0, 16)])
def test_what_was_cut_off_is_found_no_more(length: int, free: int) -> None:
    cache, ids = KVSequence(KVCache(spec(), "q4", torch.float32, CPU, 4096)), list(range(700))
    compute(cache, torch.randn(2, 2, 700, 64), ids)
    cache.reserve(1100)
    assert cache.cut(length) == length
    assert len(cache) == cache.cache.known(ids) == length
    assert cache.ids == ids[:length]
    assert cache.cache.pool.free == free
    assert cache.capacity == (16 - free) * 256
    # What is said instead is found.
    cache.reserve(1000)
    others = [*ids[:length], *range(2000, 3000 - length)]
    cache.extend(others[length:])
    assert cache.cache.known(others) == 1000
    assert cache.cache.known(ids) == length
    cache.close()
    assert cache.cache.known(others) == 1000
    assert cache.cache.pool.free == 12


@pytest.mark.parametrize("kind", ["fp16", "q4"])
def test_behind_a_cut_it_goes_on_as_if_nothing_had_been_there(kind: str) -> None:
    whole, others = torch.randn(2, 2, 600, 64), torch.randn(2, 2, 40, 64)
    cut, never = (KVSequence(KVCache(spec(), kind, torch.float32, CPU, 4096)) for _ in range(2))
    # In like parts: how many vectors are turned at once can show in the last bit of a sum, and so in a code.
    for cache in (cut, never):
        compute(cache, whole[:, :, :530], range(530))
    compute(cut, whole[:, :, 530:], range(530, 600))
    cut.cut(530)
    found, wanted = (compute(cache, others, range(900, 940)) for cache in (cut, never))
    for layer in (0, 1):
        assert torch.equal(torch.stack(rows_of(cut, layer)), torch.stack(rows_of(never, layer)))
        ((one,), (other,)) = found[layer], wanted[layer]
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)


def test_a_page_that_was_not_the_last_is_seen_as_it_is_stored_behind_a_cut() -> None:
    whole = torch.randn(2, 2, 600, 64)
    cache = KVSequence(KVCache(spec(), "q4", torch.float32, CPU, 4096))
    compute(cache, whole, range(600))
    cache.cut(270)
    (part,), _ = compute(cache, whole[:, :, 270:280], range(270, 280))
    assert torch.equal(part.keys[:, :270], rows_of(cache, 0)[0][:, :270])
    assert torch.equal(part.keys[:, 270:], whole[0, :, 270:280])


def test_a_chunk_that_came_to_nothing_leaves_nothing_exact_behind_a_cut() -> None:
    whole = torch.randn(2, 2, 300, 64)
    cache = KVSequence(KVCache(spec(), "q4", torch.float32, CPU, 4096))
    compute(cache, whole[:, :, :250], range(250))
    cache.reserve(300)
    for layer in (0, 1):
        list(cache.append(layer, 250, whole[:, :, 250:]))
    cache.cut(249)
    (part,), _ = compute(cache, whole[:, :, 249:255], range(249, 255))
    assert torch.equal(part.keys[:, :249], rows_of(cache, 0)[0][:, :249])


@pytest.mark.parametrize("length", [-1, 8])
def test_a_sequence_is_not_cut_to_more_than_it_is(length: int) -> None:
    cache = KVSequence(KVCache(spec(), "fp16", torch.float32, CPU, 4096))
    compute(cache, torch.randn(2, 2, 7, 64), range(7))
    with pytest.raises(ValueError, match="a sequence of 7 tokens cannot be cut to"):
        cache.cut(length)
    assert len(cache) == 7


def test_heads_that_have_no_groups_of_32() -> None:
    with pytest.raises(ModelError, match="q8 needs heads of a multiple of 32, and this model's have 80; use fp16"):
        KVCache(spec(80), "q8", torch.float32, CPU, 100)
    assert KVCache(spec(80), "fp16", torch.float32, CPU, 100).bytes_per_token == 2 * 2 * 2 * 80 * 2


def test_the_choices_of_the_program_are_the_kinds_of_the_engine() -> None:
    assert ("auto", *KINDS) == KV_CACHES
    for choice in KV_CACHES:
        Settings(kv_cache=choice)


@functools.cache
def _truth(row: int) -> torch.Tensor:
    """Log-probabilities of the FP16 model, float32 `[1024, vocab]`."""
    return open_transformer(DATA / "tiny-llama").forward(_ids(row), last_only=False).log_softmax(-1)


def _ids(row: int) -> torch.Tensor:
    return next(iter(load_file(DATA / "tiny-llama-eval-ids.safetensors").values())).view(-1, 1024)[row]


@needs_shared
@pytest.mark.xdist_group("divergence")  # the FP16 model is computed once
@pytest.mark.parametrize(("kind", "most"), [("fp8", 0.09), ("q8", 0.0693), ("q6", 0.0718), ("q4", 0.0808)])
@pytest.mark.sweep(1)
def test_divergence_is_no_larger_than_the_known_formats(kind: str, most: float) -> None:
    """../shared/README.md: KL to the FP16 model on 8 rows, 4.0 bpw weights, 32 tokens at a time; half a last digit.

    Here 128 at a time, which is quicker; the page that is being written is exact in ours however it is fed.
    """
    transformer = open_transformer(DATA / "tiny-llama-exl2-4.0bpw")
    divergences = []
    for row in range(8):
        found = logits_in_steps(transformer, _ids(row).tolist(), [128] * 8, kind).log_softmax(-1)
        divergences.append((_truth(row).exp() * (_truth(row) - found)).sum(-1).mean())
    assert float(torch.stack(divergences).mean()) < most + 5e-5
