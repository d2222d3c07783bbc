"""Cached keys and values in few bits: the exact definition, in torch, of what the attention kernel reads and writes.

A vector of one head and one token is turned by a normalised Walsh-Hadamard transform, which spreads outliers evenly
(QuaRot, Ashkboos et al. 2024, arXiv 2404.00456), and rounded: to floats of 8 bits, or in groups of 32 to codes of one
width with a float16 scale a group. `docs/kv-cache.md` describes the formats; `csrc/kv_format.cuh` computes the same.
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
_LARGEST_FLOAT8 = 448.0


@dataclass(frozen=True, slots=True)
class Element:
    """How an element of a vector is stored.

    Args:
        bits: 32 and 16 are plain floating point; with fewer, vectors are turned first.
        scaled: whether it is a code, of which each 32 have a float16 scale.
    """

    bits: int
    scaled: bool = False

    @property
    def turned(self) -> bool:
        return self.bits < 16

    @property
    def dtype(self) -> torch.dtype:
        return {32: torch.float32, 16: torch.float16}.get(self.bits, torch.uint8)

    def row(self, head_dim: int) -> int:
        """Entries of `dtype` in one head's vector."""
        return head_dim * self.bits // (8 * self.dtype.itemsize)

    def scales(self, head_dim: int) -> int:
        return head_dim // GROUP if self.scaled else 0


FLOAT32 = Element(32)
FLOAT16 = Element(16)
FLOAT8 = Element(8)
"""`torch.float8_e4m3fn`, kept as its byte."""
CODES8 = Element(8, scaled=True)
CODES4 = Element(4, scaled=True)


@dataclass(frozen=True, slots=True)
class CacheKind:
    name: str
    key: Element
    value: Element

    @property
    def quantized(self) -> bool:
        """Whether keys and values are turned and stored in few bits."""
        return self.key.turned

    @property
    def has_scales(self) -> bool:
        return self.key.scaled

    def fits(self, head_dim: int) -> bool:
        """Whether heads of this size can be stored so: what is turned comes in whole groups of 32."""
        return not self.quantized or head_dim % GROUP == 0

    def token_bytes(self, head_dim: int) -> int:
        """Bytes of one token's key and value of one head, scales included."""
        return sum(head_dim * part.bits // 8 + 2 * part.scales(head_dim) for part in (self.key, self.value))


KINDS = {
    kind.name: kind
    for kind in (
        CacheKind("fp32", FLOAT32, FLOAT32),
        CacheKind("fp16", FLOAT16, FLOAT16),
        CacheKind("fp8", FLOAT8, FLOAT8),
        CacheKind("q8", CODES8, CODES8),
        CacheKind("q6", CODES8, CODES4),
        CacheKind("q4", CODES4, CODES4),
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


def encode(x: Tensor, element: Element) -> tuple[Tensor, Tensor | None]:
    """Vectors as they are stored.

    Args:
        x: `[..., head_dim]`, any float dtype, finite; `head_dim` a multiple of 32 where vectors are turned.

    Returns:
        `[..., element.row(head_dim)]` of `element.dtype`. 8-bit floats are the nearest ones, halves to even, and what
        is beyond +-448 becomes that. Of 4-bit codes the even element is in the low half of a byte.
        Of codes the scales, float16 `[..., head_dim / 32]`, the smallest with which no element is cut off. The element
        of largest magnitude is on the side of the lowest code, which has one step more, so scales can be negative.
    """
    if not element.turned:
        return x.to(element.dtype), None
    if not element.scaled:
        floats = turn(x).clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8).to(torch.float8_e4m3fn)
        return floats.view(torch.uint8), None
    middle = 1 << (element.bits - 1)
    groups = turn(x).clamp(-_LARGEST_HALF, _LARGEST_HALF).view(*x.shape[:-1], x.shape[-1] // GROUP, GROUP)
    high, low = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
    larger, smaller = torch.maximum(high, -low), torch.minimum(high, -low)
    step = torch.maximum(larger / middle, smaller / (middle - 1))
    scales = torch.where(high > -low, -step, step).half()
    inverse = torch.where(scales == 0, 0.0, 1.0 / scales.float())
    codes = ((groups * inverse).round() + middle).clamp(0, 2 * middle - 1).to(torch.uint8).flatten(-2)
    if element.bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
    return codes, scales.squeeze(-1)


def decode_turned(stored: Tensor, scales: Tensor | None, element: Element) -> Tensor:
    """float16 `[..., head_dim]` of 8-bit floats or codes, still turned: what the products of the kernel read."""
    if scales is None:
        return stored.view(torch.float8_e4m3fn).half()
    if element.bits == 4:
        stored = torch.stack((stored & 15, stored >> 4), dim=-1).flatten(-2)
    whole = (stored.to(torch.int16) - (1 << (element.bits - 1))).half()
    return (whole.view(*scales.shape, GROUP) * scales.unsqueeze(-1)).flatten(-2)


def decode(stored: Tensor, scales: Tensor | None, element: Element) -> Tensor:
    """float32 `[..., head_dim]`: what `encode` was given, rounded."""
    return turn(decode_turned(stored, scales, element)) if element.turned else stored.float()
