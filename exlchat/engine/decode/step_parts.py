"""What both chains of the decode step ask of a decoder: which parts the kernels multiply, what its attention does."""

from __future__ import annotations

from typing import TypeGuard

from exlchat.engine.layers.linear import Joined
from exlchat.engine.layers.quantized_linear import QuantizedLinear
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.ext.attention import AttentionRules
from exlchat.ext.layout import PackedMatrix


def is_whole(part: Joined) -> TypeGuard[QuantizedLinear]:
    """Whether a part is quantized, and none of its outputs only fill up a tile."""
    return isinstance(part, QuantizedLinear) and all(
        matrix.outputs == count for matrix, count in zip(part.matrices, part.outputs, strict=True)
    )


def only_matrix(part: Joined) -> PackedMatrix | None:
    """The matrix of a part that has one; `None` of parts that the kernels do not multiply."""
    return part.matrices[0] if is_whole(part) and len(part.matrices) == 1 else None


def norms_heads_inside(layer: DecoderLayer) -> bool:
    """Whether the attention kernel norms the heads of a layer itself: RMS, with a weight that all of them share."""
    norms = (layer.query_norm, layer.key_norm)
    return all(norm is not None and norm.kind == "rms" and norm.weight.ndim == 1 for norm in norms)


def attention_rules(transformer: Transformer, index: int) -> AttentionRules:
    """What the attention of a layer does in the kernels; other norms of heads come before it."""
    spec, layer = transformer.spec, transformer.layers[index]
    inside = norms_heads_inside(layer)
    return AttentionRules(
        scale=spec.attention_scale,
        window=spec.windows[index],
        softcap=spec.attention_softcap,
        query_norm=layer.query_norm.weight if inside and layer.query_norm is not None else None,
        key_norm=layer.key_norm.weight if inside and layer.key_norm is not None else None,
        eps=spec.norm_eps,
        interleaved=spec.interleaved,
        sinks=None if layer.sinks is None else layer.sinks.float(),
    )
