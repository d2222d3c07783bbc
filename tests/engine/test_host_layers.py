"""Layers whose weights lie in the machine's memory: which ones, and to the last bit what cards give that hold all."""

from __future__ import annotations

import dataclasses
import re
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, engine, load
from exlchat.engine.card_choice import Placed, choose_devices, place
from exlchat.engine.cards.host_memory import HostMemory
from exlchat.engine.cards.room import PartBytes, Room
from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.formats.inventory import part_bytes
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv.budget import CacheWishes, bytes_of_layers
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.experts import Experts
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.cards import CardWishes
from tests.engine.decoding import logits_in_steps
from tests.engine.family_models import CASES, save_case
from tests.engine.reference_kernels import ReferenceKernels
from tests.engine.test_card_room import model, with_cards
from tests.engine.test_settled_chain import quantize, wide
from tests.engine.test_step_chain import chain_logits
from tests.random_models import save_random_llama

FP16 = KINDS["fp16"]
CPU = torch.device("cpu")
LAYERS = 2
IDS = torch.randint(384, (70,), generator=torch.Generator().manual_seed(3)).tolist()
STEPS = [40, 1, 8, 20, 1]
"""Prompts, which have weights copied to the card, and as few tokens as read them where they are."""


def opened(path: Path, *, kernels: bool, hosted: int, ends: tuple[int, ...] = (LAYERS,)) -> Transformer:
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    dtype = torch.float16 if kernels else torch.float32
    loader = LayerLoader(checkpoint, CPU, dtype, ReferenceKernels() if kernels else None)
    has_head = any(name.startswith(("lm_head.", "output.")) for name in checkpoint.names)
    split = LayerSplit((CPU,) * len(ends), ends, hosted=hosted)
    return load_transformer(spec, loader, has_head, lambda: None, split=split)


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama", "float16"),
        ("llama", "exl2"),
        ("phi3", "gptq, act-order"),
        ("mixtral", "exl2"),
        ("qwen2_moe", "float16"),
        ("qwen3_moe, every second layer", "exl2"),
    ],
)
def test_logits_are_those_of_weights_on_the_card(name: str, kind: str, tmp_path: Path) -> None:
    save_case(wide(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "quantized")
    kernels = kind != "float16"
    cache = "fp16" if kernels else "fp32"
    # MKL's sums depend on where in memory a matrix begins, on some processors.
    near = 0 if kernels else 1e-4
    wanted = logits_in_steps(opened(path, kernels=kernels, hosted=0), IDS, STEPS, cache)
    for hosted, ends in ((1, (2,)), (2, (2,)), (2, (1, 2))):
        found = opened(path, kernels=kernels, hosted=hosted, ends=ends)
        assert len(found.hosts) == len(ends)
        torch.testing.assert_close(logits_in_steps(found, IDS, STEPS, cache), wanted, rtol=0, atol=near)


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "mixtral"])
@pytest.mark.parametrize("kind", ["exl2", "float16"])
def test_captured_steps_read_them_where_they_are(name: str, kind: str, tmp_path: Path) -> None:
    save_case(wide(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "quantized")
    wanted, found = (opened(path, kernels=True, hosted=hosted) for hosted in (0, 1))
    for rows in (1, 7):
        assert torch.equal(chain_logits(found, IDS[:14], 0, rows=rows), chain_logits(wanted, IDS[:14], 0, rows=rows))
    assert not len(found.hosts[0]._copy)


def test_experts_in_float_stand_one_behind_the_other_there(tmp_path: Path) -> None:
    """The kernels of chosen experts read them so."""
    save_case(CASES["gpt_oss"], tmp_path)
    checkpoint = Checkpoint(tmp_path)
    spec = read_spec(checkpoint.config, "config.json")
    loader = LayerLoader(checkpoint, CPU, torch.float16, ReferenceKernels())
    split = LayerSplit((CPU,), (spec.num_layers,), hosted=1)
    transformer = load_transformer(spec, loader, True, lambda: None, split=split)
    for layer in transformer.layers:
        assert isinstance(layer.mlp, Experts)
        assert layer.mlp.together is not None
    last = transformer.layers[-1].mlp
    assert isinstance(last, Experts)
    assert transformer.hosts[0].bytes >= last.bytes_of_experts - sum(
        part.bias.nbytes for expert in last.experts for part in (expert.gate_up, expert.down) if part.bias is not None
    )


def test_what_is_held_is_all_that_is_reckoned_with(tmp_path: Path) -> None:
    for name in ("llama", "mixtral", "gpt_oss", "qwen2_moe"):
        save_case(CASES[name], tmp_path / name)
        checkpoint = Checkpoint(tmp_path / name)
        spec = read_spec(checkpoint.config, "config.json")
        split = LayerSplit((CPU,), (spec.num_layers,), hosted=2)
        loader = LayerLoader(checkpoint, CPU, torch.float32)
        transformer = load_transformer(spec, loader, not spec.tied_head, lambda: None, split=split)
        parts = part_bytes(checkpoint, spec.num_layers, torch.float32, stay_quantized=False)
        assert parts.hosted(2) == sum(host.bytes for host in transformer.hosts)
        assert parts.hosted(1) == parts.movable[-1] < parts.layers[-1]
        read = transformer.hosted_bytes_per_token
        assert read < parts.hosted(2) if spec.experts else read >= parts.hosted(2)


def test_what_is_fetched_stands_at_one_place_and_is_what_was_held() -> None:
    memory = HostMemory(CPU)
    first = memory.hold([torch.arange(5), torch.ones(3, dtype=torch.float16)])
    second = memory.hold([torch.arange(100)])
    with torch.inference_mode():  # as the first pass does
        there = first.fetch()
    assert torch.equal(there[0], torch.arange(5))
    assert torch.equal(there[1], torch.ones(3, dtype=torch.float16))
    (other,) = second.fetch()
    assert torch.equal(other, torch.arange(100))
    assert other.data_ptr() == there[0].data_ptr() == first.fetch()[0].data_ptr()
    assert torch.equal(there[0], torch.arange(5))
    assert memory.bytes == 128 + 128 + 896
    assert memory.rate > 0


def test_answers_are_those_of_one_card_and_reports_tell_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random_llama(tmp_path, num_hidden_layers=4, hidden_size=128, head_dim=32)

    def answer(found: LocalEngine) -> Finished:
        *_, end = found.generate(GenerationRequest(IDS, max_new_tokens=40, alternatives=5))
        assert isinstance(end, Finished)
        return end

    one = load(tmp_path, device="cpu")
    assert (one.memory_report().hosted, one.memory_report().host_layers, one.info.notices) == (0, 0, ())

    def hosting(*arguments: object, **named: object) -> Placed:
        placed = place(*arguments, **named)  # type: ignore[arg-type]
        return dataclasses.replace(placed, split=dataclasses.replace(placed.split, hosted=3))

    monkeypatch.setattr(engine, "place", hosting)
    found = load(tmp_path, device="cpu")
    assert (answer(found).token_ids, answer(found).chances) == (answer(one).token_ids, answer(one).chances)
    assert found.footprint == one.footprint
    report = found.memory_report()
    assert report.host_layers == 3
    assert 0 < report.hosted < report.weights
    (line,) = found.info.notices
    told = (
        r"3 of 4 layers lie in the machine's memory, of which a token reads 1\.03 MB at [\d.]+ GB/s: at most [\d,]+ tok"
    )
    assert re.match(told, line)


GIB = 2**30


@settings(max_examples=200, deadline=None)
@given(
    megabytes=st.lists(st.integers(4, 400), min_size=1, max_size=3),
    system=st.integers(0, 1500),
    layers=st.integers(1, 24),
    each=st.integers(1, 60),
    experts=st.booleans(),
    context=st.sampled_from([None, 512, 4096]),
    wanted=st.sampled_from([None, None, 0, 5, 100]),
)
def test_no_plan_exceeds_a_card_or_the_machines_memory(
    *,
    megabytes: list[int],
    system: int,
    layers: int,
    each: int,
    experts: bool,
    context: int | None,
    wanted: int | None,
) -> None:
    layer = each * 2**18
    movable = layer * 9 // 10 if experts else layer - 1000
    weights = PartBytes(2**20, (layer,) * layers, 2**21, 2**20, (movable,) * layers)
    spec, cards, cache = model(layers), CardWishes(host_layers=wanted), CacheWishes(context)

    def placed(wishes: CardWishes) -> Placed | None:
        with suppress(ModelError):
            devices = choose_devices("cuda", wishes)
            return place("m", spec, FP16, cache, cards=wishes, devices=devices, weights=weights)
        return None

    with pytest.MonkeyPatch.context() as patch:
        with_cards(patch, [size * 2**20 for size in megabytes], memory=system * 2**20)
        found, on_cards = placed(cards), placed(CardWishes(host_layers=0))
    if wanted is None and on_cards is not None:
        assert found == on_cards
    if found is None:
        return
    split = found.split
    assert split.hosted == (min(wanted, layers) if wanted is not None else split.hosted)
    assert split.hosted * movable <= system * 2**20
    pages = bytes_of_layers(spec, FP16, found.plan)
    for card, device in enumerate(split.devices):
        there = split.layers(card)
        used = sum(layer + pages[index] - (movable if split.is_hosted(index) else 0) for index in there)
        used += movable if any(map(split.is_hosted, there)) else 0
        used += 2**20 if card == 0 else 0
        used += 2**21 + (2**20 if card else 0) if card == len(split.devices) - 1 else 0
        assert used <= megabytes[device.index] * 2**20


def hosted_on(
    free: list[int], memory: int, cards: CardWishes, wishes: CacheWishes, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, int]:
    """How many of 32 layers of 0.25 GiB beside ends of 1 GiB, and the context."""
    with_cards(monkeypatch, free, memory=memory)
    weights = PartBytes(GIB, (GIB // 4,) * 32, GIB, movable=(GIB // 4,) * 32)
    devices = choose_devices("cuda", cards)
    placed = place("m", model(32), FP16, wishes, cards=cards, devices=devices, weights=weights)
    return placed.split.hosted, placed.plan.context


def test_as_few_layers_as_it_takes_go_to_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    any_, usual = CardWishes(), CacheWishes()
    # A context of 8,192 tokens is made room for; each layer beyond the first makes 0.25 GiB of it.
    assert hosted_on([24 * GIB], 64 * GIB, any_, usual, monkeypatch)[0] == 0
    few, context = hosted_on([8 * GIB], 64 * GIB, any_, usual, monkeypatch)
    assert 9 <= few <= 13
    assert context >= 8192
    more, context = hosted_on([8 * GIB], 64 * GIB, any_, CacheWishes(32_768), monkeypatch)
    assert more > few
    assert context == 32_768
    # Two cards come before it.
    assert hosted_on([8 * GIB, 8 * GIB], 64 * GIB, any_, usual, monkeypatch)[0] == 0
    assert hosted_on([24 * GIB], 64 * GIB, CardWishes(host_layers=4), usual, monkeypatch)[0] == 4
    assert hosted_on([24 * GIB], 64 * GIB, CardWishes(host_layers=99), usual, monkeypatch)[0] == 32


@pytest.mark.parametrize(
    ("cards", "line"),
    [
        (
            CardWishes(host_layers=0),
            r"m: needs 10\.0 GiB for its weights, and card memory has 8\.0 GiB free; close other programs, or take "
            r"more --host-layers, fewer bits or a smaller model",
        ),
        (
            CardWishes(),
            r"m: needs 10\.0 GiB for its weights, and 1\.0 GiB of them go into the machine's memory; card memory has "
            r"8\.0 GiB free; close other programs, or take fewer bits or a smaller model",
        ),
        (
            CardWishes(host_layers=8),
            r"--host-layers 8 takes 2\.0 GiB of the machine's memory, which has 1\.0 GiB for them; take fewer",
        ),
    ],
)
def test_what_does_not_fit_there_is_one_line(cards: CardWishes, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=f"^{line}$"):
        hosted_on([8 * GIB], GIB, cards, CacheWishes(), monkeypatch)


@pytest.mark.parametrize("memory", [GIB // 2, 64 * GIB])
def test_a_context_that_does_not_fit_is_refused_where_the_weights_fit(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = r"^m: a context of 200,000 tokens takes [\d.]+ GiB, and the weights leave 1\.00 GiB free: --context"
    for cards in (CardWishes(), CardWishes(host_layers=0)):
        with pytest.raises(ModelError, match=line):
            hosted_on([11 * GIB], memory, cards, CacheWishes(200_000), monkeypatch)
    assert hosted_on([11 * GIB], 64 * GIB, CardWishes(host_layers=32), CacheWishes(40_000), monkeypatch) == (32, 40_000)


def test_a_room_leaves_each_card_with_such_layers_a_copy_of_one() -> None:
    weights = PartBytes(layers=(10, 10, 10, 10), movable=(8, 8, 8, 8))
    room = Room((22,), weights, hosted=3)
    assert room.used(((0, 4),), [0] * 4) == [(0, 10 + 3 * 2 + 8)]
    assert room.ends([0] * 4) is None
    assert Room((24,), weights, hosted=3).ends([0] * 4) == ((0, 4),)
    assert Room((20, 12), weights, hosted=1).used(((0, 2), (1, 4)), [0] * 4) == [(0, 20), (1, 10 + 2 + 8)]
    assert room.spare == 22 - (40 - 24)
