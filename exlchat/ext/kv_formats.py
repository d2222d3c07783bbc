"""Cached keys and values in few bits: the exact definition, in torch, of what the attention kernel reads and writes.

A vector of one head and one token is turned by a normalised Walsh-Hadamard transform, which spreads outliers evenly
(QuaRot, Ashkboos et al. 2024, arXiv 2404.00456), cut into groups of 32 and rounded to codes of one width with a
float16 scale a group. `docs/kv-cache.md` describes the format; `csrc/attention_cache.cuh` computes the same.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

PAGE_TOKENS = 256
GROUP = 32
MOST_TURNED = 256
_LARGEST_HALF = 65504.0


@dataclass(frozen=True, slots=True)
class CacheKind:
    """How keys and values are stored: bits an element; 16 and 32 are plain floating point, 4 and 8 are codes."""

    name: str
    key_bits: int
    value_bits: int

    @property
    def quantized(self) -> bool:
        """Whether keys and values are codes with scales."""
        return self.key_bits < 16

    def fits(self, head_dim: int) -> bool:
        """Whether heads of this size can be stored so: codes come in whole groups of 32."""
        return not self.quantized or head_dim % GROUP == 0

    def token_bytes(self, head_dim: int) -> int:
        """Bytes of one token's key and value of one head, scales included."""
        scales = 2 * 2 * (head_dim // GROUP) if self.quantized else 0
        return head_dim * (self.key_bits + self.value_bits) // 8 + scales


KINDS = {
    kind.name: kind
    for kind in (
        CacheKind("fp32", 32, 32),
        CacheKind("fp16", 16, 16),
        CacheKind("q8", 8, 8),
        CacheKind("q6", 8, 4),
        CacheKind("q4", 4, 4),
    )
}


def turned_size(head_dim: int) -> int:
    """How many neighbouring elements the transform mixes: the largest power of two that divides the head."""
    return min(head_dim & -head_dim, MOST_TURNED)


def turn(x: Tensor) -> Tensor:
    """The normalised Walsh-Hadamard transform of `[..., head_dim]`, in float32; it is its own inverse."""
    size = turned_size(x.shape[-1])
    parts = x.float().reshape(*x.shape[:-1], x.shape[-1] // size, size)
    turned: Tensor = parts @ _hadamard(size, x.device)
    return turned.flatten(-2)


@functools.cache
def _hadamard(size: int, device: torch.device) -> Tensor:
    """float32 `[size, size]`, symmetric and orthogonal, in Sylvester's order."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return (matrix / math.sqrt(size)).to(device)


def encode(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Vectors as codes and scales.

    Args:
        x: `[..., head_dim]`, any float dtype, finite; `head_dim` a multiple of 32.
        bits: 4 or 8.

    Returns:
        uint8 `[..., head_dim * bits / 8]`, of 4-bit codes the even element in the low half of a byte;
        float16 `[..., head_dim / 32]`, the smallest with which no element is cut off. The element of largest magnitude
        is on the side of the lowest code, which has one step more, so scales can be negative.
    """
    middle = 1 << (bits - 1)
    groups = turn(x).clamp(-_LARGEST_HALF, _LARGEST_HALF).view(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    high, low = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    larger, smaller = torch.maximum(high, -low), torch.minimum(high, -low)
    step = torch.maximum(larger / middle, smaller / (middle - 1))
    scales = torch.where(high > -low, -step, step).half()
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales.float())
    codes = ((groups * inverse).round() + middle).clamp(0, 2 * middle - 1).to(torch.uint8).flatten(-2)
    if bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
    return codes, scales.squeeze(-1)


def decode_turned(codes: Tensor, scales: Tensor, bits: int) -> Tensor:
    """float16 `[..., head_dim]`, still turned: what the products of the kernel read."""
    if bits == 4:
        codes = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)
    whole = (codes.to(torch.int16) - (1 << (bits - 1))).half()
    return (whole.view(*scales.shape, GROUP) * scales.unsqueeze(-1)).flatten(-2)


def decode(codes: Tensor, scales: Tensor, bits: int) -> Tensor:
    """float32 `[..., head_dim]`: what `encode` was given, rounded."""
    return turn(decode_turned(codes, scales, bits))
