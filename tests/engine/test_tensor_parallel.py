"""Every layer over several cards, which are logical ones here, from loading to answers."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, load
from exlchat.engine.cards.room import PartBytes, SharedRoom
from exlchat.engine.formats.inventory import part_bytes
from exlchat.engine.kv.archive import page_layout
from exlchat.engine.kv.budget import CacheWishes, bytes_of_layers, plan_cache
from exlchat.engine.kv.tensors import make_store
from exlchat.engine.layers.linear import Linear
from exlchat.engine.parallel.cut import bytes_of_cards, split_model
from exlchat.engine.parallel.transformer import ParallelTransformer
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.cards import CardWishes
from tests.engine.decoding import open_transformer, relative_error
from tests.engine.test_kv_cache import spec
from tests.engine.test_layer_split import handed_on
from tests.engine.test_parallel_model import cut, open_packed, written
from tests.random_models import save_random_llama

IDS = torch.randint(384, (80,), generator=torch.Generator().manual_seed(3)).tolist()
LAYERS = 3
HEADS: dict[str, Any] = {"num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 128, "head_dim": 32}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_random_llama(path, num_hidden_layers=LAYERS, initializer_range=0.08, **HEADS)
    return path


def answer(engine: LocalEngine, ids: list[int]) -> Finished:
    *_, end = engine.generate(GenerationRequest(ids, max_new_tokens=40))
    assert isinstance(end, Finished)
    return end


@pytest.mark.parametrize("cards", [2, 3, 4])
@pytest.mark.parametrize("kv_cache", ["fp32", "q8"])
def test_answers_are_those_of_one_card(cards: int, kv_cache: str, llama: Path, tmp_path: Path) -> None:
    one = load(llama, device="cpu", kv_cache=kv_cache, max_seq_len=512)
    wishes = CardWishes(tensor_parallel=cards)
    several = load(llama, device="cpu", kv_cache=kv_cache, max_seq_len=512, cards=wishes)
    assert several.memory_report().together
    assert relative_error(several.logits(IDS), one.logits(IDS)) < 1e-6
    for ids in (IDS, [*IDS[:60], *IDS, *IDS, *IDS]):
        assert answer(several, ids).token_ids == answer(one, ids).token_ids
    assert several.cached_tokens(IDS) == one.cached_tokens(IDS) > 0


def test_pages_on_disk_are_for_the_same_cards_alone(llama: Path, tmp_path: Path) -> None:
    """What a layer gives is a sum of as many parts as there are cards."""

    def root(cards: int) -> bytes:
        wishes = CardWishes(tensor_parallel=cards)
        engine = load(llama, device="cpu", kv_cache="fp16", cards=wishes, page_folder=tmp_path, page_bytes=2**28)
        found = engine._parts.cache.pool.root
        engine.close()
        return found

    assert root(2) == root(2)
    assert len({root(1), root(2), root(4)}) == 3


@pytest.mark.parametrize("kind", ["fp16", "q4"])
def test_pages_of_heads_on_cards_are_those_of_all(kind: str) -> None:
    cpu, model = torch.device("cpu"), replace(spec(64), num_layers=2, windows=(0, 0), num_kv_heads=5)
    splits: list[tuple[int, ...]] = [(), (3, 2), (1, 1, 3)]
    stores = [make_store(model, KINDS[kind], [(cpu, 2)] * max(len(heads), 1), 3, kv_heads=heads) for heads in splits]
    assert all(page_layout(store) == page_layout(stores[0]) for store in stores)
    assert len(list(handed_on(stores))) == 3
    parts = [stores[1].layer(1, card).keys for card in range(2)]
    assert torch.equal(torch.cat(parts)[:, 1, :200], stores[0].layer(1).keys[:, 1, :200])


@pytest.mark.parametrize(
    ("wishes", "line"),
    [
        (CardWishes(tensor_parallel=5), r"^--tensor-parallel 5: this model has 4 key-value heads, and each card needs"),
        (CardWishes(tensor_parallel=2, split=(1, 2)), r"^--tensor-parallel 2 puts a part of every layer on each "),
        (CardWishes(tensor_parallel=2, host_layers=1), r"^--tensor-parallel 2 puts a part of every layer on each "),
    ],
)
def test_what_cannot_be_is_one_line(wishes: CardWishes, line: str, llama: Path) -> None:
    with pytest.raises(ModelError, match=line):
        load(llama, device="cpu", cards=wishes)


@pytest.mark.parametrize("kind", ["exl2-8-5-4", "exl2-6-5-3-2", "gptq-act-order", "awq"])
def test_what_cards_hold_is_within_what_was_reckoned(kind: str, tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 4096, "num_attention_heads": 8, "num_key_value_heads": 4}
    path = written(kind, tmp_path, **changes)
    checkpoint, whole = Checkpoint(path), open_packed(path)
    weights = part_bytes(checkpoint, whole.spec.num_layers, torch.float32, stay_quantized=True)
    # What fills up sections counts for much in so small a model.
    filled = whole.bytes / weights.all
    for speeds in ([1.0, 1.0], [3.0, 1.0], [1.0, 1.0, 1.0]):
        split = split_model(whole.spec, speeds)
        ranks = cut(whole, speeds).ranks
        for rank, reckoned in zip(ranks, bytes_of_cards(whole.spec, split, weights), strict=True):
            assert rank.bytes <= reckoned * filled


def test_a_part_of_a_head_of_floats_does_not_hold_the_whole(tmp_path: Path) -> None:
    save_random_llama(tmp_path, vocab_size=4096, tie_word_embeddings=False, **HEADS)
    transformer = open_transformer(tmp_path)
    whole = transformer.embedding.nbytes
    for rank in cut(transformer, [1.0, 1.0]).ranks:
        assert isinstance(rank.head, Linear)
        assert rank.head.weight.untyped_storage().nbytes() <= 0.6 * whole


def test_a_head_that_is_the_embedding_is_reckoned_with_where_it_lies_alone() -> None:
    model = replace(spec(64), num_kv_heads=4, num_heads=8)
    split = split_model(model, [1.0, 1.0])
    first, second = bytes_of_cards(model, split, PartBytes(1000, (0,) * model.num_layers, 0, again=1000))
    assert second - first == pytest.approx(500, abs=20)


def test_no_card_is_promised_more_than_it_has() -> None:
    chance = random.Random(5)
    model = replace(spec(64), num_layers=32, windows=(0,) * 32, num_kv_heads=8, num_heads=32)
    tight = 0
    for _ in range(200):
        cards = chance.randint(2, 4)
        split = split_model(model, [chance.choice((1.0, 1.0, 2.0)) for _ in range(cards)])
        weights = PartBytes(chance.randint(0, 2**30), (chance.randint(2**26, 2**28),) * 32, chance.randint(0, 2**30))
        held = bytes_of_cards(model, split, weights)
        room = SharedRoom(tuple(size + chance.randint(2**28, 2**34) for size in held), held, split.kv_heads)
        wishes = CacheWishes(tokens=None if chance.random() < 0.7 else chance.randint(256, 200_000))
        try:
            plan = plan_cache("x", model, KINDS["fp16"], wishes, room)
        except ModelError:
            continue
        cache = sum(bytes_of_layers(model, KINDS["fp16"], plan))
        for size, free, heads in zip(held, room.cards, split.kv_heads, strict=True):
            assert size + cache * heads / 8 <= free
        tight += plan.context < 32768
    assert tight > 5


def test_a_card_that_fails_in_an_answer_is_one_line_and_the_next_answer_comes(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(llama, device="cpu", cards=CardWishes(tensor_parallel=2))
    wanted, calls, really = answer(model, IDS).token_ids, iter(range(10**6)), ParallelTransformer._exchange

    def fail(self: ParallelTransformer, streams: Any) -> None:
        if next(calls) == 20:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be ...")
        really(self, streams)

    monkeypatch.setattr(ParallelTransformer, "_exchange", fail)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ModelError, match=r"^a card failed \(CUDA error: unspecified launch failure\); what was"):
        answer(model, IDS)
    assert answer(model, IDS).token_ids == wanted


def test_no_token_is_told_that_was_drawn_without_one_of_the_cards(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A card that does not come says so in a word, while the others go on with what they have."""
    model = load(llama, device="cpu", cards=CardWishes(tensor_parallel=2))
    told: list[object] = []
    silent: list[int] = []

    def check(self: ParallelTransformer) -> None:
        if silent:
            raise torch.AcceleratorError("cuda:1 did not answer for 2 s")

    really = ParallelTransformer.features

    def features(self: ParallelTransformer, *arguments: Any, **named: Any) -> torch.Tensor:
        found = really(self, *arguments, **named)
        silent.extend([len(told)] if len(told) > 4 else [])
        return found

    monkeypatch.setattr(ParallelTransformer, "check", check)
    monkeypatch.setattr(ParallelTransformer, "features", features)
    line = r"^a card failed \(cuda:1 did not answer for 2 s\); what was said is kept: "
    with pytest.raises(ModelError, match=line), model.generate(GenerationRequest(IDS, max_new_tokens=40)) as events:
        told.extend(events)
    assert silent == [len(told)]
