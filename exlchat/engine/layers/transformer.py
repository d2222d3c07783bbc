"""The decoder: embedding, layers of attention and MLP, final norm, head; every architecture's, by its `ModelSpec`.

Any number of tokens on any device: in plain torch, which faster paths are tested against, or on a GPU with quantized
layers and `KernelOperations` between them. A decoded token takes `decode.graphs` where that suits the model, a short
prompt `decode.prompts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from exlchat.engine.cards.host_memory import HostMemory
from exlchat.engine.cards.split import LayerSplit, current
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.attention import Rules, attention
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Joined, Linear, multiplied, outputs_of, permutation_of
from exlchat.engine.layers.norms import HeadNorm, Norm
from exlchat.engine.layers.operations import Operations, TorchOperations
from exlchat.engine.layers.quantized_linear import Permuted, QuantizedLinear
from exlchat.engine.layers.rope import RopeTable
from exlchat.engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer. `qkv` is the projections to queries, keys and values, joined.

    Args:
        attention_norm, mlp_norm: of what attention and MLP read; none where they read the residual as it is, and no
            `mlp_norm` where both read the same.
        attention_post_norm, mlp_post_norm: of what they add.
        head_order: int64 `[heads]`, where `qkv` has each head that queries, keys and values have in that order.
        sinks: see `attention.Rules`.
    """

    qkv: Joined
    output: Linear | QuantizedLinear
    mlp: Mlp | Experts
    attention_norm: Norm | None = None
    mlp_norm: Norm | None = None
    attention_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None
    query_norm: HeadNorm | None = None
    key_norm: HeadNorm | None = None
    head_order: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def bytes(self) -> int:
        return self._small + self.qkv.bytes + self.output.bytes + self.mlp.bytes

    @property
    def bytes_per_token(self) -> int:
        return self._small + self.qkv.bytes + self.output.bytes + self.mlp.bytes_per_token

    @property
    def movable_per_token(self) -> int:
        """Of what a token reads, what may lie in the machine's memory."""
        if isinstance(self.mlp, Experts):
            return self.mlp.bytes_of_chosen
        return self.qkv.bytes + self.output.bytes + self.mlp.bytes

    @property
    def _small(self) -> int:
        norms = (self.attention_norm, self.mlp_norm, self.attention_post_norm, self.mlp_post_norm)
        of_heads = (self.query_norm, self.key_norm)
        small = sum(norm.bytes for norm in norms if norm is not None)
        small += sum(norm.weight.nbytes for norm in of_heads if norm is not None)
        return small + (0 if self.sinks is None else self.sinks.nbytes)


@dataclass(frozen=True, slots=True)
class Ends:
    """What stands around the layers.

    Args:
        embedding: `[vocab, hidden]`.
        positions: `[max_position_embeddings, hidden]`, added to the embedding where the model learned them.
    """

    embedding: Tensor
    norm: Norm
    head: Linear | QuantizedLinear
    positions: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """What the positions of a pass do to queries and keys.

    Args:
        turns: of each of the model's ropes, float32 `[tokens, dim / 2, 2]`.
        scales: by which each of them multiplies queries, float32 `[tokens]`, where it does.
    """

    turns: list[Tensor]
    scales: list[Tensor | None]


@dataclass(slots=True)
class Stream:
    """What a pass carries from layer to layer.

    Args:
        hidden: the residual stream, float32 `[tokens, hidden]`.
        added: what the last half of a layer gives, which the next norm adds, by way of the norm `after`.
        normed: what attention read, for an MLP that reads the same.
    """

    hidden: Tensor
    added: Tensor | None = None
    after: Norm | None = None
    normed: Tensor | None = None

    def keep_last(self) -> None:
        """Of all tokens the last alone."""
        self.hidden = self.hidden[-1:]
        self.added = None if self.added is None else self.added[-1:]


