"""What a checkpoint holds, from the names and shapes of its tensors alone."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch

from exlchat.engine.cards.room import PartBytes
from exlchat.engine.formats import awq, gptq, grouped
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.layout import PIECE_ROWS

QUANTIZED = ("q_weight", "qweight")
"""Last parts of the names of codes: of EXL2, and of GPTQ and AWQ."""
# Last parts of the names of floats: those without `weight` are of all experts of a layer, or sinks.
_FLOATS = ("weight", "bias", "gate_up_proj", "down_proj", "sinks")
_MXFP4_CODES, _CODES_A_BYTE = "_blocks", 2
# The widest codes that the kernels hold of layers with a zero point for every column.
_PLAIN_BITS = 4
_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_EXPERT, _MATRIX = re.compile(r"\.mlp\.experts\..*(?<!bias)$"), re.compile(r"_proj\.(weight|q_weight|qweight)$")


class Headers(Protocol):
    """What stands before the weights of a model: of one on the disk, or of one that is still to be written."""

    @property
    def names(self) -> Set[str]:
        """Of all tensors."""

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str:
        """As files name it: `F16`, `I32`."""


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
        return self.floats * dtype.itemsize + self.stored


def is_quantized(checkpoint: Headers) -> bool:
    """Whether any layer is EXL2, GPTQ or AWQ."""
    return any(name.endswith(tuple(f".{kind}" for kind in QUANTIZED)) for name in checkpoint.names)


def has_float_head(checkpoint: Headers) -> bool:
    """Whether the output head is of floats: its own, or the embedding."""
    return not any(f"lm_head.{kind}" in checkpoint.names for kind in QUANTIZED)


def is_awq(checkpoint: Headers, key: str) -> bool:
    """Whether the codes of a layer with a `qweight` run along the outputs, as only AWQ has them."""
    codes, scales = _matrix(checkpoint, f"{key}.qweight"), _matrix(checkpoint, f"{key}.scales")
    return codes is not None and scales is not None and scales[1] == awq.CODES_PER_WORD * codes[1]


def weight_sizes(checkpoint: Headers, *, stay_quantized: bool, head_bits: int | None = None) -> WeightSizes:
    """Of the model as it will be held.

    Args:
        checkpoint: the model.
        stay_quantized: as they are stored, as far as the kernels can hold that, or written out as floats.
        head_bits: what a float head is rounded to.
    """
    found = _sizes_of(checkpoint, checkpoint.names, stay_quantized=stay_quantized)
    if head_bits is None or not has_float_head(checkpoint):
        return found
    own = "lm_head.weight" in checkpoint.names
    head = math.prod(checkpoint.shape("lm_head.weight" if own else _EMBEDDING))
    # Scales of 4 bits have 20 bits for each 32 codes, those of 6 and 8 bits a little more than 4.
    rounded = head * (32 * head_bits + (20 if head_bits == _PLAIN_BITS else 6)) // (32 * 8)
    return WeightSizes(found.floats - (head if own else 0), found.stored + rounded)


def part_bytes(
    checkpoint: Headers, layers: int, dtype: torch.dtype, *, stay_quantized: bool, head_bits: int | None = None
) -> PartBytes:
    """Of each part of the model, which may lie on another card than the rest; arguments as of `weight_sizes`.

    Args:
        layers: how many there are.
        dtype: what floats are held in.
    """
    names: list[list[str]] = [[] for _ in range(layers)]
    embedding = []
    for name in checkpoint.names:
        if (found := _LAYER.match(name)) is not None and int(found[1]) < layers:
            names[int(found[1])].append(name)
        elif name.startswith("model.embed_"):
            embedding.append(name)

    def size(some: Iterable[str]) -> int:
        return _sizes_of(checkpoint, some, stay_quantized=stay_quantized).bytes(dtype)

    first, each = size(embedding), tuple(map(size, names))
    whole = weight_sizes(checkpoint, stay_quantized=stay_quantized, head_bits=head_bits).bytes(dtype)
    movable = tuple(size(_movable(some)) for some in names)
    has_head = head_bits is not None or any(name.startswith("lm_head.") for name in checkpoint.names)
    again = 0 if has_head or _EMBEDDING not in checkpoint.names else size([_EMBEDDING])
    return PartBytes(first, each, whole - first - sum(each), again, movable)


def _movable(names: Sequence[str]) -> list[str]:
    """What of a layer may lie in the machine's memory: its experts, or all its matrices where it has none."""
    experts = [name for name in names if _EXPERT.search(name)]
    return experts or [name for name in names if _MATRIX.search(name)]


