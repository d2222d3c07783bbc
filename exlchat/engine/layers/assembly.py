"""A decoder from a checkpoint's tensors, by the names of `tensor_names`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from exlchat.engine.cards.host_memory import HostMemory
from exlchat.engine.cards.split import LayerSplit, current, placed_on
from exlchat.engine.decode.experts import ExpertRows, UnfitError, pack_experts
from exlchat.engine.decode.kernels import ModelKernels
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.layers.experts import Experts, Mlp, SharedExpert
from exlchat.engine.layers.hosting import hosted, hosted_experts, hosted_linear, hosted_mlp
from exlchat.engine.layers.linear import Joined, Linear, join
from exlchat.engine.layers.norms import HeadNorm, Norm
from exlchat.engine.layers.operations import Operations
from exlchat.engine.layers.quantized_linear import QuantizedLinear, split_quantized
from exlchat.engine.layers.transformer import DecoderLayer, Ends, Transformer
from exlchat.engine.model.spec import ExpertSpec, ModelSpec


def load_transformer(
    spec: ModelSpec,
    loader: LayerLoader,
    has_head: bool,
    tick: Callable[[], None],
    operations: Operations | None = None,
    *,
    context: int | None = None,
    split: LayerSplit | None = None,
) -> Transformer:
    """Reads all weights, tensor by tensor.

    Args:
        has_head: whether the checkpoint holds a head of its own; a tied model without one uses the embedding.
        tick: called after the ends, each layer and the whole.
        operations: between the products; plain torch unless given.
        context: the most tokens that a sequence will have; as many as the model was made for unless given.
        split: the cards of the layers; all on the loader's device, which else is the first of them, unless given.
    """
    split = split or LayerSplit.on(loader.device, spec.num_layers)
    loaders = [loader, *(loader.on(device) for device in split.devices[1:])]
    ends = load_ends(spec, loader, has_head, last=loaders[-1])
    tick()
    layers: dict[int, DecoderLayer] = {}
    hosts = []
    for card, one in enumerate(loaders):
        memory = HostMemory(split.devices[card])
        with current(memory.device):
            # Those of the machine's memory come to be on the card, which has most room for that at first.
            for index in sorted(split.layers(card), key=lambda index: not split.is_hosted(index)):
                layers[index] = load_layer(spec, one, index, memory if split.is_hosted(index) else None)
                tick()
        hosts += [memory] if memory.bytes else []
    tick()
    ordered = [layers[index] for index in range(spec.num_layers)]
    return Transformer(spec, ends, ordered, context=context, operations=operations, split=split, hosts=hosts)


def load_ends(spec: ModelSpec, loader: LayerLoader, has_head: bool, *, last: LayerLoader | None = None) -> Ends:
    """What stands around the layers; arguments as of `load_transformer`.

    Args:
        last: of the card that the norm and the head go to; `loader` unless given.
    """
    last = last or loader
    embedding = loader.tensor("model.embed_tokens.weight", (spec.vocab_size, spec.hidden_size))
    positions = None
    if spec.learned_positions:
        positions = loader.tensor("model.embed_positions.weight", (spec.max_position_embeddings, spec.hidden_size))
    norm = _Weights(spec, last).norm("model.norm")
    with current(last.device):
        head: Linear | QuantizedLinear
        if has_head or not spec.tied_head:
            head = last.linear("lm_head", spec.hidden_size, spec.vocab_size, bias=False)
        else:
            head = Linear(placed_on(embedding, last.device))
        if isinstance(head, Linear):
            head = last.float_head(head)
    return Ends(embedding, norm, head, positions)


def load_layer(spec: ModelSpec, loader: LayerLoader, index: int, memory: HostMemory | None = None) -> DecoderLayer:
    """One layer on the loader's device; with `memory` its matrices lie there, of a mixture its experts."""
    layer = _Weights(spec, loader, memory).layer(index)
    if memory is None or isinstance(layer.mlp, Experts):
        return layer
    return replace(
        layer,
        qkv=hosted(layer.qkv, memory),
        output=hosted_linear(layer.output, memory),
        mlp=hosted_mlp(layer.mlp, memory),
    )


_Part = TypeVar("_Part", Joined, Linear | QuantizedLinear)


