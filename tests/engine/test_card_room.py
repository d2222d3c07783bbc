"""Random models over random cards: what fits is found, and no card ever holds more than it can."""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from itertools import combinations_with_replacement
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exlchat.engine import ModelError, card_choice, engine
from exlchat.engine.card_choice import Placed, choose_devices, place
from exlchat.engine.cards.room import PartBytes, Room
from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.kv.budget import CachePlan, CacheWishes, bytes_of_layers
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.driver import Driver
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS
from exlchat.llm.cards import CardWishes
from tests.engine.test_kv_cache import spec

FP16 = KINDS["fp16"]
GIB = 2**30
CUDA = "cuda"

sizes = st.integers(0, 60)
models = st.builds(PartBytes, sizes, st.lists(sizes, min_size=1, max_size=7).map(tuple), sizes, sizes)
rooms = st.builds(
    Room, st.lists(st.integers(1, 150), min_size=1, max_size=4).map(tuple), models, st.none(), st.booleans()
)


def ways(room: Room, cache: list[int]) -> bool:
    """Whether any cut of the layers fits, by trying all of them."""
    layers, cards = len(room.weights.layers), range(len(room.cards))
    for cuts in combinations_with_replacement(range(layers + 1), len(room.cards) - 1):
        ends = (*cuts, layers)
        begins = (0, *cuts)
        # The ends of the model may lie beside the layers or on a card of their own.
        for first in cards:
            for last in range(first, len(room.cards)):
                holding = [card for card in cards if ends[card] > begins[card]]
                if holding and not (first <= holding[0] and holding[-1] <= last):
                    continue
                used = [
                    sum(room.weights.layers[begins[card] : ends[card]]) + sum(cache[begins[card] : ends[card]])
                    for card in cards
                ]
                used[first] += room.weights.first
                used[last] += room.weights.last + (room.weights.again if last > first else 0)
                if all(have >= need for have, need in zip(room.cards, used, strict=True)):
                    return True
    return False


@settings(max_examples=400, deadline=None)
@given(rooms, st.data())
def test_a_split_is_found_where_there_is_one_and_fits(room: Room, data: st.DataObject) -> None:
    layers = len(room.weights.layers)
    cache = data.draw(st.lists(sizes, min_size=layers, max_size=layers))
    ends = room.ends(cache)
    assert (ends is not None) == ways(room, cache) == room.fits(cache)
    if ends is None:
        return
    assert ends[-1][1] == layers
    assert [card for card, _ in ends] == sorted({card for card, _ in ends})
    assert room.over(ends, cache) is None
    begin = 0
    for place_, (card, end) in enumerate(ends):
        used = sum(room.weights.layers[begin:end]) + sum(cache[begin:end])
        used += room.weights.first if place_ == 0 else 0
        used += room.weights.last if place_ == len(ends) - 1 else 0
        used += room.weights.again if place_ == len(ends) - 1 and place_ else 0
        assert used <= room.cards[card]
        begin = end


def model(layers: int, *, window: int = 0, longest: int = 200_000) -> ModelSpec:
    windows = tuple(window if layer % 2 else 0 for layer in range(layers))
    return dataclasses.replace(spec(64), num_layers=layers, windows=windows, max_position_embeddings=longest)


def with_cards(
    monkeypatch: pytest.MonkeyPatch, free: list[int], speeds: list[int] | None = None, *, memory: int = 0
) -> None:
    """`memory`: of the machine, in which there is nothing for weights unless given."""

    def usable(device: torch.device) -> int:
        return memory if device.type == "cpu" else free[device.index or 0]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(card_choice, "choose_device", lambda name: torch.device(name if ":" in name else "cuda:0"))
    monkeypatch.setattr(card_choice, "reach_each_other", lambda _: True)
    monkeypatch.setattr(card_choice, "usable_memory", usable)
    told = Driver((13, 0), ((9, 0),) * len(free), tuple(speeds or [4800] * len(free)))
    monkeypatch.setattr(card_choice, "ask_driver", lambda: told)


