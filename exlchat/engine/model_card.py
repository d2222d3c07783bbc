"""What a model folder holds and whether it fits, from its JSON files and headers: no weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from exlchat.engine.card_choice import alike, choose_devices, room_on, speeds_of
from exlchat.engine.cards.room import PartBytes, Room, SharedRoom, counts
from exlchat.engine.formats.inventory import (
    describe_format,
    is_quantized,
    parameter_count,
    part_bytes,
    stored_bits,
)
from exlchat.engine.host_layers import with_host_layers
from exlchat.engine.kv.budget import CacheWishes, bytes_of_layers, fewest, plan_cache
from exlchat.engine.kv.sizes import cache_kind
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.cut import bytes_of_cards, split_model
from exlchat.engine.placement import dtypes_for, room_without_models
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.kv_formats import CacheKind
from exlchat.llm.cards import ANY_CARDS, CardWishes
from exlchat.llm.info import FitReport, ModelCard, ModelError


@dataclass(frozen=True, slots=True)
class Here:
    """Where models would be loaded.

    Args:
        device: with its index, the first of them.
        room: bytes of each for weights and cache, once the models that this program holds now are gone.
        stays_quantized: whether quantized layers keep their bits there.
        even: see `Room`.
        memory: bytes of the machine's memory for weights that the cards have no room for.
        host_layers: how many are wished for there.
        speeds: of cards that compute every layer together.
    """

    device: torch.device
    room: tuple[int, ...]
    stays_quantized: bool
    even: bool = False
    memory: int = 0
    host_layers: int | None = None
    speeds: tuple[float, ...] = ()


def look_around(device: str = "auto", *, cards: CardWishes = ANY_CARDS, extension: bool = True) -> Here:
    """The devices that `load` would take, and the room there.

    Raises:
        ModelError: there is no such device.
    """
    devices = choose_devices(device, cards)
    room = tuple(room_on(one, number, cards, room_without_models) for number, one in enumerate(devices))
    on_card = devices[0].type == "cuda"
    memory = room_without_models(torch.device("cpu")) if on_card else 0
    even = on_card and alike(devices)
    speeds = tuple(speeds_of(devices)) if cards.tensor_parallel > 1 else ()
    return Here(devices[0], room, extension and on_card, even, memory, cards.host_layers, speeds)


def describe(
    folder: Path, here: Here, *, context: int | None = None, kv_cache: str = "fp16", tokens: int | None = None
) -> ModelCard:
    """The card of one folder. Whatever is wrong with the folder is a line on the card, never an exception.

    Args:
        folder: of the model.
        here: where it would be loaded.
        context: the longest prompt plus answer that is wanted; the model's own, at most 32768, unless given.
        kv_cache: how keys and values would be stored; a kind of `KINDS`.
        tokens: how many tokens the cache is to hold in all; at least one context unless given.
    """
    card = ModelCard(str(folder), _bytes_on_disk(folder))
    try:
        checkpoint = Checkpoint(folder)
        spec = read_spec(checkpoint.config, str(folder / "config.json"))
        parameters = parameter_count(checkpoint)
        return ModelCard(
            str(folder),
            card.bytes,
            spec.architecture,
            describe_format(checkpoint),
            parameters,
            stored_bits(checkpoint) / parameters if parameters else 0.0,
            spec.max_position_embeddings,
            _fit(checkpoint, spec, here, CacheWishes(context, tokens), kv_cache),
        )
    except ModelError as error:
        return ModelCard(card.path, card.bytes, problem=str(error))
    except (OSError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Headers may hold anything: names that belong to no layer, shapes that are none.
        line = (str(error).splitlines() or [""])[0]
        return ModelCard(card.path, card.bytes, problem=f"{folder}: cannot be understood ({line}); download it again")


def _fit(checkpoint: Checkpoint, spec: ModelSpec, here: Here, wishes: CacheWishes, kv_cache: str) -> FitReport:
    """By the arithmetic that loading uses; on the CPU, where pages are taken as they are needed, as if all were."""
    quantized = here.stays_quantized and is_quantized(checkpoint)
    kind, none = cache_kind(spec, kv_cache), [0] * spec.num_layers
    for dtype in dtypes_for(checkpoint, here.device):
        weights = part_bytes(checkpoint, spec.num_layers, dtype, stay_quantized=quantized)
        if here.speeds:
            return _fit_together(spec, here, wishes, kind, weights)
        room = Room(here.room, weights, even=here.even)
        try:
            room = with_host_layers(spec, kind, wishes, room, wanted=here.host_layers, memory=lambda: here.memory)
        except ModelError as error:
            return FitReport(weights.all, 0, str(error))
        if room.fits(none):
            break
    else:
        free = " and ".join(f"{size / 2**30:.1f}" for size in here.room)
        return FitReport(weights.all, 0, f"its weights take {weights.all / 2**30:.1f} GiB of {free} free")
    try:
        room = fewest(spec, kind, wishes, room)
        plan = plan_cache("", spec, kind, wishes, room)
    except ModelError as error:
        return FitReport(weights.all, 0, str(error).removeprefix(": "))
    ends = room.ends(bytes_of_layers(spec, kind, plan))
    assert ends is not None
    return FitReport(weights.all, plan.context, None, counts(ends), room.hosted)


def _fit_together(spec: ModelSpec, here: Here, wishes: CacheWishes, kind: CacheKind, weights: PartBytes) -> FitReport:
    """On cards that compute every layer together."""
    try:
        parts = split_model(spec, here.speeds)
        room = SharedRoom(here.room, bytes_of_cards(spec, parts, weights), parts.kv_heads)
        plan = plan_cache("", spec, kind, wishes, room)
    except ModelError as error:
        return FitReport(weights.all, 0, str(error).removeprefix(": "))
    return FitReport(weights.all, plan.context, None, (spec.num_layers,) * parts.cards, together=True)


def _bytes_on_disk(folder: Path) -> int:
    """Of the files in the folder itself; links count as what they lead to."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return 0
