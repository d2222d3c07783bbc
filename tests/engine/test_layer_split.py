"""Layers over several cards, which are logical ones here: to the last bit what one card gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, load
from exlchat.engine.cards.split import reach_each_other
from exlchat.engine.kv.archive import page_layout
from exlchat.engine.kv.tensors import PageStore, make_store
from exlchat.engine.layers.transformer import Transformer
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.cards import CardWishes
from tests.engine.test_kv_cache import spec
from tests.random_models import save_random_llama

IDS = torch.randint(384, (80,), generator=torch.Generator().manual_seed(3)).tolist()
LAYERS = 4
FOR_CARDS = r"^--cards, --reserve and --host-layers are about NVIDIA cards, and this model goes to the CPU$"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_random_llama(path, num_hidden_layers=LAYERS, hidden_size=128, head_dim=32)
    return path


def answer(engine: LocalEngine, ids: list[int]) -> Finished:
    *_, end = engine.generate(GenerationRequest(ids, max_new_tokens=40, alternatives=5))
    assert isinstance(end, Finished)
    return end


@pytest.mark.parametrize("kv_cache", ["fp32", "fp16", "q8", "q4"])
@pytest.mark.parametrize("counts", [(1, 3), (2, 1, 1), (1, 1, 1, 1)])
def test_answers_and_what_is_cached_are_those_of_one_card(counts: tuple[int, ...], kv_cache: str, llama: Path) -> None:
    one = load(llama, device="cpu", kv_cache=kv_cache, max_seq_len=512)
    several = load(llama, device="cpu", kv_cache=kv_cache, max_seq_len=512, cards=CardWishes(split=counts))
    for ids in (IDS, [*IDS[:60], *IDS, *IDS, *IDS]):
        wanted, found = answer(one, ids), answer(several, ids)
        assert found.token_ids == wanted.token_ids
        assert found.chances == wanted.chances
    assert several.cached_tokens(IDS) == one.cached_tokens(IDS) > 0
    assert several.footprint == one.footprint


def handed_on(stores: list[PageStore]) -> Iterator[tuple[PageStore, PageStore]]:
    """A page goes from each of some to the next, and from the last to the first: those between which it has gone."""
    for part in stores[0].cards[0]:
        part.copy_(torch.randint(-100, 100, part.shape, dtype=torch.int8).to(part.dtype))
    for before, after in pairwise([*stores, stores[0]]):
        page = before.read(1, 200)
        after.write(2, page)
        after.copy_rows(2, 1, 200)
        assert all(map(torch.equal, after.read(1, 200), page))
        yield before, after


@pytest.mark.parametrize("kind", ["fp16", "q4"])
def test_pages_on_disk_know_nothing_of_the_split(kind: str) -> None:
    """What one split has written another reads."""
    cpu, model = torch.device("cpu"), spec(64)
    model = replace(model, num_layers=LAYERS, windows=(0,) * LAYERS)
    stores = [
        make_store(model, KINDS[kind], [(cpu, count) for count in counts], 3) for counts in ((4,), (1, 3), (2, 0, 2))
    ]
    assert all(page_layout(store) == page_layout(stores[0]) for store in stores)
    for before, after in handed_on(stores):
        for layer in range(LAYERS):
            assert torch.equal(after.layer(layer).keys[:, 1, :200], before.layer(layer).keys[:, 1, :200])


@pytest.mark.parametrize(
    ("wishes", "line"),
    [
        (CardWishes(split=(1, 2)), r"^--split 1,2 is 3 layers; this model has 4, as in --split 2,2$"),
        (CardWishes(split=(3, 3, 3)), r"^--split 3,3,3 is 9 layers; this model has 4, as in --split 2,1,1$"),
        (CardWishes(cards=(0,)), FOR_CARDS),
        (CardWishes(reserve=(1.0,)), FOR_CARDS),
        (CardWishes(host_layers=1), FOR_CARDS),
    ],
)
def test_a_split_that_cannot_be_is_one_line(wishes: CardWishes, line: str, llama: Path) -> None:
    with pytest.raises(ModelError, match=line):
        load(llama, device="cpu", cards=wishes)


class Liar:
    """Memory of a card that garbles what comes from another one, and whose driver says nothing of it."""

    def __init__(self, data: torch.Tensor, place: str) -> None:
        self.data, self.place = data, place

    def to(self, place: str, **_: object) -> Liar | torch.Tensor:
        if place == "cpu":
            return self.data
        return Liar(self.data if place == self.place else self.data + 1, place)


def test_cards_that_garble_what_they_send_each_other_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reach_each_other([torch.device("cpu")] * 2)
    sent = SimpleNamespace(to=lambda place: Liar(torch.zeros(3), place))
    monkeypatch.setattr(torch, "randint", lambda *_, **__: sent)
    monkeypatch.setattr(torch, "equal", lambda one, _other: not bool(one.any()))
    assert not reach_each_other(["cuda:0", "cuda:1"])  # type: ignore[list-item]
    assert reach_each_other(["cuda:0", "cuda:0"])  # type: ignore[list-item]


def test_what_goes_through_the_machines_memory_arrives_alike(llama: Path) -> None:
    direct = load(llama, device="cpu", cards=CardWishes(split=(2, 2)))
    staged = load(llama, device="cpu", cards=CardWishes(split=(2, 2)))
    staged._parts.transformer.split = replace(staged._parts.transformer.split, staged=True)
    assert torch.equal(staged.logits(IDS), direct.logits(IDS))


def test_a_card_that_fails_in_an_answer_is_one_line_and_the_next_answer_comes(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(llama, device="cpu", cards=CardWishes(split=(2, 2)))
    wanted = answer(model, IDS).token_ids
    calls, really = count(), Transformer.layer

    def fail(self: Transformer, index: int, *arguments: Any, **named: Any) -> None:
        if index == 3 and next(calls) == 5:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might be ...")
        really(self, index, *arguments, **named)

    monkeypatch.setattr(Transformer, "layer", fail)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    line = r"^a card failed \(CUDA error: unspecified launch failure\); what was said is kept: start exlchat again, "
    with pytest.raises(ModelError, match=line + r"and if it fails again leave it out \(--cards\)$"):
        answer(model, IDS)
    assert answer(model, IDS).token_ids == wanted
