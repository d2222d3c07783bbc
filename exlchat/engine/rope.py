"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864), halves rotated as in Llama."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from exlchat.engine.architecture import RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """float32 `[head_dim / 2]`: radians per position of each pair of dimensions.

    `llama3` keeps short wavelengths, divides long ones by the factor and blends between
    (Llama 3.1 model card; the same numbers as `transformers`).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.type == "linear":
        return frequencies / rope.factor
    if rope.type == "default":
        return frequencies
    wavelengths = 2 * math.pi / frequencies
    low_wavelength = rope.original_max_position_embeddings / rope.low_freq_factor
    high_wavelength = rope.original_max_position_embeddings / rope.high_freq_factor
    blend = (rope.original_max_position_embeddings / wavelengths - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelengths > low_wavelength, frequencies / rope.factor, blended)
    return torch.where(wavelengths < high_wavelength, frequencies, scaled)


class RopeTable:
    """cos and sin of every position so far, in float32, growing by doubling."""

    def __init__(self, rope: RopeSpec, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(rope, head_dim).to(device)
        self._turns = torch.empty(0, head_dim // 2, 2, device=device)

    def slice(self, start: int, end: int) -> Tensor:
        """float32 `[end - start, head_dim / 2, 2]`: cos and sin for each pair of elements of a head."""
        if end > len(self._turns):
            self._grow(max(end, 2 * len(self._turns), 512))
        return self._turns[start:end]

    def _grow(self, length: int) -> None:
        positions = torch.arange(length, device=self._frequencies.device).float()
        angles = torch.outer(positions, self._frequencies)
        self._turns = torch.stack((angles.cos(), angles.sin()), dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`[..., head_dim]` turned to its positions: element i with element `i + head_dim / 2`.

    cos and sin are `[..., head_dim / 2]`.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
