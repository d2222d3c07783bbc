"""The decoder: embedding, layers of attention and gated MLP, final norm, head.

Any number of tokens on any device: in plain torch, which faster paths are tested against, or on a GPU with quantized
layers and `KernelOperations` between them. A decoded token takes `step_chain` where that suits the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention.bias import causal_lower_right

from exlchat.engine.architecture import ModelSpec
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.kv_cache import KVCache
from exlchat.engine.linear import Joined, Linear, join
from exlchat.engine.operations import Operations, RMSNorm, TorchOperations
from exlchat.engine.quantized_linear import QuantizedLinear
from exlchat.engine.rope import RopeTable


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one layer. `qkv` and `gate_up` are the projections that read the same input, joined."""

    attention_norm: RMSNorm
    qkv: Joined
    output: Linear | QuantizedLinear
    mlp_norm: RMSNorm
    gate_up: Joined
    down: Linear | QuantizedLinear
    query_norm: RMSNorm | None = None
    key_norm: RMSNorm | None = None

    @property
    def bytes(self) -> int:
        """Of all weights of the layer."""
        norms = (self.attention_norm, self.mlp_norm, self.query_norm, self.key_norm)
        small = sum(norm.weight.nbytes for norm in norms if norm is not None)
        return small + self.qkv.bytes + self.output.bytes + self.gate_up.bytes + self.down.bytes


