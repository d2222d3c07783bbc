"""MXFP4: 4-bit floats in blocks of 32 with a power of two each (OCP Microscaling Formats 1.0).

gpt-oss stores its experts so. They are written out at load: no kernel of ours multiplies them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.info import ModelError

BLOCK = 32
# What the codes 0 to 15 stand for: a sign, two bits of exponent and one of mantissa.
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
_EXPONENT_BIAS = 127


def load_stacked(checkpoint: Checkpoint, key: str, shape: tuple[int, int, int], dtype: torch.dtype) -> Tensor:
    """`[count, outputs, features]` of the layers `key`, on the CPU.

    Args:
        shape: count, features, outputs.
        dtype: of what comes back.

    Raises:
        ModelError: a tensor is missing, or its shape or dtype disagrees.
    """
    count, features, outputs = shape
    if features % BLOCK:
        raise ModelError(f"{checkpoint.path}: {key} has {features} inputs, which blocks of {BLOCK} do not divide")
    blocks = _bytes(checkpoint, f"{key}_blocks", (count, outputs, features // BLOCK, BLOCK // 2))
    scales = _bytes(checkpoint, f"{key}_scales", (count, outputs, features // BLOCK))
    # An expert at a time: as floats, all of a layer are large.
    parts = [dequantize(block, scale).to(dtype) for block, scale in zip(blocks, scales, strict=True)]
    return torch.stack(parts)


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """float32 `[outputs, features]`.

    Args:
        blocks: uint8 `[outputs, features / 32, 16]`, two codes a byte, the first in the low four bits.
        scales: uint8 `[outputs, features / 32]`, exponents of two, 127 too large.
    """
    values = torch.tensor(_VALUES)
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    factors = torch.ldexp(torch.ones(scales.shape), scales.int() - _EXPONENT_BIAS)
    return (values[codes.long()] * factors.unsqueeze(-1)).flatten(-2)


def _bytes(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Tensor:
    found, file = checkpoint.shape(name), checkpoint.file_of(name)
    if found != shape:
        raise ModelError(
            f"{file}: {name} is {' x '.join(map(str, found))}, but config.json makes it {' x '.join(map(str, shape))}"
        )
    if checkpoint.dtype(name) != "U8":
        raise ModelError(f"{file}: {name} is {checkpoint.dtype(name)}; MXFP4 is stored as U8")
    return checkpoint.tensor(name)
