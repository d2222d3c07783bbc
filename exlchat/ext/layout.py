"""Quantized weights as the kernels read them: tiles of 64 input rows by 16 output columns.

A tile holds the codes of its bit width as planes of 4, 2 and 1 bits (8 = 4+4, 6 = 4+2, 5 = 4+1, 3 = 2+1), each in the
order in which the 32 lanes of a warp take them as A operands of four `mma.m16n8k16`. Rows keep the stored (permuted)
order of the file; activations are gathered instead. The tiles of 16 columns stand one behind the other, so that a
warp streams a contiguous range.

`decode_tiles` is the definition in plain torch that the kernels are tested against.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ROWS = 64
# Sections are filled up to whole pairs of tiles: the kernels take 128 rows at a step.
SECTION_ROWS = 2 * TILE_ROWS
TILE_COLUMNS = 16

NO_FEATURE = 0xFFFF

# Bit widths of the planes of a code, the lowest bits first.
PLANES = {8: (4, 4), 6: (4, 2), 5: (4, 1), 4: (4,), 3: (2, 1), 2: (2,)}


@dataclass(frozen=True, slots=True)
class Section:
    """Tiles of one bit width.

    Args:
        bits: width of a code.
        tile: number of the first tile, counted along the input rows; even.
        tiles: how many; even.
        word: first 32-bit word of the section inside a column tile.
        scale: number of its first scale; a multiple of 4.
        rows_per_scale: 32, 64 or 128.
    """

    bits: int
    tile: int
    tiles: int
    word: int
    scale: int
    rows_per_scale: int

    @property
    def words_per_tile(self) -> int:
        """32-bit words of one tile."""
        return TILE_ROWS * TILE_COLUMNS * self.bits // 32


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One quantized layer.

    Args:
        features, outputs: K and N of `y = x W`; N is a multiple of 16.
        sections: in stored order.
        words: int32 `[N / 16, words]`, the tiles.
        scale_index: uint8 `[N / 16, 8, scales]`: columns r (low four bits) and r + 8 (high) of each scale.
        scale_max: float16 `[scales]`, already divided by 256 and rounded as the format says.
        gather: int16 `[tiles * 64]` holding unsigned numbers: which feature a stored row takes; `NO_FEATURE` for the
            rows that fill up the last tile of a section, whose activation is 0.
    """

    features: int
    outputs: int
    sections: tuple[Section, ...]
    words: Tensor
    scale_index: Tensor
    scale_max: Tensor
    gather: Tensor

    @property
    def tiles(self) -> int:
        """Tiles along the input rows."""
        return sum(section.tiles for section in self.sections)

    @property
    def bytes(self) -> int:
        """What one pass over the weights reads."""
        return sum(
            tensor.numel() * tensor.element_size()
            for tensor in (self.words, self.scale_index, self.scale_max, self.gather)
        )


def pack_tiles(codes: Tensor, bits: int) -> Tensor:
    """int32 `[N / 16, words]` from the integer codes `[rows, N]` of one section; rows a multiple of `SECTION_ROWS`."""
    fragments = codes.view(-1, 2, 4, 2, 2, 2, codes.shape[1] // 16, 2, 8).permute(0, 6, 8, 2, 1, 3, 4, 5, 7)
    planes = []
    for plane in PLANES[bits]:
        planes.append(_words_of(fragments & ((1 << plane) - 1), plane))
        fragments = fragments >> plane
    return torch.cat(planes, dim=-1).transpose(0, 1).flatten(1).to(torch.int32)


def decode_tiles(matrix: PackedMatrix) -> Tensor:
    """float16 `[features, outputs]`: the weights that the tiles stand for."""
    columns = matrix.outputs
    weights = torch.zeros(matrix.features, columns, dtype=torch.float16, device=matrix.words.device)
    scales = decode_scales(matrix)
    gather = matrix.gather.to(torch.int32) & 0xFFFF
    for section in matrix.sections:
        end = section.word + section.tiles * section.words_per_tile
        codes = _unpack_words(matrix.words[:, section.word : end], section)
        rows = torch.arange(section.tiles * TILE_ROWS, device=codes.device)
        scale = scales[section.scale + rows // section.rows_per_scale].float()
        values = (codes - (1 << (section.bits - 1))).float() * scale
        features = gather[section.tile * TILE_ROWS + rows].long()
        real = features != NO_FEATURE
        weights[features[real]] = values[real].half()
    return weights


def decode_scales(matrix: PackedMatrix) -> Tensor:
    """float16 `[scales, outputs]`."""
    low, high = matrix.scale_index & 15, matrix.scale_index >> 4
    index = torch.cat((low, high), dim=1)
    steps = (index.float() + 1).square() * matrix.scale_max.float()
    return steps.half().permute(2, 0, 1).flatten(1)


def _bit_positions(plane: int, device: torch.device) -> Tensor:
    """Where the code of `[jh, jl, b, e, c]` stands in its word.

    e, the element of a half2, chooses the half of the word; c, the column r or r + 8, is 4 bits apart in every plane,
    so that one shift brings both to their place.
    """
    jh, jl, b, e, c = torch.meshgrid(*(torch.arange(2, device=device) for _ in range(5)), indexing="ij")
    if plane == 4:
        return 16 * e + 8 * b + 4 * c
    number = 2 * jl + b if plane == 2 else 4 * jh + 2 * jl + b
    half = 2 if plane == 2 else 4
    return 16 * e + number // half * 8 + number % half * plane + 4 * c


def _words_of(codes: Tensor, plane: int) -> Tensor:
    """`[tiles, N / 16, words]` of one plane; codes are `[tiles, N / 16, r, q, jh, jl, b, e, c]`."""
    shifted = codes.to(torch.int64) << _bit_positions(plane, codes.device)
    dims = {4: (-3, -2, -1), 2: (-4, -3, -2, -1), 1: (-5, -4, -3, -2, -1)}[plane]
    return shifted.sum(dims).flatten(2)


def _unpack_words(words: Tensor, section: Section) -> Tensor:
    """int32 codes `[rows, N]` of one section from int32 `[N / 16, words]`."""
    tiles = words.view(len(words), section.tiles, section.words_per_tile)
    codes = torch.zeros(len(words), section.tiles, 8, 4, 2, 2, 2, 2, 2, dtype=torch.int32, device=words.device)
    start = below = 0
    for plane in PLANES[section.bits]:
        count = 32 * plane
        lanes = tiles[:, :, start : start + count].view(len(words), section.tiles, 8, 4, plane)
        spread = {4: (2, 2, 1, 1, 1), 2: (2, 1, 1, 1, 1), 1: (1, 1, 1, 1, 1)}[plane]
        spread_words = lanes.view(len(words), section.tiles, 8, 4, *spread)
        positions = _bit_positions(plane, words.device).to(torch.int32)
        codes |= ((spread_words >> positions) & ((1 << plane) - 1)) << below
        start, below = start + count, below + plane
    return codes.permute(1, 4, 3, 5, 6, 7, 0, 8, 2).reshape(section.tiles * TILE_ROWS, -1)
