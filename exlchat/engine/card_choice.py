"""Which cards a model goes to, and which of its layers to which: by what is free there and what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch

from exlchat.engine.cards.room import Ends, PartBytes, Room, SharedRoom, counts
from exlchat.engine.cards.split import LayerSplit, reach_each_other
from exlchat.engine.host_layers import with_host_layers
from exlchat.engine.kv.budget import CachePlan, CacheWishes, bytes_of_layers, plan_cache, suffices
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.cut import Split, bytes_of_cards, split_model
from exlchat.engine.placement import choose_device, usable_memory
from exlchat.ext.driver import VISIBLE_DEVICES, ask_driver
from exlchat.ext.kv_formats import PAGE_TOKENS, CacheKind
from exlchat.ext.targets import OLDEST
from exlchat.llm.cards import CardWishes
from exlchat.llm.info import ModelError

# Cards whose memory is as fast as each other's up to so much are taken for alike.
_ALIKE = 0.1


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the layers of a model lie, and how large its cache is; `parts`: of each where all cards have some."""

    split: LayerSplit
    plan: CachePlan
    parts: Split | None = None


def choose_devices(device: str, wishes: CardWishes) -> tuple[torch.device, ...]:
    """The cards that a model may use, in the order in which they are filled.

    Args:
        device: as of `choose_device`; `cuda:N` is that card alone unless others are wished for. The CPU stands for as
            many logical cards as a split has parts.

    Raises:
        ModelError: there is no such device or card, one is named twice, or wishes do not suit each other.
    """
    target = choose_device(device)
    many = wishes.tensor_parallel
    if many > 1 and (wishes.split or wishes.host_layers):
        raise ModelError(
            f"--tensor-parallel {many} puts a part of every layer on each card, and --split and --host-layers say "
            "where whole layers lie; leave one of them out"
        )
    if target.type == "cpu":
        if wishes.cards or wishes.reserve or wishes.host_layers:
            raise ModelError(
                "--cards, --reserve and --host-layers are about NVIDIA cards, and this model goes to the CPU"
            )
        return (target,) * max(len(wishes.split), many)
    there = torch.cuda.device_count()
    numbers = wishes.cards or ((target.index,) if ":" in device else _by_speed(there))
    strange = [number for number in numbers if not 0 <= number < there]
    if strange:
        raise ModelError(f"--cards: there is no card {strange[0]}; {_shown(there)}")
    if len(set(numbers)) < len(numbers):
        raise ModelError(f"--cards {_listed(numbers)} names a card twice; each is used once")
    alone = f"{device} is one; name them with --cards" if ":" in device else _shown(there)
    named = f"--cards names {len(numbers)}" if wishes.cards else alone
    if len(wishes.split) > len(numbers):
        raise ModelError(f"--split {_listed(wishes.split)} is for {len(wishes.split)} cards; {named}")
    if many > len(numbers):
        raise ModelError(f"--tensor-parallel {many} is for {many} cards; {named}")
    chosen = len(wishes.cards) or there
    if len(wishes.reserve) > 1 and len(wishes.reserve) != chosen:
        raise ModelError(
            f"--reserve has {len(wishes.reserve)} numbers for {chosen} cards; give one for all, or one for each"
        )
    return tuple(torch.device("cuda", number) for number in (numbers[:many] if many > 1 else numbers))


