"""Layers that see a window only: what they compute, and that only their window's pages are kept."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from exlchat.engine import Finished, GenerationRequest, LocalEngine, load
from exlchat.engine.cards.room import Room
from exlchat.engine.kv.budget import CacheWishes, plan_cache
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.pool import Page, PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.kv.sizes import cache_bytes, window_slots
from exlchat.engine.kv.windows import WindowSlots
from exlchat.ext.kv_formats import KINDS
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.retired import retired
from tests.engine.test_kv_cache import CPU, spec
from tests.random_models import edit_json, save_tokenizer

WINDOW = 300


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MistralForCausalLM]:
    path = tmp_path_factory.mktemp("mistral")
    config = MistralConfig(
        vocab_size=384,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        sliding_window=WINDOW,
        initializer_range=0.2,
        bos_token_id=0,
        eos_token_id=None,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = MistralForCausalLM(config).eval()
    model.save_pretrained(path)
    save_tokenizer(path)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path, model


def ids(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(384), k=count)


@pytest.mark.parametrize("steps", [[1000], [100] * 10, [600, *[1] * 60, 340], [1] * 40 + [960]])
def test_logits_are_those_of_transformers(mistral: tuple[Path, MistralForCausalLM], steps: list[int]) -> None:
    path, model = mistral
    tokens = ids(1, 1000)
    with torch.inference_mode():
        wanted = model(torch.tensor([tokens])).logits[0]
    assert relative_error(logits_in_steps(open_transformer(path), tokens, steps), wanted) < 1e-4


def finish(engine: LocalEngine, prompt: list[int], new_tokens: int = 4) -> Finished:
    *_, last = engine.generate(GenerationRequest(prompt, max_new_tokens=new_tokens))
    assert isinstance(last, Finished)
    return last


def test_prefixes_are_found_where_their_window_is(mistral: tuple[Path, MistralForCausalLM]) -> None:
    def open_engine() -> LocalEngine:
        return load(mistral[0], device="cpu", kv_cache="fp32", max_seq_len=4096, prefill_chunk=256)

    engine, prompt = open_engine(), ids(1, 1500)
    answer = finish(engine, prompt, 30)
    longer = [*prompt, *answer.token_ids, *ids(2, 20)]
    assert finish(engine, longer).stats.cached_tokens == 1529
    # Any beginning whose window still has memory is as good, to the token.
    edited = [*prompt[:1400], *ids(3, 50)]
    branch = finish(engine, edited, 30)
    assert branch.stats.cached_tokens == 1400
    assert branch.token_ids == finish(open_engine(), edited, 30).token_ids


def test_a_prefix_whose_window_is_gone_is_computed_again(mistral: tuple[Path, MistralForCausalLM]) -> None:
    def open_engine() -> LocalEngine:
        return load(
            mistral[0], device="cpu", kv_cache="fp32", max_seq_len=4096, cache_tokens=16_384, prefill_chunk=2048
        )

    engine, prompt = open_engine(), ids(1, 1500)
    finish(engine, prompt)
    slots = engine._parts.cache.windows
    assert slots is not None
    assert slots.size < engine._parts.cache.pool.size
    for seed in range(2, 11):
        finish(engine, ids(seed, 1500), 1)
    # Its pages are known, but not in the layers with a window.
    assert engine._parts.cache.pool.find(prompt, 1499).tokens == 1499
    again = finish(engine, prompt, 30)
    assert again.stats.cached_tokens == 0
    assert again.token_ids == finish(open_engine(), prompt, 30).token_ids


def test_a_long_answer_keeps_only_its_window(mistral: tuple[Path, MistralForCausalLM]) -> None:
    engine = load(mistral[0], device="cpu", kv_cache="fp32", max_seq_len=4096, cache_tokens=4096, prefill_chunk=256)
    finish(engine, ids(1, 1000), 900)
    sequence = retired(engine._parts.cache)
    assert len(sequence) == 1899
    held = sequence._in_window
    # At the last border, 1792, the next token saw 1493 and on.
    assert [sequence.pages.index(page) for page in held] == [5, 6, 7]


def test_what_a_cut_leaves_has_its_window(mistral: tuple[Path, MistralForCausalLM]) -> None:
    """A few tokens back everything is there; where a window has no memory any more, less stays than was asked for."""
    transformer, tokens = open_transformer(mistral[0]), ids(1, 1900)
    wanted = transformer.forward(torch.tensor(tokens), last_only=False)
    cache = KVSequence(KVCache(transformer.spec, "fp32", torch.float32, CPU, 4096))

    def feed(end: int) -> torch.Tensor:
        start = len(cache)
        cache.reserve(end)
        logits = transformer.forward(torch.tensor(tokens[start:end]), cache, start=start)
        cache.extend(tokens[start:end])
        return logits[-1]

    for end in range(250, 1900, 250):
        feed(end)
    assert cache.cut(1745) == len(cache) == 1745
    assert relative_error(feed(1800), wanted[1799]) < 1e-4
    slots = cache.cache.windows
    assert slots is not None
    del slots._slots[cache.pages[4]]
    assert cache.cut(1400) == len(cache) == 1024
    assert relative_error(feed(1500), wanted[1499]) < 1e-4


def test_memory_is_that_of_the_window() -> None:
    half = dataclasses.replace(spec(64, layers=4), windows=(WINDOW, 0, WINDOW, 0), max_position_embeddings=65_536)
    kind, layer = KINDS["q4"], 2 * KINDS["q4"].token_bytes(64)
    cache = KVCache(half, "q4", torch.float32, CPU, 65_536)
    each = 2 + 8 + 2  # pages of the window, of a chunk of a prompt, and what they touch
    assert cache.bytes == cache.memory.bytes == 2 * layer * (65_536 + each * 256)
    all_of_them = dataclasses.replace(half, windows=(WINDOW,) * 4)
    assert window_slots(all_of_them, 256, 256) == each
    assert cache_bytes(all_of_them, kind, 256, each) == 4 * layer * each * 256
    plan = plan_cache("here", all_of_them, kind, CacheWishes(context=65_536), Room((4 * layer * each * 256,)))
    assert plan.context == 65_536


def test_slots_of_a_window_go_to_who_holds_them() -> None:
    slots = WindowSlots(3)
    pages = [Page(index, listed=True) for index in range(5)]
    slots.hold(pages[:2])
    slots.hold([pages[2]])
    with pytest.raises(PoolFullError):
        slots.hold([pages[0], pages[3]])
    slots.release([pages[1]])
    slots.hold([pages[3]])
    assert slots.slot(pages[1]) is None
    assert {slots.slot(pages[index]) for index in (0, 2, 3)} == {0, 1, 2}
    # A page that is forgotten goes before one that may be wanted again.
    slots.release([pages[0], pages[2]])
    pages[2].listed = False
    slots.hold([pages[4]])
    assert slots.slot(pages[0]) is not None
    assert slots.slot(pages[2]) is None


def test_room_for_a_copied_page_is_not_taken_from_its_own_window(mistral: tuple[Path, MistralForCausalLM]) -> None:
    """All memory of the windows is in use, and what was held longest ago is what the next token sees."""

    def open_engine() -> LocalEngine:
        return load(mistral[0], device="cpu", kv_cache="fp32", max_seq_len=4096, cache_tokens=4096, prefill_chunk=2048)

    engine, first = open_engine(), ids(1, 1100)
    finish(engine, first, 1)
    finish(engine, ids(2, 2040), 200)
    cut = [*first[:1050], *ids(3, 20)]
    cache = engine._parts.cache
    assert cache.windows is not None
    there = [cache.windows.slot(page) is not None for page in cache.pool.find(first, 1099).pages]
    assert there == [False, False, True, True]
    again = finish(engine, cut, 20)
    assert again.stats.cached_tokens == 1050
    assert again.token_ids == finish(open_engine(), cut, 20).token_ids
    fresh, used = open_engine(), engine._parts.scheduler._maker.reader._last[-1].logits
    finish(fresh, cut, 1)
    wanted = fresh._parts.scheduler._maker.reader._last[-1].logits
    assert float((used - wanted).norm() / wanted.norm()) < 1e-5