class Transformer:
    """A loaded decoder. `forward` computes in the dtype of the weights and returns float32 logits.

    Args:
        spec: its sizes.
        embedding: `[vocab, hidden]`.
        layers, norm, head: in the order in which a token meets them.
        operations: between the products; plain torch unless given.
    """

    def __init__(
        self,
        spec: ModelSpec,
        embedding: Tensor,
        layers: list[DecoderLayer],
        norm: RMSNorm,
        head: Linear | QuantizedLinear,
        *,
        operations: Operations | None = None,
    ) -> None:
        self.spec = spec
        self.embedding = embedding
        self.layers = layers
        self.norm = norm
        self.head = head
        self.rope = RopeTable(spec.rope, spec.head_dim, embedding.device)
        self._operations = operations or TorchOperations()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """What the decoder computes in."""
        return self.embedding.dtype

    @property
    def bytes(self) -> int:
        """Of all weights; a head that is the embedding counts once."""
        tied = isinstance(self.head, Linear) and self.head.weight is self.embedding
        return self._streamed_bytes + (0 if tied else self.embedding.nbytes)

    @property
    def bytes_per_token(self) -> int:
        """Of the weights, what one decoded token reads: all of them but the embedding, and one row of that."""
        return self._streamed_bytes + self.embedding[0].nbytes

    @property
    def _streamed_bytes(self) -> int:
        return sum(layer.bytes for layer in self.layers) + self.norm.weight.nbytes + self.head.bytes

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache | None = None, *, start: int = 0, last_only: bool = True) -> Tensor:
        """Logits of new tokens.

        Args:
            ids: int64 `[tokens]` at positions `start` and on, on the model's device.
            cache: holds the positions before `start`; those of `ids` are added. Without one, `start` is 0.
            last_only: only the last token's logits.

        Returns:
            float32 `[tokens, vocab]`, or `[1, vocab]`.
        """
        # The residual stream stays in float32, as in the step: in 16 bits its sum of all layers loses most.
        hidden = self.embedding[ids].float()
        turns = self.rope.slice(start, start + len(ids))
        added: Tensor | None = None
        for index, layer in enumerate(self.layers):
            x = self._operations.add_norm(hidden, added, layer.attention_norm)
            added = self._attend(index, x, turns, cache=cache, start=start)
            x = self._operations.add_norm(hidden, added, layer.mlp_norm)
            added = layer.down(self._operations.gate(layer.gate_up(x)))
        if last_only:
            hidden, added = hidden[-1:], None if added is None else added[-1:]
        return self.head(self._operations.add_norm(hidden, added, self.norm)).float()

    def _attend(self, index: int, x: Tensor, turns: Tensor, *, cache: KVCache | None, start: int) -> Tensor:
        spec, layer, tokens = self.spec, self.layers[index], x.shape[0]
        rows = layer.qkv(x).view(tokens, -1, spec.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            queries_end, keys_end = spec.num_heads, spec.num_heads + spec.num_kv_heads
            rows[:, :queries_end] = normed(rows[:, :queries_end], layer.query_norm)
            rows[:, queries_end:keys_end] = normed(rows[:, queries_end:keys_end], layer.key_norm)
        self._operations.turn(rows, turns, spec.num_heads + spec.num_kv_heads)
        heads = rows.transpose(0, 1)
        queries, new = heads[: spec.num_heads], heads[spec.num_heads :].view(2, spec.num_kv_heads, tokens, -1)
        window = spec.windows[index]
        if cache is None:
            mixed = attention(queries, new[0], new[1], window)
        else:
            parts = [
                attention(queries[:, seen.tokens], seen.keys, seen.values, window)
                for seen in cache.append(index, start, new)
            ]
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        return layer.output(mixed.transpose(0, 1).reshape(tokens, -1))


def normed(heads: Tensor, norm: RMSNorm) -> Tensor:
    """Each head of `[tokens, heads, head_dim]` normed by itself, the mean in float32."""
    return (functional.rms_norm(heads.float(), heads.shape[-1:], eps=norm.eps) * norm.weight).to(heads.dtype)


def attention(queries: Tensor, keys: Tensor, values: Tensor, window: int = 0) -> Tensor:
    """Causal attention of the last tokens over all, or over a window.

    Args:
        queries: `[heads, tokens, head_dim]`, the last `tokens` of `length` positions.
        keys, values: `[kv_heads, length, head_dim]`; with a window at least all that the first token sees.
        window: how many tokens each sees, itself included; 0 sees all.

    Returns:
        `[heads, tokens, head_dim]`.
    """
    tokens, length = queries.shape[1], keys.shape[1]
    # One token sees everything. But without a mask a GPU takes cuDNN, which spent 0.4 s on each new length.
    mask: Tensor | None = None if tokens == 1 and not queries.is_cuda else causal_lower_right(tokens, length)
    if window and length > window:
        positions = torch.arange(length, device=keys.device)
        ages = positions[-tokens:, None] - positions
        mask = (ages >= 0) & (ages < window)
    return functional.scaled_dot_product_attention(
        queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=mask, enable_gqa=True
    ).squeeze(0)


def load_transformer(
    spec: ModelSpec,
    loader: LayerLoader,
    has_head: bool,
    tick: Callable[[], None],
    operations: Operations | None = None,
) -> Transformer:
    """Builds a decoder from Llama's tensor names, with those of head norms where there are any.

    Args:
        has_head: whether the checkpoint holds a head of its own; a tied model without one uses the embedding.
        tick: called after the embedding, each layer and the head.
        operations: between the products; plain torch unless given.
    """
    hidden, kv_width = spec.hidden_size, spec.num_kv_heads * spec.head_dim

    def norm(name: str) -> RMSNorm:
        return RMSNorm(loader.tensor(f"{name}.weight", (hidden,)), spec.norm_eps)

    def head_norm(name: str) -> RMSNorm | None:
        return RMSNorm(loader.tensor(f"{name}.weight", (spec.head_dim,)), spec.norm_eps) if spec.head_norms else None

    def joined(keys_outputs: tuple[tuple[str, int], ...], *, bias: bool) -> Joined:
        return join([loader.linear(key, hidden, outputs, bias=bias) for key, outputs in keys_outputs])

    embedding = loader.tensor("model.embed_tokens.weight", (spec.vocab_size, hidden))
    tick()
    layers = []
    for index in range(spec.num_layers):
        prefix = f"model.layers.{index}"
        attn, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        query_width = spec.num_heads * spec.head_dim
        qkv = ((f"{attn}.q_proj", query_width), (f"{attn}.k_proj", kv_width), (f"{attn}.v_proj", kv_width))
        gate_up = ((f"{mlp}.gate_proj", spec.intermediate_size), (f"{mlp}.up_proj", spec.intermediate_size))
        layers.append(
            DecoderLayer(
                attention_norm=norm(f"{prefix}.input_layernorm"),
                qkv=joined(qkv, bias=spec.qkv_bias),
                output=loader.linear(f"{attn}.o_proj", query_width, hidden, bias=spec.output_bias),
                mlp_norm=norm(f"{prefix}.post_attention_layernorm"),
                gate_up=joined(gate_up, bias=spec.mlp_bias),
                down=loader.linear(f"{mlp}.down_proj", spec.intermediate_size, hidden, bias=spec.mlp_bias),
                query_norm=head_norm(f"{attn}.q_norm"),
                key_norm=head_norm(f"{attn}.k_norm"),
            )
        )
        tick()
    final_norm = norm("model.norm")
    head: Linear | QuantizedLinear = Linear(embedding)
    if has_head or not spec.tied_head:
        head = loader.linear("lm_head", hidden, spec.vocab_size, bias=False)
    if isinstance(head, Linear):
        head = loader.float_head(head)
    tick()
    return Transformer(spec, embedding, layers, final_norm, head, operations=operations)