def place(
    name: str,
    spec: ModelSpec,
    kind: CacheKind,
    wishes: CacheWishes,
    *,
    cards: CardWishes,
    devices: tuple[torch.device, ...],
    weights: PartBytes,
) -> Placed:
    """The split of a model's layers and its cache: on as few of the devices as hold what is wished for, else on all.

    What all of them have no room for lies in the machine's memory.

    Args:
        name: of the model, for errors.
        devices: from `choose_devices`. A card is first looked at when those before it do not suffice, as that alone
            takes memory there.

    Raises:
        ModelError: the model does not fit, or not as wished.
    """
    _check_layers(cards.split, spec.num_layers)
    parts = split_model(spec, speeds_of(devices)) if cards.tensor_parallel > 1 else None
    if devices[0].type == "cpu":
        plan = plan_cache(name, spec, kind, wishes, Room((usable_memory(devices[0]),), weights), at_once=False)
        if parts is not None:
            return Placed(LayerSplit.in_parts(devices, spec.num_layers, parts.kv_heads), plan, parts)
        return Placed(LayerSplit(devices, tuple(accumulate(cards.split or (spec.num_layers,)))), plan)
    if parts is not None:
        return _place_together(name, spec, kind, wishes, cards=cards, devices=devices, weights=weights, parts=parts)
    least, wanted = max(len(cards.split), 1), min(cards.host_layers or 0, spec.num_layers)
    free: list[int] = []
    for number, device in enumerate(devices):
        free.append(room_on(device, number, cards, usable_memory))
        even = alike(devices[: number + 1])
        room = Room(tuple(free), weights, cards.split or None, even=even, hosted=wanted)
        if len(free) >= least and (cards.split or suffices(spec, kind, wishes, room)):
            break
    if cards.host_layers is not None or not cards.split:
        room = with_host_layers(spec, kind, wishes, room, wanted=cards.host_layers, memory=_memory_for_weights)
    if not room.fits([0] * spec.num_layers):
        shortest = bytes_of_layers(spec, kind, CachePlan(PAGE_TOKENS, PAGE_TOKENS))
        raise ModelError(f"{name}: {_why_not(room, devices, cards, shortest)}")
    plan = plan_cache(name, spec, kind, wishes, room)
    ends = room.ends(bytes_of_layers(spec, kind, plan))
    assert ends is not None
    used = tuple(devices[card] for card, _ in ends)
    staged = not reach_each_other(used)
    return Placed(LayerSplit(used, tuple(end for _, end in ends), staged, room.hosted), plan)


def _place_together(
    name: str,
    spec: ModelSpec,
    kind: CacheKind,
    wishes: CacheWishes,
    *,
    cards: CardWishes,
    devices: tuple[torch.device, ...],
    weights: PartBytes,
    parts: Split,
) -> Placed:
    free = tuple(room_on(device, number, cards, usable_memory) for number, device in enumerate(devices))
    room = SharedRoom(free, bytes_of_cards(spec, parts, weights), parts.kv_heads)
    if not room.fits([0] * spec.num_layers):
        needed, there = (" and ".join(f"{size / 2**30:.1f}" for size in sizes) for sizes in (room.weights, free))
        raise ModelError(
            f"{name}: --tensor-parallel {parts.cards} puts {needed} GiB of weights on the cards, which have {there} "
            "GiB free; close other programs, or take fewer bits, a smaller model or more cards"
        )
    plan = plan_cache(name, spec, kind, wishes, room)
    staged = not reach_each_other(devices)
    return Placed(LayerSplit.in_parts(devices, spec.num_layers, parts.kv_heads, staged=staged), plan, parts)


def kinds_of(devices: tuple[torch.device, ...]) -> list[str]:
    """What the sums of the kernels depend on: how many multiprocessors a card has, and which code they run."""
    if devices[0].type == "cpu":
        return ["cpu"] * len(devices)
    found = map(torch.cuda.get_device_properties, devices)
    return [f"{card.major}.{card.minor} {card.multi_processor_count}" for card in found]


def _memory_for_weights() -> int:
    return usable_memory(torch.device("cpu"))


