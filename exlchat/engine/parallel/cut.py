"""A decoder cut for several cards: what each of them has of every matrix.

Queries, keys and values go by key-value heads, and so do the rows of the attention's output. The rows of an MLP's down
go by whole groups, so that no scale is needed twice; those are features inside, and a card's columns of gate and up are
just these. What its attention leaves of a card's share its MLPs make up for. Products of columns are exact; those of
rows are sums to add up over all cards, biases on the first alone. Norms, positions, embedding and residual are on
every card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from exlchat.engine.cards.room import PartBytes
from exlchat.engine.layers.experts import Mlp
from exlchat.engine.layers.linear import Joined, Linear, SideBySide, join, outputs_of
from exlchat.engine.layers.norms import HeadNorm
from exlchat.engine.layers.quantized_linear import QuantizedLinear
from exlchat.engine.layers.transformer import DecoderLayer, Ends
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.matrices import row_groups, take_columns, take_rows
from exlchat.engine.parallel.sums import inbox_bytes
from exlchat.ext.layout import TILE_COLUMNS
from exlchat.llm.info import ModelError


@dataclass(frozen=True, slots=True)
class Split:
    """How cards, which number themselves from 0, share a model.

    Args:
        kv_heads: of each card, one at least.
        shares: which part of every layer's weights each takes as far as its heads allow; they sum to 1.
    """

    kv_heads: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def cards(self) -> int:
        return len(self.shares)


def why_not(spec: ModelSpec) -> str | None:
    """Why a model cannot be cut, or `None` if it can."""
    if spec.experts is not None:
        return "it is a mixture of experts"
    if spec.head_norms == "joint":
        return "it norms the queries of all heads together"
    return None


def bytes_of_cards(spec: ModelSpec, split: Split, weights: PartBytes) -> tuple[int, ...]:
    """What each card's weights take at most, and what it has for what others send it.

    Rows of the attention's output are in groups that share scales, which heads cut through: up to all of them may have
    to lie on every card. And groups of an MLP go round only so evenly.
    """
    heads = 2 * spec.num_heads + 2 * spec.num_kv_heads
    attention = heads * spec.head_dim * spec.hidden_size
    mlp = (3 if spec.gated else 2) * spec.intermediate_size * spec.hidden_size
    layers, output = sum(weights.layers), Fraction(spec.num_heads * spec.head_dim * spec.hidden_size, attention + mlp)
    uneven = Fraction(1, 64)
    found: list[int] = []
    for share in map(Fraction, split.shares):
        parts = layers * (share + (1 - share) * output + uneven) + weights.last * (share + uneven)
        # A head that is the embedding is there twice where that lies on another card.
        again = weights.again * (share + uneven) if found else 0
        found.append(weights.first + int(parts + again) + inbox_bytes(spec, split.cards))
    return tuple(found)


def split_model(spec: ModelSpec, speeds: Sequence[float]) -> Split:
    """Key-value heads dealt to as many cards as there are speeds, in proportion to these.

    Raises:
        ModelError: the model cannot be cut, or not for so many cards.
    """
    cards, heads = len(speeds), spec.num_kv_heads
    if (why := why_not(spec)) is not None:
        raise ModelError(
            f"{spec.architecture} cannot be computed by several cards together: {why}; leave --tensor-parallel out"
        )
    if cards > heads:
        raise ModelError(
            f"--tensor-parallel {cards}: this model has {heads} key-value heads, and each card needs one; take "
            f"{heads} cards at most"
        )
    shares = tuple(speed / sum(speeds) for speed in speeds)
    owners = deal([1] * heads, shares)
    return Split(tuple(owners.count(card) for card in range(cards)), shares)


def deal(costs: Sequence[float], shares: Sequence[float]) -> list[int]:
    """Which card gets each of these, one after the other: whichever lacks most of its share; each gets one at least."""
    cards = range(len(shares))
    has, dealt, owners = [0.0] * len(shares), 0.0, []
    for left, cost in zip(range(len(costs), 0, -1), costs, strict=True):
        dealt += cost
        without = [card for card in cards if not has[card]]
        among = without if len(without) == left else cards
        owner = max(among, key=lambda card: shares[card] * dealt - has[card])
        has[owner] += cost
        owners.append(owner)
    return owners


def cut_spec(spec: ModelSpec, split: Split, card: int) -> ModelSpec:
    """Of one card, whose heads alone are computed and cached there."""
    heads = split.kv_heads[card]
    return replace(spec, num_heads=spec.num_heads // spec.num_kv_heads * heads, num_kv_heads=heads)


def cut_ends(ends: Ends, split: Split) -> list[Ends]:
    """The head by tiles of columns, in the order of the cards; all else is whole."""
    head = ends.head
    tied = isinstance(head, Linear) and _storage(head.weight) == _storage(ends.embedding)
    outputs = outputs_of(head)
    tiles = -(-outputs // TILE_COLUMNS)
    last = [min(round(tiles * part) * TILE_COLUMNS, outputs) for part in accumulate(split.shares)]
    return [replace(ends, head=_cut_head(head, range(*ends_of), tied=tied)) for ends_of in pairwise([0, *last])]


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _cut_head(head: Linear | QuantizedLinear, outputs: range, *, tied: bool) -> Linear | QuantizedLinear:
    if isinstance(head, QuantizedLinear):
        return _quantized_outputs(head, torch.tensor(outputs))
    weight = head.weight[outputs.start : outputs.stop]
    # Of a tied model it is the embedding, which stays whole; any other would stay whole for this part of it.
    part = Linear(weight if tied else weight.clone())
    return part if head.outputs is None else part.in_whole_rows()


def cut_layer(spec: ModelSpec, layer: DecoderLayer, split: Split) -> list[DecoderLayer]:
    """One for each card.

    Raises:
        ModelError: its MLP has fewer groups of rows than there are cards.
    """
    assert why_not(spec) is None
    assert isinstance(layer.mlp, Mlp)
    shares = _mlp_shares(layer.mlp.bytes, layer.qkv.bytes + layer.output.bytes, split)
    heads = pairwise([0, *accumulate(split.kv_heads)])
    return [
        replace(_cut_attention(spec, layer, torch.arange(*own)), mlp=mlp)
        for own, mlp in zip(heads, _cut_mlp(layer.mlp, shares), strict=True)
    ]


def _cut_attention(spec: ModelSpec, layer: DecoderLayer, kv_heads: Tensor) -> DecoderLayer:
    each = spec.num_heads // spec.num_kv_heads
    queries = (kv_heads.unsqueeze(1) * each + torch.arange(each)).flatten()
    heads = torch.cat((queries, spec.num_heads + kv_heads, spec.num_heads + spec.num_kv_heads + kv_heads))
    if layer.head_order is not None:
        heads = layer.head_order.cpu()[heads]
    return replace(
        layer,
        qkv=take_outputs(layer.qkv, _elements(heads, spec.head_dim)),
        output=take_inputs(layer.output, _elements(queries, spec.head_dim), first=bool(kv_heads[0] == 0)),
        query_norm=_cut_norm(layer.query_norm, queries),
        key_norm=_cut_norm(layer.key_norm, kv_heads),
        head_order=None,
        sinks=None if layer.sinks is None else layer.sinks[queries],
    )


def _elements(heads: Tensor, dim: int) -> Tensor:
    return (heads.unsqueeze(1) * dim + torch.arange(dim)).flatten()


def _cut_norm(norm: HeadNorm | None, heads: Tensor) -> HeadNorm | None:
    return norm if norm is None or norm.weight.ndim == 1 else replace(norm, weight=norm.weight[heads])


def _mlp_shares(mlp: int, attention: int, split: Split) -> list[float]:
    """Which part of an MLP each card takes so that it comes to its share of the layer; arguments in bytes."""
    heads = sum(split.kv_heads)
    left = [
        max(share * (mlp + attention) - attention * own / heads, 0.0)
        for share, own in zip(split.shares, split.kv_heads, strict=True)
    ]
    return [part / sum(left) for part in left]


def _cut_mlp(mlp: Mlp, shares: Sequence[float]) -> list[Mlp]:
    groups, costs = _inner_groups(mlp)
    if (most := len(groups)) < len(shares):
        raise ModelError(
            f"--tensor-parallel {len(shares)}: an MLP of this model has {most} groups of weights, and each card needs "
            f"one; take {most} cards at most"
        )
    owners = deal(costs, shares)
    inner, cards = sum(map(len, groups)), []
    for card in range(len(shares)):
        features = torch.cat([group for group, owner in zip(groups, owners, strict=True) if owner == card])
        columns = torch.cat((features, inner + features)) if mlp.gated else features
        down = take_inputs(mlp.down, features, first=card == 0)
        cards.append(replace(mlp, gate_up=take_outputs(mlp.gate_up, columns), down=down))
    return cards


def _inner_groups(mlp: Mlp) -> tuple[list[Tensor], list[float]]:
    """Features inside that go together, in the order in which down has them, and bytes that each costs."""
    down = mlp.down
    if isinstance(down, Linear):
        features = list(torch.split(torch.arange(down.weight.shape[1]), TILE_COLUMNS))
        return features, [float(len(some)) for some in features]
    (matrix,) = down.matrices
    groups, each = row_groups(matrix), mlp.gate_up.bytes / matrix.features
    costs = [len(group.features) * each + group.bits * matrix.outputs / 8 for group in groups]
    return [group.features.cpu() for group in groups], costs


def take_outputs(part: Joined, columns: Tensor) -> Joined:
    """A layer with columns `[n]` of its own, in that order, in which those of one matrix come behind the last's."""
    if isinstance(part, Linear):
        return Linear(part.weight[columns], None if part.bias is None else part.bias[columns])
    if isinstance(part, QuantizedLinear):
        return _quantized_outputs(part, columns)
    widths = [sum(one.outputs) if isinstance(one, QuantizedLinear) else len(one.weight) for one in part.parts]
    taken = [take_outputs(one, own) for one, own in zip(part.parts, _by_part(columns, widths), strict=True)]
    return join([one for one in taken if not isinstance(one, SideBySide)])


def _quantized_outputs(layer: QuantizedLinear, columns: Tensor) -> QuantizedLinear:
    own = list(_by_part(columns, layer.outputs))
    matrices = tuple(take_columns(matrix, some) for matrix, some in zip(layer.matrices, own, strict=True))
    return replace(layer, matrices=matrices, outputs=tuple(map(len, own)))


def _by_part(columns: Tensor, widths: Sequence[int]) -> Iterator[Tensor]:
    for start, end in pairwise([0, *accumulate(widths)]):
        yield columns[(columns >= start) & (columns < end)] - start


def take_inputs(layer: Linear | QuantizedLinear, features: Tensor, *, first: bool) -> Linear | QuantizedLinear:
    """A layer that reads features `[n]` alone, in that order.

    Args:
        first: it is the one that adds the bias.
    """
    if isinstance(layer, Linear):
        return Linear(layer.weight[:, features], layer.bias if first else None)
    (matrix,) = layer.matrices
    part = take_rows(matrix, features)
    return replace(layer, matrices=(part if first else replace(part, bias=None),))
