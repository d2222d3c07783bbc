"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exlchat.engine.model.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, context: int) -> Tensor:
    """float32 `[dim / 2]`: radians per position of each pair of elements.

    The same numbers as `transformers`; only, what `dynamic` and `longrope` make of a text's own length follows from the
    longest context here, because keys that are cached cannot be turned again.

    Args:
        rope: `linear` divides all frequencies by the factor. `dynamic` raises the base for contexts beyond the original
            (NTK). `llama3` keeps short wavelengths, divides long ones and blends between (Llama 3.1 model card). `yarn`
            does so by rotations in the original context (Peng et al. 2023, arXiv 2309.00071). `longrope` has a divisor
            for every frequency, one set for the original context and one beyond (Ding et al. 2024, arXiv 2402.13753).
        context: the most tokens that a sequence will have.
    """
    original = rope.original_max_position_embeddings
    theta = rope.theta
    if rope.type == "dynamic" and context > original and rope.dim > 2:
        theta *= (rope.factor * context / original - (rope.factor - 1)) ** (rope.dim / (rope.dim - 2))
    exponents = torch.arange(0, rope.dim, 2, dtype=torch.int64).float() / rope.dim
    frequencies = 1.0 / (theta**exponents)
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "llama3":
        return _llama3(rope, frequencies)
    if rope.type == "yarn":
        return _yarn(rope, frequencies)
    if rope.type == "longrope":
        factors = rope.long_factors if context > original else rope.short_factors
        return frequencies / torch.tensor(factors)
    return frequencies


def _llama3(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    original = rope.original_max_position_embeddings
    wavelengths = 2 * math.pi / frequencies
    blend = (original / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelengths > original / rope.low_freq_factor, frequencies / rope.factor, blended)
    return torch.where(wavelengths < original / rope.high_freq_factor, frequencies, scaled)


def _yarn(rope: RopeSpec, frequencies: Tensor) -> Tensor:
    def pair_of(rotations: float) -> float:
        """The pair that turns so often in the original context."""
        length = rope.original_max_position_embeddings / (rotations * 2 * math.pi)
        return rope.dim * math.log(length) / (2 * math.log(rope.theta))

    low, high = pair_of(rope.beta_fast), pair_of(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    ramp = ((torch.arange(rope.dim // 2).float() - low) / (high - low or 0.001)).clamp(0, 1)
    return frequencies / rope.factor * ramp + frequencies * (1 - ramp)


class RopeTable:
    """What every position so far does to queries and keys, in float32, growing by doubling.

    Args:
        rope: the positions.
        context: the most tokens that a sequence will have.
    """

    def __init__(self, rope: RopeSpec, context: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, context).to(device)
        self._rope = rope
        self._turns = torch.empty(0, rope.dim // 2, 2, device=device)
        self._query_scales = torch.empty(0, device=device)

    def slice(self, start: int, end: int) -> Tensor:
        """float32 `[end - start, dim / 2, 2]`: cos and sin for each pair of elements of a head."""
        self._reach(end)
        return self._turns[start:end]

    def query_scales(self, start: int, end: int) -> Tensor:
        """float32 `[end - start]`: by which queries are multiplied where `query_beta` is not 0."""
        self._reach(end)
        return self._query_scales[start:end]

    def _reach(self, end: int) -> None:
        if end <= len(self._turns):
            return
        length = max(end, 2 * len(self._turns), 512)
        positions = torch.arange(length, device=self._frequencies.device).float()
        angles = torch.outer(positions, self._frequencies)
        self._turns = torch.stack((angles.cos(), angles.sin()), dim=-1) * self._rope.attention_factor
        contexts = torch.floor(positions / self._rope.original_max_position_embeddings)
        self._query_scales = 1 + self._rope.query_beta * torch.log(1 + contexts)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool = False) -> Tensor:
    """`[..., head_dim]` with its first elements turned to their positions, the others as they were.

    Element i goes with element i + pairs; interleaved, element 2i with 2i + 1. cos and sin are `[..., pairs]`.
    """
    dim = 2 * cos.shape[-1]
    turned, rest = x[..., :dim], x[..., dim:]
    first, second = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, dim=-1)
    parts = (first * cos - second * sin, second * cos + first * sin)
    joined = torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)
    return torch.cat((joined, rest), dim=-1) if rest.shape[-1] else joined
