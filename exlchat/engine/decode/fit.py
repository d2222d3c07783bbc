"""Whether a model decodes by captured steps, and how what its layers compute joins the residual stream there."""

from __future__ import annotations

import torch

from exlchat.engine.decode.experts import UnfitError, packed_experts, why_not_added
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Linear, is_whole
from exlchat.engine.layers.operations import KERNEL_ACTIVATIONS
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import HEAD_DIMS
from exlchat.ext.functions import HEAD_INPUTS
from exlchat.ext.layout import TILE_COLUMNS
from exlchat.ext.sampling import MAX_VOCAB
from exlchat.ext.settle import MAX_WIDTH

_MOST_HEADS_A_KEY = 16


def why_not(transformer: Transformer, cache: KVCache) -> str | None:
    """Why a model has no captured step and decodes through plain torch, or `None` if it has one."""
    spec = transformer.spec
    if transformer.dtype != torch.float16 or cache.kind.name == "fp32":
        return f"it computes in {transformer.dtype} with a cache in {cache.kind.name}"
    if spec.head_dim not in HEAD_DIMS or spec.num_heads > _MOST_HEADS_A_KEY * spec.num_kv_heads:
        return f"its {spec.num_heads} heads over {spec.num_kv_heads} have {spec.head_dim} elements"
    if spec.vocab_size > MAX_VOCAB or spec.hidden_size % TILE_COLUMNS or spec.hidden_size > MAX_WIDTH:
        return f"it has {spec.vocab_size} tokens of {spec.hidden_size} numbers"
    if spec.learned_positions:
        return "its positions are an embedding"
    try:
        for layer in transformer.layers:
            if isinstance(layer.mlp, Experts):
                packed_experts(layer.mlp)
    except UnfitError as error:
        return str(error)
    return None


def why_not_fused(transformer: Transformer) -> str | None:
    """Why joins are operations of their own in a model's steps, or `None` where the products do them."""
    if (why := _why_spec_not_fused(transformer.spec)) is not None:
        return why
    for index, layer in enumerate(transformer.layers):
        if (why := _why_layer_not_fused(index, layer)) is not None:
            return why
    if isinstance(transformer.head, Linear) and transformer.spec.hidden_size % HEAD_INPUTS:
        return f"its head is not quantized and reads {transformer.spec.hidden_size} numbers"
    return None


def _why_layer_not_fused(index: int, layer: DecoderLayer) -> str | None:
    mlp = layer.mlp
    parts = (layer.qkv, layer.output, *((mlp.gate_up, mlp.down) if isinstance(mlp, Mlp) else ()))
    if not all(is_whole(part) for part in parts):
        return f"layer {index} is not quantized in a way that the kernels hold"
    if isinstance(mlp, Experts):
        why = why_not_added(mlp)
        return None if why is None else f"experts of layer {index}: {why}"
    gate_up = mlp.gate_up if is_whole(mlp.gate_up) else None
    if gate_up is None or len(gate_up.matrices) != 2:
        return f"layer {index} is not quantized in a way that the kernels hold"
    return f"gate and up of layer {index} order their inputs differently" if len(gate_up.runs) > 1 else None


def norms_heads_inside(layer: DecoderLayer) -> bool:
    """Whether the attention kernel norms the heads of a layer itself: RMS, with a weight that all of them share."""
    norms = (layer.query_norm, layer.key_norm)
    return all(norm is not None and norm.kind == "rms" and norm.weight.ndim == 1 for norm in norms)


def _why_spec_not_fused(spec: ModelSpec) -> str | None:
    unlike = {
        "its norms subtract the mean": spec.norm_kind != "rms",
        "its attention and MLP work side by side": spec.parallel,
        "its MLP is of another kind": spec.activation not in KERNEL_ACTIVATIONS or not spec.gated,
        "it has experts, and norms behind them": spec.experts is not None and spec.norm_after,
        "its projections are sorted by group": spec.heads_by_group,
    }
    return next((why for why, found in unlike.items() if found), None)


def why_not_wide(transformer: Transformer) -> str | None:
    """Why no more sequences go through a pass of a model than the step takes rows, or `None` if more do."""
    if len(transformer.split.devices) > 1:
        return "its layers lie on several cards"
    return why_no_prompts(transformer)


def why_no_prompts(transformer: Transformer) -> str | None:
    """Why a model's short prompts are not captured and go through the transformer, or `None` if they are."""
    if any(isinstance(layer.mlp, Experts) for layer in transformer.layers):
        return "the host asks which experts compute a prompt"
    return None