@settings(max_examples=200, deadline=None)
@given(
    megabytes=st.lists(st.integers(4, 400), min_size=1, max_size=4),
    layers=st.integers(1, 24),
    each=st.integers(1, 60),
    window=st.sampled_from([0, 1024]),
    context=st.sampled_from([None, 512, 4096, 40_000]),
    reserve=st.lists(st.integers(0, 60), min_size=0, max_size=1),
)
def test_no_plan_ever_exceeds_a_card(
    *, megabytes: list[int], layers: int, each: int, window: int, context: int | None, reserve: list[int]
) -> None:
    """The largest context is found, too: with a page more of it there would be no split."""
    weights = PartBytes(2**20, (each * 2**18,) * layers, 2**21, 2**20)
    spec_ = model(layers, window=window)
    cards = CardWishes(reserve=tuple(size / 1024 for size in reserve))
    room = Room(tuple((size - sum(reserve)) * 2**20 for size in megabytes), weights)

    def fits(tokens: int) -> bool:
        return room.ends(bytes_of_layers(spec_, FP16, CachePlan(tokens, tokens))) is not None

    placed = None
    with pytest.MonkeyPatch.context() as patch, suppress(ModelError):
        with_cards(patch, [size * 2**20 for size in megabytes])
        devices = choose_devices(CUDA, cards)
        placed = place("m", spec_, FP16, CacheWishes(context), cards=cards, devices=devices, weights=weights)
    if placed is None:
        assert not fits(context or 512)
        return
    numbers = [device.index for device in placed.split.devices]
    ends = tuple(zip(numbers, placed.split.ends, strict=True))
    assert room.over(ends, bytes_of_layers(spec_, FP16, placed.plan)) is None
    if context is None and placed.plan.context < 32_768:
        assert not fits(placed.plan.context + PAGE_TOKENS)
    else:
        assert placed.plan.context == (context or 32_768)


def placed_on(cards: CardWishes, wishes: CacheWishes, layers: int = 32, gigabytes: float = 0.25) -> tuple[object, ...]:
    weights = PartBytes(GIB, (int(gigabytes * GIB),) * layers, GIB)
    placed = place("m", model(layers), FP16, wishes, cards=cards, devices=choose_devices(CUDA, cards), weights=weights)
    counts = tuple(len(placed.split.layers(card)) for card in range(len(placed.split.devices)))
    return tuple(device.index for device in placed.split.devices), counts


def test_one_card_is_taken_where_it_suffices_and_no_other_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, [24 * GIB, 24 * GIB])
    seen: list[int] = []

    def usable(device: torch.device) -> int:
        seen.append(device.index)
        return 24 * GIB

    monkeypatch.setattr(card_choice, "usable_memory", usable)
    assert placed_on(CardWishes(), CacheWishes()) == ((0,), (32,))
    assert seen == [0]
    assert placed_on(CardWishes(cards=(1,)), CacheWishes()) == ((1,), (32,))
    assert choose_devices("cuda:1", CardWishes()) == (torch.device("cuda:1"),)


def test_cards_as_fast_as_each_other_share_and_the_faster_of_others_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, [8 * GIB, 8 * GIB])
    assert placed_on(CardWishes(), CacheWishes()) == ((0, 1), (16, 16))
    with_cards(monkeypatch, [8 * GIB, 8 * GIB], [900, 4800])
    (first, second), counts = placed_on(CardWishes(), CacheWishes())  # type: ignore[misc]
    assert (first, second) == (1, 0)
    assert counts[0] > 20
    assert placed_on(CardWishes(cards=(0, 1), split=(16, 16)), CacheWishes()) == ((0, 1), (16, 16))


