"""A decoder's parts on their cards: each layer is read whole, cut, and sent where its parts belong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from exlchat.engine.cards.split import LayerSplit, placed_on
from exlchat.engine.layers.operations import Operations
from exlchat.engine.layers.quantized_linear import QuantizedLinear, Scratch
from exlchat.engine.layers.transformer import DecoderLayer, Ends, Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.cut import Split, cut_ends, cut_layer, cut_spec
from exlchat.engine.parallel.sums import sums_over_cards
from exlchat.engine.parallel.transformer import ParallelTransformer
from exlchat.ext.exchange import ExchangeKernels

_Part = TypeVar("_Part")


def parallel_transformer(
    spec: ModelSpec,
    ends: Ends,
    layers: Iterable[DecoderLayer],
    parts: Split,
    split: LayerSplit,
    *,
    context: int | None = None,
    operations: Operations | None = None,
    kernels: ExchangeKernels | None = None,
) -> ParallelTransformer:
    """The whole over cards.

    Args:
        ends, layers: whole; layers come one after the other, so that only one of them is whole at a time.
        parts, split: how much each card has, and the cards.
        context, operations: as of `Transformer`.
        kernels: add up over cards.
    """
    places = [(device, Scratch(device)) for device in split.devices]
    around = [_sent(part, *place) for part, place in zip(cut_ends(ends, parts), places, strict=True)]
    own: list[list[DecoderLayer]] = [[] for _ in places]
    # Not by a name, which would hold one layer while the next is read.
    for cut in map(partial(cut_layer, spec, split=parts), layers):
        for so_far, part, place in zip(own, cut, places, strict=True):
            so_far.append(_sent(part, *place))
    specs = [cut_spec(spec, parts, card) for card in range(parts.cards)]
    ranks = [
        Transformer(one, its_ends, its_layers, context=context, operations=operations, part=card)
        for card, (one, its_ends, its_layers) in enumerate(zip(specs, around, own, strict=True))
    ]
    sums = [] if kernels is None else sums_over_cards(kernels, spec, split.devices, staged=split.staged)
    return ParallelTransformer(spec, ranks, split, sums)


def _sent(part: _Part, device: torch.device, scratch: Scratch) -> _Part:
    """The same on a card, with all that it is made of."""
    found: Any = part
    if isinstance(part, Tensor):
        found = placed_on(part, device).contiguous()
    elif isinstance(part, tuple):
        found = tuple(_sent(one, device, scratch) for one in part)
    elif isinstance(part, QuantizedLinear):
        found = replace(part, matrices=_sent(part.matrices, device, scratch), scratch=scratch)
    elif is_dataclass(part):
        known = {field.name: getattr(part, field.name) for field in fields(part) if field.init}
        found = replace(part, **{name: _sent(value, device, scratch) for name, value in known.items()})  # type: ignore[type-var]
    done: _Part = found
    return done