def _why_not(room: Room, devices: tuple[torch.device, ...], cards: CardWishes, shortest: list[int]) -> str:
    """In a line why the weights alone do not fit, and what would.

    Args:
        shortest: bytes of each layer that the shortest cache takes.
    """
    free = " and ".join(f"{size / 2**30:.1f}" for size in room.cards)
    needed = f"needs {room.weights.all / 2**30:.1f} GiB for its weights"
    if room.counts is not None:
        ends: Ends = tuple(enumerate(accumulate(room.counts)))
        none = [0] * len(room.weights.layers)
        full = room.over(ends, none)
        assert full is not None
        used = dict(room.used(ends, none))[full]
        better = Room(room.cards, room.weights).ends(shortest) or ()
        usual = min(counts(better), default=0) > 0 and [card for card, _ in better] == list(range(len(better)))
        shown = f"; --split {_listed(counts(better))} would fit" if usual else ""
        return (
            f"--split {_listed(room.counts)} puts {float(used) / 2**30:.1f} GiB of weights on {devices[full]}, which "
            f"has {room.cards[full] / 2**30:.1f} GiB free{shown or '; take fewer bits or a smaller model'}"
        )
    where = "card memory has" if len(room.cards) == 1 else f"the {len(room.cards)} cards have"
    more = len(room.cards) < torch.cuda.device_count()
    mend = "fewer bits, a smaller model or more cards (--cards)" if more else "fewer bits or a smaller model"
    if room.hosted:
        where = f"{room.weights.hosted(room.hosted) / 2**30:.1f} GiB of them go into the machine's memory; {where}"
    if cards.host_layers is not None:
        mend = f"more --host-layers, {mend}"
    if cards.reserve:
        mend = f"a smaller --reserve, {mend}"
    return f"{needed}, and {where} {free} GiB free; close other programs, or take {mend}"


def _check_layers(split: tuple[int, ...], layers: int) -> None:
    if split and sum(split) != layers:
        half = layers // len(split)
        evenly = (layers - half * (len(split) - 1), *(half,) * (len(split) - 1))
        raise ModelError(
            f"--split {_listed(split)} is {sum(split)} layers; this model has {layers}, as in --split {_listed(evenly)}"
        )


def room_on(device: torch.device, place: int, wishes: CardWishes, usable: Callable[[torch.device], int]) -> int:
    """Bytes of a card for weights and cache; none where it is so full that it cannot even be asked.

    Args:
        place: of the card among those that are used.
        usable: what there is without a reserve.
    """
    reserve, which = wishes.reserve, place if wishes.cards else device.index or 0
    gigabytes = reserve[which if len(reserve) > 1 else 0] if reserve else 0.0
    try:
        return max(usable(device) - int(gigabytes * 2**30), 0)
    except RuntimeError:
        return 0


def _by_speed(there: int) -> tuple[int, ...]:
    """All cards that the kernels run on, the fastest first, and those as fast as each other in the driver's order."""
    driver = ask_driver()
    if there == 1 or len(driver.cards) != there:
        return tuple(range(there))
    fit = [number for number in range(there) if driver.cards[number] >= OLDEST] or list(range(there))
    # A virtual card may tell none.
    fastest = max(driver.speeds[number] for number in fit) or 1
    return tuple(sorted(fit, key=lambda number: round((1 - driver.speeds[number] / fastest) / _ALIKE)))


def alike(devices: tuple[torch.device, ...]) -> bool:
    """Whether cards are about as fast as each other."""
    return len(set(speeds_of(devices))) == 1


def speeds_of(devices: tuple[torch.device, ...]) -> list[float]:
    """Of their memory, in proportion; of cards that are about as fast as each other the same."""
    known = ask_driver().speeds if devices[0].type == "cuda" else []
    speeds = [float(known[device.index]) for device in devices if device.type == "cuda" and device.index < len(known)]
    even = len(speeds) < len(devices) or min(speeds) >= (1 - _ALIKE) * max(speeds)
    return [1.0] * len(devices) if even else speeds


def _shown(there: int) -> str:
    """How many cards there are, and why they may be fewer than the machine has."""
    chosen = os.environ.get(VISIBLE_DEVICES)
    hidden = "" if chosen is None else f" ({VISIBLE_DEVICES}={chosen} hides the others)"
    return f"this program sees {there}{hidden}, counted from 0"


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
