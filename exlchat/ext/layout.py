"""Quantized weights as the kernels read them: a stream of pieces for every 16 output columns.

A piece is 128 input rows of 16 columns, half a kilobyte to two kilobytes of codes: two tiles of 64 rows. Of a tile each
of the 32 lanes of a warp has as many words as a code has bits, with the 32 codes that it takes as A operands of four
`mma.m16n8k16`: `tiles.py` says where each stands. Pieces of 16 columns stand one behind the other, and so do the
columns, so that a warp reads a contiguous range of memory whatever the mix of widths. Scales stand in a second stream,
piece by piece, so that codes keep to whole 128 bytes: copies to shared memory that do not cost several times their
bandwidth there.

Rows keep the stored (permuted) order of the file. Whoever produces an activation writes it in that order (`scatter`).

Scales of a piece come in one of two kinds, r being a column of 0 to 7 and n the scales of the piece:

* `indexed` (EXL2): a byte for each (r, n), the index of column r in the low four bits and of column r + 8 in the high
  ones; then n float16 maxima, already divided by 256 and rounded as the format says.
* `plain` (GPTQ and AWQ, of 4 bits alone): a pair of float16 for each (n, r), columns r and r + 8; then a byte for each
  (r, n), the zero points less one of columns r and r + 8.

`decode` is the definition in plain torch that the kernels are tested against.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from exlchat.ext.tiles import unpack_tiles

PIECE_ROWS = 128
TILE_COLUMNS = 16
NO_FEATURE = 0xFFFF
# Activations and their sums are kept in blocks of 32 rows; a section begins at one.
BLOCK_ROWS = 32

Scales = Literal["indexed", "plain"]


@dataclass(frozen=True, slots=True)
class LayoutSection:
    """Input rows of one bit width.

    Args:
        bits: width of a code.
        scales: how a piece holds its scales.
        rows_per_scale: 32, 64 or 128.
        row: number of the first row in stored order, a multiple of 32.
        piece: number of the first piece along the rows.
        pieces: how many. Rows that fill up the last one hold the code that stands for 0.
        word, scale: first 32-bit word of the section inside a column, of codes and of scales.
    """

    bits: int
    scales: Scales
    rows_per_scale: int
    row: int
    piece: int
    pieces: int
    word: int
    scale: int

    @property
    def piece_words(self) -> int:
        """32-bit words of the codes of a piece."""
        return PIECE_ROWS * TILE_COLUMNS * self.bits // 32

    @property
    def scale_words(self) -> int:
        """32-bit words of the scales of a piece; whole 16 bytes."""
        count = PIECE_ROWS // self.rows_per_scale
        size = 8 * count + 2 * count if self.scales == "indexed" else 32 * count + 8 * count
        return -(-size // 16) * 4


@dataclass(frozen=True)
class PackedMatrix:
    """One quantized layer.

    Args:
        features, outputs: K and N of `y = x W`; N is a multiple of 16.
        sections: in stored order.
        words: int32 `[N / 16, words]`, the codes of all pieces.
        scales: int32 `[N / 16, scale words]`, their scales.
        gather: int16 `[stored]` holding unsigned numbers: which feature a stored row takes; `NO_FEATURE` for rows
            that none does, whose activation is 0. `stored` is a multiple of 32, K as a rule.
        bias: float16 `[N]`.
    """

    features: int
    outputs: int
    sections: tuple[LayoutSection, ...]
    words: Tensor
    scales: Tensor
    gather: Tensor
    bias: Tensor | None = None

    @property
    def stored(self) -> int:
        """Rows in stored order."""
        return len(self.gather)

    @property
    def pieces(self) -> int:
        """Pieces along the input rows."""
        return sum(section.pieces for section in self.sections)

    @property
    def bytes(self) -> int:
        """What one pass over the weights reads."""
        return self.words.nbytes + self.scales.nbytes

    @cached_property
    def scatter(self) -> Tensor:
        """int16 `[features]` holding unsigned numbers: the stored row of each feature."""
        gather = unsigned(self.gather)
        rows = torch.arange(len(gather), device=gather.device)
        real = gather != NO_FEATURE
        scatter = torch.empty(self.features, dtype=torch.int32, device=gather.device)
        scatter[gather[real]] = rows[real].to(torch.int32)
        return scatter.to(torch.int16)


def unsigned(numbers: Tensor) -> Tensor:
    """int64 values of int16 numbers that are meant without a sign."""
    return numbers.to(torch.int64) & 0xFFFF


def to_stored(x: Tensor, matrix: PackedMatrix) -> Tensor:
    """`[rows, features]` -> `[rows, stored]`: activations in the order that the matrix's product reads."""
    stored = x.new_zeros(len(x), matrix.stored)
    stored[:, unsigned(matrix.scatter)] = x
    return stored


