"""Layers over cards: two where there are two, and one card that stands for two, give the bits of one.

Two that compute every layer together come as near to it as sums of two parts do.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, card_choice, engine, load
from exlchat.engine.cards.split import reach_each_other
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.formats import exl2_writer
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.kv.sequence import KVSequence
from exlchat.llm.cards import CardWishes
from tests.engine.decoding import relative_error
from tests.engine.test_step_chain import one_order_for_gate_and_up
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


two_cards = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one card")
TOGETHER = CardWishes(cards=(0, 1), tensor_parallel=2)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of Llama's shape, so that sums are exchanged inside the products."""
    path = tmp_path_factory.mktemp("quantized")
    sizes = {"num_hidden_layers": LAYERS, "hidden_size": 512, "head_dim": 64, "intermediate_size": 1536}
    model = save_random_llama(path / "float", num_attention_heads=8, num_key_value_heads=4, vocab_size=391, **sizes)
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    body = (Section(5, 0.25, 32), Section(4, 0.75, 128))
    exl2_writer.write_model(model.state_dict(), model.config.to_dict(), path / "exl2", body=body, extra_files=files)
    one_order_for_gate_and_up(path / "exl2", LAYERS)
    return path / "exl2"


def steps_of(engine: LocalEngine, ids: list[int]) -> Tensor:
    """float32 `[len(ids), vocab]` on the CPU, by steps of a token behind a prompt."""
    runner, sequence = engine._parts.scheduler.runner, KVSequence(engine._parts.cache)
    runner.last_logits(sequence, IDS[:50])
    found = []
    for token in ids:
        found.append(runner.next_logits(sequence, token).cpu().clone())
        check_alike(engine)
    sequence.close()
    return torch.stack(found)


def check_alike(engine: LocalEngine) -> None:
    """Residual streams are the same on all cards, to the last bit."""
    step = engine._parts.scheduler.runner.step
    assert step is not None
    first, *others = [[part.cpu() for part in plan._stream.tensors] for plan in step._plans]
    assert first[0].any()
    assert all(torch.equal(*parts) for other in others for parts in zip(first, other, strict=True))


@two_cards
@pytest.mark.whole_card
@pytest.mark.parametrize("staged", [False, True], ids=["peer memory", "the machine's memory"])
@pytest.mark.parametrize("model", ["quantized", "llama"])
@pytest.mark.parametrize("kv_cache", ["fp16", "q4"])
def test_two_cards_that_compute_every_layer_together(
    model: str, kv_cache: str, staged: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    path: Path = request.getfixturevalue(model)
    one = load(path, device="cuda:0", kv_cache=kv_cache, max_seq_len=512)
    wanted, logits = steps_of(one, IDS[50:80]), one.logits(IDS).cpu()
    one.unload()
    if staged:
        monkeypatch.setattr(card_choice, "reach_each_other", lambda _devices: False)
    two = load(path, device="cuda", kv_cache=kv_cache, max_seq_len=512, cards=TOGETHER)
    assert two.memory_report().together
    assert relative_error(two.logits(IDS).cpu(), logits) < 5e-3
    # In few bits what is stored differs by more than what is computed.
    assert relative_error(steps_of(two, IDS[50:80]), wanted) < (1e-2 if kv_cache == "fp16" else 8e-2)
    first = answers(two)
    known = answers(two)
    assert answers(two) == known
    assert known == first or kv_cache == "q4"  # a prompt that is known is read in few bits
    check_alike(two)
    two.unload()


def wait_for(step: DecodeGraphs) -> None:
    while step.running():
        pass


@two_cards
@pytest.mark.whole_card
def test_a_card_that_does_not_come_is_one_line_and_the_model_answers_when_it_is_loaded_again(quantized: Path) -> None:
    two = load(quantized, device="cuda", kv_cache="fp16", max_seq_len=512, cards=TOGETHER)
    wanted = answers(two)
    step = two._parts.scheduler.runner.step
    assert step is not None
    graphs = next(graphs for graphs in step._captured._graphs.values() if all(graphs))
    lost = graphs[1]
    assert lost is not None
    begun = time.monotonic()
    with torch.cuda.device(0):
        assert graphs[0] is not None
        graphs[0].replay()
    with pytest.raises(torch.AcceleratorError, match=r"^cuda:1 did not answer for 2 s$"):
        wait_for(step)
    assert time.monotonic() - begun < 3
    with pytest.raises(ModelError, match=r"^a card failed \(cuda:1 did not answer for 2 s\); what was said is kept: "):
        answers(two)
    two.unload()
    again = load(quantized, device="cuda", kv_cache="fp16", max_seq_len=512, cards=TOGETHER)
    assert answers(again) == wanted
    again.unload()