class _Weights:
    def __init__(self, spec: ModelSpec, loader: LayerLoader, memory: HostMemory | None = None) -> None:
        self._spec = spec
        self._loader = loader
        self._memory = memory

    def layer(self, index: int) -> DecoderLayer:
        spec, prefix = self._spec, f"model.layers.{index}"
        attention = f"{prefix}.self_attn"
        before, after = spec.norm_before, spec.norm_after
        return DecoderLayer(
            qkv=self._qkv(attention),
            output=self._linear(
                f"{attention}.o_proj", spec.num_heads * spec.head_dim, spec.hidden_size, bias=spec.output_bias
            ),
            mlp=self._mlp_of(index),
            attention_norm=self.norm(f"{prefix}.input_layernorm") if before else None,
            mlp_norm=self.norm(f"{prefix}.post_attention_layernorm") if before and not spec.parallel else None,
            attention_post_norm=self.norm(f"{prefix}.attention_post_norm") if after else None,
            mlp_post_norm=self.norm(f"{prefix}.mlp_post_norm") if after else None,
            query_norm=self._head_norm(f"{attention}.q_norm", spec.num_heads),
            key_norm=self._head_norm(f"{attention}.k_norm", spec.num_kv_heads),
            head_order=self._head_order(attention),
            sinks=self._loader.tensor(f"{attention}.sinks", (spec.num_heads,)) if spec.sinks else None,
        )

    def norm(self, name: str) -> Norm:
        spec, shape = self._spec, (self._spec.hidden_size,)
        weight = self._offset(self._loader.tensor(f"{name}.weight", shape))
        bias = self._loader.tensor(f"{name}.bias", shape) if spec.norm_bias else None
        return Norm(weight, spec.norm_eps, spec.norm_kind, bias)

    def _offset(self, weight: Tensor) -> Tensor:
        if not self._spec.norm_offset:
            return weight
        offset = weight.float() + self._spec.norm_offset
        # bfloat16 has three digits fewer near 1 than a small weight has; the kernels, of float16, want that.
        return offset.half() if weight.dtype == torch.float16 else offset

    def _head_norm(self, name: str, heads: int) -> HeadNorm | None:
        """EXL2's own converter repeats a norm that all heads share for each of them: such rows are one again."""
        spec = self._spec
        if spec.head_norms == "none":
            return None
        of_all, of_each = (spec.head_dim,), (heads, spec.head_dim)
        shapes = ((heads * spec.head_dim,),) if spec.head_norms == "joint" else (of_all, of_each)
        weight = self._offset(self._loader.tensor(f"{name}.weight", *shapes))
        if weight.shape == of_each and bool((weight == weight[0]).all()):
            weight = weight[0]
        return HeadNorm(spec.head_norms, weight, spec.norm_eps)

    def _linear(self, key: str, features: int, outputs: int, *, bias: bool) -> Linear | QuantizedLinear:
        return self._loader.linear(key, features, outputs, bias=bias, transposed=self._spec.transposed)

    def _qkv(self, attention: str) -> Joined:
        spec, hidden = self._spec, self._spec.hidden_size
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        if self._is_joint(attention, "qkv_proj", ("q_proj", "k_proj", "v_proj")):
            return self._linear(f"{attention}.qkv_proj", hidden, queries + 2 * keys, bias=spec.qkv_bias)
        widths = (("q_proj", queries), ("k_proj", keys), ("v_proj", keys))
        return join([self._linear(f"{attention}.{name}", hidden, width, bias=spec.qkv_bias) for name, width in widths])

    def _is_joint(self, prefix: str, joint: str, parts: Sequence[str]) -> bool:
        """Whether layers are one in the file; where it has none of them, whether they are in the model's other layers.

        So the one that is missing is told by its name.
        """
        if self._loader.has(f"{prefix}.{joint}") or any(self._loader.has(f"{prefix}.{part}") for part in parts):
            return self._loader.has(f"{prefix}.{joint}")
        inside = prefix.removeprefix("model.layers.").partition(".")[2]
        layers = range(self._spec.num_layers)
        return any(self._loader.has(f"model.layers.{index}.{inside}.{joint}") for index in layers)

    def _head_order(self, attention: str) -> Tensor | None:
        """Queries, then keys, then values, where the file has them key-value head by key-value head."""
        spec = self._spec
        if not (spec.heads_by_group and self._loader.has(f"{attention}.qkv_proj")):
            return None
        each = spec.num_heads // spec.num_kv_heads
        groups = torch.arange(spec.num_kv_heads * (each + 2)).view(spec.num_kv_heads, -1)
        order = torch.cat((groups[:, :each].flatten(), groups[:, each], groups[:, each + 1]))
        return order.to(self._loader.device)

    def _mlp_of(self, index: int) -> Mlp | Experts:
        spec, prefix = self._spec, f"model.layers.{index}.mlp"
        if spec.experts is None or not spec.experts.layers[index]:
            return self._mlp(prefix, spec.intermediate_size, bias=spec.mlp_bias)
        return self._experts(prefix, spec.experts)

    def _mlp(self, prefix: str, inner: int, *, bias: bool) -> Mlp:
        spec, hidden = self._spec, self._spec.hidden_size
        down = self._linear(f"{prefix}.down_proj", inner, hidden, bias=bias)
        if self._is_joint(prefix, "gate_up_proj", ("gate_proj", "up_proj")):
            gate_up: Joined = self._linear(f"{prefix}.gate_up_proj", hidden, 2 * inner, bias=bias)
            if isinstance(gate_up, QuantizedLinear):
                gate_up = split_quantized(gate_up, (inner, inner))
        else:
            names = ("gate_proj", "up_proj") if spec.gated else ("up_proj",)
            gate_up = join([self._linear(f"{prefix}.{name}", hidden, inner, bias=bias) for name in names])
        return Mlp(gate_up, down, spec.activation, spec.gated)

    def _expert(self, prefix: str, inner: int) -> Mlp:
        expert = self._mlp(prefix, inner, bias=False)
        return replace(expert, gate_up=_unprepared(expert.gate_up), down=_unprepared(expert.down))

    def _experts(self, prefix: str, experts: ExpertSpec) -> Experts:
        hidden = self._spec.hidden_size
        router = self._float(f"{prefix}.router", hidden, experts.count, bias=experts.bias)
        if experts.stacked:
            parts = self._stacked(f"{prefix}.experts", experts)
        else:
            parts = tuple(self._expert(f"{prefix}.experts.{number}", experts.inner) for number in range(experts.count))
        parts = _one_behind_the_other(parts)
        shared = None
        if experts.shared_inner:
            gate = self._float(f"{prefix}.shared_expert_gate", hidden, 1, bias=False)
            shared = SharedExpert(self._mlp(f"{prefix}.shared_expert", experts.shared_inner, bias=False), gate)
        found = Experts(router, parts, experts.chosen, experts.renormalise, shared)
        if self._memory is not None:
            return hosted_experts(found, self._memory, partial(_together, kernels=self._loader.kernels))
        return _together(found, self._loader.kernels)

    def _float(self, key: str, features: int, outputs: int, *, bias: bool) -> Linear:
        """A layer whose weights decide between experts: small, and as a rule stored as floats."""
        return self._loader.float_linear(key, features, outputs, bias=bias)

    def _stacked(self, prefix: str, experts: ExpertSpec) -> tuple[Mlp, ...]:
        """All experts of a layer in one tensor, gates and ups taking turns (gpt-oss)."""
        spec, hidden, inner = self._spec, self._spec.hidden_size, experts.inner
        gate_ups = self._loader.stacked(f"{prefix}.gate_up_proj", experts.count, hidden, 2 * inner)
        downs = self._loader.stacked(f"{prefix}.down_proj", experts.count, inner, hidden)
        halves = torch.cat((torch.arange(0, 2 * inner, 2), torch.arange(1, 2 * inner, 2))).to(self._loader.device)
        return tuple(
            Mlp(
                Linear(gate_up.weight[halves], None if gate_up.bias is None else gate_up.bias[halves]),
                down,
                spec.activation,
                limit=spec.swiglu_limit,
                alpha=spec.swiglu_alpha,
            )
            for gate_up, down in zip(gate_ups, downs, strict=True)
        )


