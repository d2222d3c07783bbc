"""What a checkpoint holds, from the names and shapes of its tensors alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from exlchat.engine.checkpoint import Checkpoint
from exlchat.engine.formats import gptq

_QUANTIZED = ("q_weight", "qweight")


@dataclass(frozen=True, slots=True)
class WeightSizes:
    """How much memory the weights will take.

    Args:
        floats: weights that are held in the compute dtype.
        stored: bytes of those that stay quantized.
    """

    floats: int
    stored: int = 0

    def bytes(self, dtype: torch.dtype) -> int:
        """In this compute dtype."""
        return self.floats * dtype.itemsize + self.stored


def is_quantized(checkpoint: Checkpoint) -> bool:
    """Whether any layer is EXL2 or GPTQ."""
    return any(name.endswith(tuple(f".{kind}" for kind in _QUANTIZED)) for name in checkpoint.names)


def weight_sizes(checkpoint: Checkpoint, *, stay_quantized: bool) -> WeightSizes:
    """Of the model as it will be held, its quantized layers as they are stored or written out as floats."""
    floats = stored = 0
    for name in checkpoint.names:
        key, _, kind = name.rpartition(".")
        if kind in ("weight", "bias"):
            floats += math.prod(checkpoint.shape(name))
        elif kind in _QUANTIZED and not stay_quantized:
            floats += _quantized_weights(checkpoint, key, kind)
        elif kind in _QUANTIZED:
            scales = "q_scale" if kind == "q_weight" else "scales"
            # Codes are words of 32 bits, scales halves; both formats repeat a few bytes in the kernels' layout.
            stored += 4 * math.prod(checkpoint.shape(name)) + 4 * math.prod(checkpoint.shape(f"{key}.{scales}"))
    return WeightSizes(floats, stored)


def parameter_count(checkpoint: Checkpoint) -> int:
    """Weights of the model, quantized or not."""
    return weight_sizes(checkpoint, stay_quantized=False).floats


def describe_format(checkpoint: Checkpoint) -> str:
    """`EXL2 4.1 bpw`, `GPTQ 4-bit g128` or the dense dtype, of the decoder layers."""
    keys_kinds = [name.rpartition(".")[::2] for name in checkpoint.names if name.startswith("model.layers.")]
    if keys := [key for key, kind in keys_kinds if kind == "q_weight"]:
        return f"EXL2 {_exl2_bits(checkpoint, keys):.1f} bpw"
    if keys := [key for key, kind in keys_kinds if kind == "qweight"]:
        sizes = []
        for key in keys:
            groups = checkpoint.shape(f"{key}.scales")[0]
            rows = gptq.CODES_PER_WORD * checkpoint.shape(f"{key}.qweight")[0]
            # One group spans whatever the layer has: that is no size to speak of.
            sizes.append(gptq.group_size(rows, groups) if groups > 1 else 0)
        return f"GPTQ 4-bit g{max(sizes)}" if max(sizes) else "GPTQ 4-bit"
    return (
        "/".join(sorted({checkpoint.dtype(f"{key}.weight") for key, kind in keys_kinds if kind == "weight"}))
        or "unknown"
    )


def _exl2_bits(checkpoint: Checkpoint, keys: list[str]) -> float:
    """Bits a weight of these layers, tables and all."""
    weights = bits = 0
    for key in keys:
        rows, outputs = checkpoint.shape(f"{key}.q_weight")
        features, groups = checkpoint.shape(f"{key}.q_invperm")[0], checkpoint.shape(f"{key}.q_scale")[0]
        weights += features * outputs
        bits += 32 * rows * outputs + groups * (4 * outputs + 48) + 32 * features
    return bits / weights


def _quantized_weights(checkpoint: Checkpoint, key: str, kind: str) -> int:
    rows, outputs = checkpoint.shape(f"{key}.{kind}")
    features = checkpoint.shape(f"{key}.q_invperm")[0] if kind == "q_weight" else gptq.CODES_PER_WORD * rows
    return features * outputs
