"""Layers whose weights a card reads in the machine's memory: the bits of a card that holds all of them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, card_choice, load
from exlchat.engine.cards import host_memory
from exlchat.engine.formats.inventory import is_quantized, part_bytes
from exlchat.engine.kv.budget import CachePlan, bytes_of_layers
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import KINDS
from exlchat.ext.pinned import PinnedMemory
from exlchat.llm.cards import CardWishes
from tests.engine.family_models import save_case
from tests.engine.test_settled_chain import quantize, wide

LAYERS = 4
IDS = torch.randint(384, (600,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(
    scope="module", params=[("llama", "exl2"), ("llama", "float16"), ("mixtral", "exl2"), ("mixtral", "float16")]
)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    name, kind = request.param
    folder = tmp_path_factory.mktemp("model")
    case = wide(name)
    sizes = {"num_hidden_layers": LAYERS, "max_position_embeddings": 1024}
    save_case(replace(case, changes={**case.changes, **sizes}), folder / "dense")
    return quantize(kind, folder / "dense", folder / "quantized")


def loaded(path: Path, hosted: int) -> LocalEngine:
    return load(path, device="cuda", max_seq_len=1024, cards=CardWishes(host_layers=hosted))


def answers(model: LocalEngine, longest: int = 600) -> list[tuple[int, ...]]:
    """Prompts in one pass, the second time captured; one in several; several answers side by side."""
    found, several = [], GenerationRequest(IDS[:100], max_new_tokens=20)
    for ids in (IDS[:40], IDS[100:140], IDS[200:240], IDS[:longest]):
        *_, end = model.generate(GenerationRequest(ids, max_new_tokens=48))
        assert isinstance(end, Finished)
        found.append(end.token_ids)
    events = [getattr(one, "event", None) for one in model.generate_several(several, [1, 2, 3])]
    found.extend(event.token_ids for event in events if isinstance(event, Finished))
    return found


def test_answers_are_those_of_a_card_that_holds_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: set[int] = set()

    class Counted(PinnedMemory):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            held.add(self.address)

        def free(self) -> None:
            super().free()
            held.remove(self.address)

    monkeypatch.setattr(host_memory, "PinnedMemory", Counted)
    one = loaded(path, 0)
    wanted, logits = answers(one), [one.logits(IDS[:tokens]).cpu() for tokens in (1, 8, 40, 600)]
    assert not held
    assert one.memory_report().hosted == 0
    one.unload()
    two = loaded(path, LAYERS // 2)
    assert held
    report = two.memory_report()
    assert report.host_layers == LAYERS // 2
    assert report.weights / 4 < report.hosted < report.weights
    assert two.info.notices[0].startswith(f"{LAYERS // 2} of {LAYERS} layers ")
    assert answers(two) == wanted
    for tokens, expected in zip((1, 8, 40, 600), logits, strict=True):
        assert torch.equal(two.logits(IDS[:tokens]).cpu(), expected), tokens
    two.unload()
    assert not held


def test_a_card_that_is_too_small_reads_some_layers_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = loaded(path, 0)
    wanted = answers(one, 400)
    one.unload()
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    weights = part_bytes(checkpoint, LAYERS, torch.float16, stay_quantized=is_quantized(checkpoint))
    shortest, cache = (sum(bytes_of_layers(spec, KINDS["fp16"], CachePlan(size, size))) for size in (256, 512))
    room = weights.all + shortest - 1  # with a byte more it would all be on the card, with a shorter context
    monkeypatch.setattr(card_choice, "usable_memory", lambda card: 2**30 if card.type == "cpu" else room)
    # Of two cards the second one would take them.
    two = load(path, device="cuda:0", max_seq_len=512)
    # The first one that moves makes room for its own copy only.
    assert two.memory_report().host_layers == 1 + math.ceil((cache - shortest + 1) / weights.movable[0])
    assert answers(two, 400) == wanted
    two.unload()