def _together(experts: Experts, kernels: ModelKernels | None) -> Experts:
    """The same with what computes them at once, where the kernels hold them."""
    if kernels is None:
        return experts
    with suppress(UnfitError):
        rows = ExpertRows(kernels, pack_experts(experts), experts.experts[0])
        return replace(experts, together=rows)
    return experts


def _unprepared(layer: _Part) -> _Part:
    """The same without tensors of its own for every number of rows."""
    return replace(layer, prepared=False) if isinstance(layer, QuantizedLinear) else layer


def _one_behind_the_other(experts: tuple[Mlp, ...]) -> tuple[Mlp, ...]:
    """The same with float weights of all experts in one tensor each, as the kernels of chosen experts read them."""
    gate_ups, downs = [part.gate_up for part in experts], [part.down for part in experts]
    return tuple(
        replace(part, gate_up=gate_up, down=down)
        for part, gate_up, down in zip(experts, _stacked(gate_ups), _stacked(downs), strict=True)
    )


def _stacked(layers: Sequence[_Part]) -> Sequence[_Part]:
    # What still is the file's memory stays there: a copy would double it.
    linears = [layer for layer in layers if isinstance(layer, Linear) and not layer.mapped]
    if len(linears) < len(layers):
        return layers
    weights = torch.stack([linear.weight for linear in linears])
    return [replace(linear, weight=weight) for linear, weight in zip(linears, weights, strict=True)]