class Transformer:
    """A loaded decoder. `forward` computes in the dtype of the weights and returns float32 logits.

    Args:
        spec: its sizes.
        ends, layers: its weights.
        context: the most tokens that a sequence will have; as many as the model was made for unless given.
        operations: between the products; plain torch unless given.
        split: the cards of the layers; all where the embedding is unless given.
        hosts: the machine's memory of those cards that read weights there.
        part: which card's part of every layer this is, where cards have one each.
    """

    def __init__(
        self,
        spec: ModelSpec,
        ends: Ends,
        layers: Sequence[DecoderLayer],
        *,
        context: int | None = None,
        operations: Operations | None = None,
        split: LayerSplit | None = None,
        hosts: Sequence[HostMemory] = (),
        part: int = 0,
    ) -> None:
        self.spec = spec
        self.ends = ends
        self.layers = layers
        self.hosts = hosts
        self.part = part
        self.split = split or LayerSplit.on(ends.embedding.device, spec.num_layers)
        self._context = context or spec.max_position_embeddings
        self._operations = operations or TorchOperations(ends.embedding.dtype)

    @cached_property
    def ropes(self) -> list[list[RopeTable]]:
        """Of each card."""
        spec, length = self.spec, self._context
        return [[RopeTable(rope, length, device) for rope in spec.ropes] for device in self.split.devices]

    @property
    def embedding(self) -> Tensor:
        """`[vocab, hidden]`."""
        return self.ends.embedding

    @property
    def norm(self) -> Norm:
        return self.ends.norm

    @property
    def head(self) -> Linear | QuantizedLinear:
        return self.ends.head

    @property
    def outputs(self) -> int:
        """Logits of the head, or of this part of it."""
        return outputs_of(self.head)

    @property
    def device(self) -> torch.device:
        """Where ids go in; logits come out on the last card of `split`."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @property
    def bytes(self) -> int:
        """Of all weights; a head that is the embedding counts once."""
        tied = isinstance(self.head, Linear) and self.head.weight is self.embedding
        around = self._ends_bytes + (0 if tied else self.embedding.nbytes)
        positions = 0 if self.ends.positions is None else self.ends.positions.nbytes
        return sum(layer.bytes for layer in self.layers) + around + positions

    @property
    def bytes_per_token(self) -> int:
        """Of the weights, what one decoded token reads: not all of the embedding, nor of the experts."""
        return sum(layer.bytes_per_token for layer in self.layers) + self._ends_bytes + self.embedding[0].nbytes

    @property
    def hosted_bytes_per_token(self) -> int:
        """Of those, what lies in the machine's memory."""
        split = self.split
        return sum(layer.movable_per_token for index, layer in enumerate(self.layers) if split.is_hosted(index))

    @property
    def _ends_bytes(self) -> int:
        return self.norm.bytes + self.head.bytes

    def check(self) -> None:
        """Raises what a failed card does where what has ended was computed without one of several.

        Nothing that is computed from then on is to be trusted: the model has to be loaded again.
        """

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, cache: KVSequence | None = None, *, start: int = 0, last_only: bool = True
    ) -> Tensor:
        """Logits of new tokens.

        Args:
            ids: int64 `[tokens]` at positions `start` and on, on the model's device.
            cache: holds the positions before `start`; those of `ids` are added. Without one, `start` is 0.
            last_only: only the last token's logits.

        Returns:
            float32 `[tokens, vocab]`, or `[1, vocab]`.
        """
        return self.logits(self.features(ids, cache, start=start, last_only=last_only))

    @torch.inference_mode()
    def features(
        self, ids: Tensor, cache: KVSequence | None = None, *, start: int = 0, last_only: bool = False
    ) -> Tensor:
        """What the head makes logits of: `[tokens, hidden]`, or `[1, hidden]`. Arguments as of `forward`."""
        stream = Stream(self.embed(ids, start))
        for card, device in enumerate(self.split.devices):
            with current(device):
                if card:
                    stream.hidden = self.split.moved(stream.hidden, device)
                places = self.places(start, start + len(ids), card)
                for index in self.split.layers(card):
                    self.layer(index, stream, places, cache, start)
                if card + 1 < len(self.split.devices):
                    # The norm of what the last layer gave lies on this card.
                    self.settle(stream)
        if last_only:
            stream.keep_last()
        with current(self.split.last):
            return self.finish(stream)

    @torch.inference_mode()
    def logits(self, x: Tensor) -> Tensor:
        """`[tokens, hidden]` of `features` -> float32 `[tokens, vocab]`."""
        with current(self.split.last):
            return self.scores(x)

    def scores(self, x: Tensor) -> Tensor:
        """What `logits` gives, which gradients can be taken of."""
        logits = self.head(x).float()
        if self.spec.logit_scale != 1.0:
            logits = logits * self.spec.logit_scale
        cap = self.spec.logit_softcap
        return cap * torch.tanh(logits / cap) if cap else logits

    # The parts of `features`: `decode.prompts` captures all but the attention, the converter takes layer by layer.

    def embed(self, ids: Tensor, start: int) -> Tensor:
        """float32 `[tokens, hidden]`."""
        # The residual stream stays in float32, as in the step: in 16 bits its sum of all layers loses most.
        hidden = self.embedding[ids].float()
        if self.spec.embedding_scale != 1.0:
            hidden *= self.spec.embedding_scale
        if self.ends.positions is not None:
            hidden += self.ends.positions[start : start + len(ids)]
        return hidden

    def places(self, start: int, end: int, card: int = 0) -> Places:
        ropes, scaled = self.ropes[card], [rope.query_beta != 0 for rope in self.spec.ropes]
        return Places(
            [rope.slice(start, end) for rope in ropes],
            [rope.query_scales(start, end) if own else None for rope, own in zip(ropes, scaled, strict=True)],
        )

    def layer(
        self, index: int, stream: Stream, places: Places, cache: KVSequence | None = None, start: int = 0
    ) -> None:
        rows = self.heads(index, stream, places)
        self.finish_layer(index, stream, self.attend(index, rows, cache, start).flatten(1))

    def settle(self, stream: Stream) -> None:
        """Has the residual stream take what the last layer gave, which else the next norm does."""
        self._add_norm(stream, None)
        stream.added = stream.after = None

    def heads(self, index: int, stream: Stream, places: Places) -> Tensor:
        """`[tokens, heads, head_dim]`: a layer's queries, keys and values, normed and turned to their places."""
        spec, rows = self.spec, self.unturned_heads(index, stream, places)
        rope = spec.layer_ropes[index]
        if rope is not None:
            count = spec.num_heads + spec.num_kv_heads
            self._operations.turn(rows, places.turns[rope], count, interleaved=spec.interleaved)
        return rows

    def unturned_heads(self, index: int, stream: Stream, places: Places) -> Tensor:
        """The same for an attention that turns what it reads."""
        spec, layer = self.spec, self.layers[index]
        x = self._normed_for(stream, layer.attention_norm, layer.qkv)
        stream.normed = x if isinstance(x, Tensor) and spec.parallel else None
        rows = multiplied(layer.qkv, x).view(len(stream.hidden), -1, spec.head_dim)
        if layer.head_order is not None:
            rows = rows[:, layer.head_order]
        queries_end, keys_end = spec.num_heads, spec.num_heads + spec.num_kv_heads
        if layer.query_norm is not None and layer.key_norm is not None:
            rows[:, :queries_end] = layer.query_norm(rows[:, :queries_end])
            rows[:, queries_end:keys_end] = layer.key_norm(rows[:, queries_end:keys_end])
        rope = spec.layer_ropes[index]
        if rope is not None and (scales := places.scales[rope]) is not None:
            rows[:, :queries_end] *= scales.to(rows.dtype).view(-1, 1, 1)
        return rows

    def attend(self, index: int, rows: Tensor, cache: KVSequence | None, start: int) -> Tensor:
        """`[tokens, heads, head_dim]` of what `heads` gave, whose keys and values are stored."""
        spec, tokens = self.spec, rows.shape[0]
        heads = rows.transpose(0, 1)
        queries, new = heads[: spec.num_heads], heads[spec.num_heads :].view(2, spec.num_kv_heads, tokens, -1)
        rules = Rules(spec.attention_scale, spec.windows[index], spec.attention_softcap, self.layers[index].sinks)
        if cache is None:
            mixed = attention(queries, new[0], new[1], rules)
        else:
            parts = [
                attention(queries[:, seen.tokens], seen.keys, seen.values, rules)
                for seen in cache.append(index, start, new, self.part)
            ]
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return mixed.transpose(0, 1)

    def finish_layer(self, index: int, stream: Stream, mixed: Tensor | Permuted) -> None:
        """What comes behind the attention, of `[tokens, heads * head_dim]`."""
        self.mix(index, stream, mixed)
        self.feed(index, stream)

    def mix(self, index: int, stream: Stream, mixed: Tensor | Permuted) -> None:
        """What the attention adds, of `[tokens, heads * head_dim]`."""
        layer = self.layers[index]
        stream.added, stream.after = multiplied(layer.output, mixed), layer.attention_post_norm

    def feed(self, index: int, stream: Stream) -> None:
        """What the MLP adds, to what the attention does where both read the same."""
        layer = self.layers[index]
        if stream.normed is not None:
            assert stream.added is not None
            stream.added, stream.after = stream.added + layer.mlp(stream.normed, self._operations), None
            return
        if isinstance(layer.mlp, Mlp):
            x = self._normed_for(stream, layer.mlp_norm, layer.mlp.gate_up)
            stream.added = layer.mlp(x, self._operations)
        else:
            stream.added = layer.mlp(self._add_norm(stream, layer.mlp_norm), self._operations)
        stream.after = layer.mlp_post_norm

    def finish(self, stream: Stream) -> Tensor:
        """What the head reads."""
        return self._add_norm(stream, self.norm)

    def _add_norm(self, stream: Stream, norm: Norm | None) -> Tensor:
        x = self._normed(stream, norm, None)
        assert isinstance(x, Tensor)
        return x

    def _normed_for(self, stream: Stream, norm: Norm | None, reader: Joined) -> Tensor | Permuted:
        """For a product that alone reads it."""
        return self._normed(stream, norm, None if self.spec.parallel else permutation_of(reader, len(stream.hidden)))

    def _normed(self, stream: Stream, norm: Norm | None, permutation: Tensor | None) -> Tensor | Permuted:
        scale = self.spec.residual_scale
        return self._operations.add_norm(
            stream.hidden, stream.added, norm, after=stream.after, scale=scale, permutation=permutation
        )
