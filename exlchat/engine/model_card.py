"""What a model folder holds and whether it fits, from its JSON files and headers: no weight is read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from exlchat.engine.cards.room import Room
from exlchat.engine.formats.inventory import (
    describe_format,
    is_quantized,
    parameter_count,
    stored_bits,
    weight_sizes,
)
from exlchat.engine.kv.budget import CacheWishes, plan_cache
from exlchat.engine.kv.sizes import cache_kind
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.placement import choose_device, dtypes_for, room_without_models
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import FitReport, ModelCard, ModelError


@dataclass(frozen=True, slots=True)
class Here:
    """Where models would be loaded.

    Args:
        device: with its index.
        room: bytes for weights and cache, once the models that this program holds now are gone.
        stays_quantized: whether quantized layers keep their bits there.
    """

    device: torch.device
    room: int
    stays_quantized: bool


def look_around(device: str = "auto", *, extension: bool = True) -> Here:
    """The device that `load` would take, and the room there.

    Raises:
        ModelError: there is no such device.
    """
    chosen = choose_device(device)
    return Here(chosen, room_without_models(chosen), extension and chosen.type == "cuda")


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
    sizes = weight_sizes(checkpoint, stay_quantized=quantized)
    dtypes = dtypes_for(checkpoint, here.device)
    weights = next((size for size in map(sizes.bytes, dtypes) if size <= here.room), sizes.bytes(dtypes[-1]))
    if weights > here.room:
        return FitReport(weights, 0, f"its weights take {weights / 2**30:.1f} GiB of {here.room / 2**30:.1f} free")
    try:
        plan = plan_cache("", spec, cache_kind(spec, kv_cache), wishes, Room((here.room - weights,)))
    except ModelError as error:
        return FitReport(weights, 0, str(error).removeprefix(": "))
    return FitReport(weights, plan.context, None)


def _bytes_on_disk(folder: Path) -> int:
    """Of the files in the folder itself; links count as what they lead to."""
    try:
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    except OSError:
        return 0