@pytest.mark.parametrize(
    ("cards", "line"),
    [
        (CardWishes(cards=(2,)), r"--cards: there is no card 2; this program sees 2, counted from 0"),
        (CardWishes(cards=(0, 0)), r"--cards 0,0 names a card twice; each is used once"),
        (CardWishes(split=(10, 10, 12)), r"--split 10,10,12 is for 3 cards; this program sees 2, counted from 0"),
        (CardWishes(cards=(1,), split=(16, 16)), r"--split 16,16 is for 2 cards; --cards names 1"),
        (
            CardWishes(reserve=(1.0, 1.0, 1.0)),
            r"--reserve has 3 numbers for 2 cards; give one for all, or one for each",
        ),
        (CardWishes(split=(20, 20)), r"--split 20,20 is 40 layers; this model has 32, as in --split 16,16"),
        (
            CardWishes(split=(28, 4)),
            r"m: --split 28,4 puts 8\.0 GiB of weights on cuda:0, which has 6\.0 GiB free; --split 19,13 would fit",
        ),
        (
            CardWishes(reserve=(4.0,)),
            r"m: needs 10\.0 GiB for its weights, and the 2 cards have 2\.0 and 2\.0 GiB free; close other programs, "
            r"or take a smaller --reserve, fewer bits or a smaller model",
        ),
        (
            CardWishes(cards=(0,)),
            r"m: needs 10\.0 GiB for its weights, and card memory has 6\.0 GiB free; close other programs, or take "
            r"fewer bits, a smaller model or more cards \(--cards\)",
        ),
    ],
)
def test_what_cannot_be_is_a_line_that_says_what_would_work(
    cards: CardWishes, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cards(monkeypatch, [6 * GIB, 6 * GIB])
    with pytest.raises(ModelError, match=f"^{line}$"):
        placed_on(cards, CacheWishes())


def test_a_split_is_of_cards_that_are_named_where_one_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, [6 * GIB, 6 * GIB])
    with pytest.raises(ModelError, match=r"^--split 16,16 is for 2 cards; cuda:0 is one; name them with --cards$"):
        choose_devices("cuda:0", CardWishes(split=(16, 16)))


def test_what_is_reserved_is_of_the_card_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its number, or by its place among those that are named; a card that cannot be asked has no room."""
    with_cards(monkeypatch, [24 * GIB, 24 * GIB], [900, 4800])

    def room(cards: tuple[int, ...] = ()) -> list[int]:
        wishes = CardWishes(cards=cards, reserve=(20.0, 0.0))
        devices = choose_devices(CUDA, wishes)
        return [
            card_choice.room_on(device, number, wishes, card_choice.usable_memory) // GIB
            for number, device in enumerate(devices)
        ]

    assert room() == [24, 4]  # the second card is the faster one
    assert room((0, 1)) == [4, 24]
    assert room((1, 0)) == [4, 24]

    def refuse(_: torch.device) -> int:
        raise torch.AcceleratorError("CUDA error: out of memory")

    assert card_choice.room_on(torch.device("cuda:1"), 1, CardWishes(), refuse) == 0


def test_a_hidden_card_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, [6 * GIB])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(ModelError, match=r"there is no card 1; this program sees 1 \(CUDA_VISIBLE_DEVICES=1 hides"):
        choose_devices(CUDA, CardWishes(cards=(1,)))


def test_a_card_that_is_too_old_is_left_out_unless_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with_cards(monkeypatch, [6 * GIB, 6 * GIB])
    monkeypatch.setattr(card_choice, "ask_driver", lambda: SimpleNamespace(cards=((6, 1), (8, 6)), speeds=(500, 900)))
    assert [device.index for device in choose_devices(CUDA, CardWishes())] == [1]
    assert [device.index for device in choose_devices(CUDA, CardWishes(cards=(0,)))] == [0]


def test_pages_on_disk_know_of_cards_that_sum_in_other_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    cards = [SimpleNamespace(major=9, minor=0, multi_processor_count=count) for count in (132, 132, 114)]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: cards[device.index])
    model_, devices = model(4), [torch.device("cuda", index) for index in range(3)]

    def root(*numbers: int, ends: tuple[int, ...] = (2, 4)) -> bytes:
        placed = Placed(LayerSplit(tuple(devices[number] for number in numbers), ends), CachePlan(512, 512))
        return engine._root("m", model_, placed, "fp16", torch.float16)

    assert root(0, ends=(4,)) == root(0, 1) == root(1, 0, ends=(1, 4)) == root(2, ends=(4,))
    assert len({root(0, 1), root(0, 2), root(2, 0), root(0, 2, ends=(1, 4))}) == 4
