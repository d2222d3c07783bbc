"""Layers over cards: two where there are two, and one card that stands for two, give the bits of one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, engine, load
from exlchat.engine.cards.split import reach_each_other
from exlchat.llm.cards import CardWishes
from tests.random_models import save_random_llama

LAYERS = 4
IDS = torch.randint(384, (300,), generator=torch.Generator().manual_seed(3)).tolist()
FIRST = torch.device("cuda", 0)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_random_llama(path, num_hidden_layers=LAYERS, hidden_size=256, head_dim=64, intermediate_size=384)
    return path


def answers(model: LocalEngine) -> list[tuple[int, ...]]:
    """A short prompt, a longer one that goes on behind it, and several answers side by side."""
    found = []
    for ids in (IDS[:40], IDS):
        *_, end = model.generate(GenerationRequest(ids, max_new_tokens=48))
        assert isinstance(end, Finished)
        found.append(end.token_ids)
    for one in model.generate_several(GenerationRequest(IDS[:100], max_new_tokens=20), [1, 2, 3]):
        event = getattr(one, "event", None)
        if isinstance(event, Finished):
            found.append(event.token_ids)
    return found


def loaded(path: Path, devices: tuple[torch.device, ...], counts: tuple[int, ...], kv_cache: str) -> LocalEngine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "choose_devices", lambda *_: devices)
        return load(
            path, device="cuda", kv_cache=kv_cache, max_seq_len=512, quantize_head=8, cards=CardWishes(split=counts)
        )


@pytest.mark.parametrize("kv_cache", ["fp16", "q4"])
def test_one_card_that_stands_for_two_gives_the_bits_of_one(kv_cache: str, llama: Path) -> None:
    one = loaded(llama, (FIRST,), (4,), kv_cache)
    wanted = answers(one)
    one.unload()
    two = loaded(llama, (FIRST, FIRST), (1, 3), kv_cache)
    assert answers(two) == wanted
    two.unload()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one card")
@pytest.mark.parametrize("counts", [(1, 3), (3, 1)])
def test_two_cards_give_the_bits_of_one(counts: tuple[int, int], llama: Path) -> None:
    assert reach_each_other([FIRST, torch.device("cuda", 1)])
    one = load(llama, device="cuda:0", kv_cache="q8", max_seq_len=512, quantize_head=8)
    wanted, logits = answers(one), one.logits(IDS).cpu()
    one.unload()
    two = load(
        llama,
        device="cuda",
        kv_cache="q8",
        max_seq_len=512,
        quantize_head=8,
        cards=CardWishes(cards=(0, 1), split=counts),
    )
    assert [card.layers for card in two.memory_report().cards] == list(counts)
    assert answers(two) == wanted
    assert torch.equal(two.logits(IDS).cpu(), logits)
    two.unload()