def indexed_scales(index: Tensor, maximum: Tensor, section: LayoutSection) -> Tensor:
    """int32 `[N / 16, scale words]` of one section.

    Args:
        index: uint8 `[scales, N]` of 4-bit indices, `scales` being the section's, filled up to whole pieces.
        maximum: float16 `[scales]`, already divided by 256.
    """
    pairs = index.view(section.pieces, -1, index.shape[1] // 16, 2, 8)
    bytes_ = (pairs[:, :, :, 0] | (pairs[:, :, :, 1] << 4)).permute(2, 0, 3, 1).flatten(2)
    maxima = maximum.view(section.pieces, -1).view(torch.uint8).expand(len(bytes_), -1, -1)
    return _to_words(torch.cat((bytes_, maxima), dim=2), section)


def plain_scales(scale: Tensor, zero: Tensor, section: LayoutSection) -> Tensor:
    """int32 `[N / 16, scale words]` of one section.

    Args:
        scale: float16 `[scales, N]`, filled up to whole pieces.
        zero: uint8 `[scales, N]`, the zero points less one, 0 to 15.
    """
    shape = (section.pieces, -1, scale.shape[1] // 16, 2, 8)
    halves = scale.view(shape).permute(2, 0, 1, 4, 3).contiguous().flatten(2).view(torch.uint8)
    pairs = zero.view(shape)
    zeros = (pairs[:, :, :, 0] | (pairs[:, :, :, 1] << 4)).permute(2, 0, 3, 1).flatten(2)
    return _to_words(torch.cat((halves, zeros), dim=2), section)


def _to_words(scales: Tensor, section: LayoutSection) -> Tensor:
    """int32 `[N / 16, scale words]` from uint8 `[N / 16, pieces, bytes]`."""
    words = scales.new_zeros(*scales.shape[:2], 4 * section.scale_words)
    words[:, :, : scales.shape[2]] = scales
    return words.view(torch.int32).flatten(1)


def decode(matrix: PackedMatrix) -> Tensor:
    """float16 `[features, outputs]`: the weights that the pieces stand for."""
    weights = torch.zeros(matrix.features, matrix.outputs, dtype=torch.float16, device=matrix.words.device)
    gather = unsigned(matrix.gather)
    for section in matrix.sections:
        scale, zero = _decode_scales(matrix, section)
        values = (section_codes(matrix, section) - zero.repeat_interleave(section.rows_per_scale, 0)).float()
        values = (values * scale.repeat_interleave(section.rows_per_scale, 0).float()).half()
        features = gather[section.row : section.row + len(values)]
        real = features != NO_FEATURE
        # A last piece that is filled up reaches into the rows of the next section, where it adds nothing.
        last = section_rows(matrix, section)
        real[last:] = False
        weights[features[real]] = values[: len(features)][real]
    return weights


def section_rows(matrix: PackedMatrix, section: LayoutSection) -> int:
    """How many stored rows a section has, without those that only fill up its last piece."""
    following = [other.row for other in matrix.sections if other.row > section.row]
    return min([*following, matrix.stored]) - section.row


def section_codes(matrix: PackedMatrix, section: LayoutSection) -> Tensor:
    """int32 `[rows, N]`, rows being those of all its pieces."""
    end = section.word + section.pieces * section.piece_words
    return unpack_tiles(matrix.words[:, section.word : end].contiguous(), section.bits)


def section_scales(matrix: PackedMatrix, section: LayoutSection) -> tuple[Tensor, Tensor]:
    """What `indexed_scales` or `plain_scales` were given."""
    end = section.scale + section.pieces * section.scale_words
    stored = matrix.scales[:, section.scale : end].contiguous().view(torch.uint8)
    stored = stored.view(len(stored), section.pieces, -1)
    columns, pieces, _ = stored.shape
    count = PIECE_ROWS // section.rows_per_scale
    if section.scales == "indexed":
        maximum = stored[0, :, 8 * count : 10 * count].contiguous().view(torch.float16).flatten()
        return _by_column(stored[:, :, : 8 * count]), maximum
    halves = stored[:, :, : 32 * count].contiguous().view(torch.float16).view(columns, pieces, count, 8, 2)
    scale = halves.permute(1, 2, 0, 4, 3).reshape(pieces * count, -1)
    return scale, _by_column(stored[:, :, 32 * count : 40 * count])


def _by_column(pairs: Tensor) -> Tensor:
    """uint8 `[scales, N]` of bytes `[N / 16, pieces, (r, n)]`, each with four bits of columns r and r + 8."""
    columns, pieces, size = pairs.shape
    nibbles = torch.stack((pairs & 15, pairs >> 4), dim=2).view(columns, pieces, 2, 8, size // 8)
    return nibbles.permute(1, 4, 0, 2, 3).reshape(pieces * size // 8, -1)


def _decode_scales(matrix: PackedMatrix, section: LayoutSection) -> tuple[Tensor, Tensor]:
    """float16 scales and int32 zero points, `[scales, N]` each."""
    first, second = section_scales(matrix, section)
    if section.scales == "plain":
        return first, second.int() + 1
    scale = ((first.float() + 1).square() * second.float().unsqueeze(1)).half()
    return scale, torch.full_like(scale, 1 << (section.bits - 1)).int()