def _sizes_of(checkpoint: Headers, names: Iterable[str], *, stay_quantized: bool) -> WeightSizes:
    floats = stored = 0
    for name in names:
        key, _, kind = name.rpartition(".")
        if kind in _FLOATS or kind.endswith("_bias"):
            floats += math.prod(checkpoint.shape(name))
        elif kind.endswith(_MXFP4_CODES):
            floats += _CODES_A_BYTE * math.prod(checkpoint.shape(name))
        elif kind == "q_weight" and stay_quantized:
            # Codes are words of 32 bits, scales halves; the kernels' layout repeats a few bytes.
            stored += 4 * math.prod(checkpoint.shape(name)) + 4 * math.prod(checkpoint.shape(f"{key}.q_scale"))
        elif kind == "q_weight":
            features = math.prod(checkpoint.shape(f"{key}.q_invperm"))
            floats += features * math.prod(checkpoint.shape(name)[1:])
        elif kind == "qweight" and (layer := _grouped(checkpoint, key)) is not None:
            if stay_quantized and layer.bits <= _PLAIN_BITS:
                stored += layer.bytes
            else:
                floats += layer.features * layer.outputs
    return WeightSizes(floats, stored)


def parameter_count(checkpoint: Headers) -> int:
    """Weights of the model, quantized or not."""
    return weight_sizes(checkpoint, stay_quantized=False).floats


def stored_bits(checkpoint: Headers) -> int:
    """What the tensors of the decoder take in the files, which may hold those for images too."""
    return sum(math.prod(checkpoint.shape(name)) * _bits(checkpoint.dtype(name)) for name in checkpoint.names)


@lru_cache(maxsize=32)
def _bits(dtype: str) -> int:
    """Of one element, by the name of its dtype in the file: `BF16`, `I32`, `F8_E4M3`, `BOOL`."""
    found = re.search(r"\d+", dtype)
    return int(found[0]) if found else 8


def describe_format(checkpoint: Checkpoint) -> str:
    """`EXL2 4.1 bpw`, `GPTQ 4-bit g128`, `AWQ 4-bit g128` or the dense dtype, of the decoder layers."""
    keys_kinds = [name.rpartition(".")[::2] for name in checkpoint.names if name.startswith("model.layers.")]
    if keys := [key for key, kind in keys_kinds if kind == "q_weight"]:
        return f"EXL2 {_exl2_bits(checkpoint, keys):.1f} bpw"
    layers = [layer for key, kind in keys_kinds if kind == "qweight" and (layer := _grouped(checkpoint, key))]
    if layers:
        widths = sorted({layer.bits for layer in layers})
        # One group spans whatever the layer has: that is no size to speak of.
        size = max(grouped.group_size(layer.features, layer.groups) if layer.groups > 1 else 0 for layer in layers)
        return f"{layers[0].method} {'/'.join(map(str, widths))}-bit" + (f" g{size}" if size else "")
    dtypes = {checkpoint.dtype(f"{key}.{kind}") for key, kind in keys_kinds if kind in _FLOATS}
    if any(kind.endswith(_MXFP4_CODES) for _, kind in keys_kinds):
        dtypes.add("MXFP4")
    return "/".join(sorted(dtypes)) or "unknown"


@dataclass(frozen=True, slots=True)
class _Grouped:
    method: str
    bits: int
    features: int
    outputs: int
    groups: int

    @property
    def bytes(self) -> int:
        """In the kernels' layout: codes of 4 bits, groups filled up to 32 rows, scales of up to 3 bytes."""
        rows = max(self.features, 32 * self.groups)
        scales = max(self.groups, -(-rows // PIECE_ROWS))
        return self.outputs * (rows + 6 * scales) // 2


def _grouped(checkpoint: Headers, key: str) -> _Grouped | None:
    """`None` where the shapes make no sense, which reading the layer says in more words."""
    shapes = [_matrix(checkpoint, f"{key}.{name}") for name in grouped.TENSORS]
    codes, zeros, scales = shapes
    if codes is None or zeros is None or scales is None:
        return None
    if is_awq(checkpoint, key):
        return _Grouped("AWQ", awq.BITS, codes[0], awq.CODES_PER_WORD * codes[1], scales[0])
    bits = 32 * zeros[1] // codes[1]
    return _Grouped("GPTQ", bits, 32 * codes[0] // bits, codes[1], scales[0]) if bits in gptq.BIT_WIDTHS else None


def _matrix(checkpoint: Headers, name: str) -> tuple[int, int] | None:
    """The shape of a matrix that is there and not empty."""
    shape = checkpoint.shape(name) if name in checkpoint.names else ()
    return (shape[0], shape[1]) if len(shape) == 2 and all(shape) else None


def _exl2_bits(checkpoint: Checkpoint, keys: list[str]) -> float:
    """Bits a weight of these layers, tables and all."""
    weights = bits = 0
    for key in keys:
        rows, outputs = checkpoint.shape(f"{key}.q_weight")
        features, groups = checkpoint.shape(f"{key}.q_invperm")[0], checkpoint.shape(f"{key}.q_scale")[0]
        weights += features * outputs
        bits += 32 * rows * outputs + groups * (4 * outputs + 48) + 32 * features
    return bits / weights
