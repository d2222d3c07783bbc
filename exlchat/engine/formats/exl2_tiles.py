"""EXL2 tensors -> the layout that the CUDA kernels read. Rows keep the order of the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from exlchat.engine.formats.exl2 import Group, read_groups, unpack
from exlchat.ext.layout import PIECE_ROWS, PackedMatrix, Section, indexed_scales
from exlchat.ext.tiles import pack_tiles

# Columns packed at once, so that the transient copies of a large layer stay small beside the layer.
_PACK_COLUMNS = 2048


def pack_exl2(tensors: Mapping[str, Tensor], bias: Tensor | None = None) -> PackedMatrix:
    """The five tensors of an EXL2 layer, and a float16 bias `[N]`, in the kernels' layout, on the same device.

    Raises:
        ModelError: the tensors do not fit together.
        ValueError: a group size that the pieces cannot hold (not a multiple of 32).
    """
    q_weight = tensors["q_weight"]
    index = _scale_index(tensors["q_scale"])
    maximum = (tensors["q_scale_max"].float() / 256).half()
    sections: list[Section] = []
    words: list[Tensor] = []
    scales: list[Tensor] = []
    for bits, run in groupby(read_groups(tensors), key=lambda group: group.bits):
        groups = list(run)
        first, rows = groups[0], sum(group.rows for group in groups)
        step = rows_per_scale([group.rows for group in groups])
        pieces = -(-rows // PIECE_ROWS)
        word, scale = (sum(part.shape[1] for part in parts) for parts in (words, scales))
        section = Section(bits, "indexed", step, first.row, sum(s.pieces for s in sections), pieces, word, scale)
        sections.append(section)
        number = torch.tensor(_groups_of_scales(groups, pieces * PIECE_ROWS, step), device=q_weight.device)
        scales.append(indexed_scales(index[number], maximum[number], section))
        words.append(_pack_words(section, q_weight[first.word_row : first.word_row + rows * bits // 32]))
    return PackedMatrix(
        features=len(tensors["q_invperm"]),
        outputs=q_weight.shape[1],
        sections=tuple(sections),
        words=torch.cat(words, dim=1),
        scales=torch.cat(scales, dim=1),
        gather=tensors["q_invperm"].long().argsort().to(torch.int32).to(torch.int16),
        bias=bias,
    )


def rows_per_scale(sizes: Sequence[int]) -> int:
    """The coarsest step of 128, 64 or 32 rows at which all groups of a section begin.

    Raises:
        ValueError: there is none.
    """
    for step in (128, 64, 32):
        if all(size % step == 0 for size in sizes[:-1]) and sizes[-1] % 32 == 0:
            return step
    raise ValueError(f"groups of {sizes[0]} rows; the kernels take multiples of 32")


def _groups_of_scales(groups: list[Group], rows: int, step: int) -> list[int]:
    """Which group of the layer each scale of a section belongs to; rows past the last belong to the last."""
    numbers: list[int] = []
    for row in range(0, rows, step):
        stored = min(groups[0].row + row, groups[-1].row + groups[-1].rows - 1)
        numbers.append(next(group.index for group in groups if group.row <= stored < group.row + group.rows))
    return numbers


def _scale_index(q_scale: Tensor) -> Tensor:
    """uint8 `[groups, N]` from int32 `[groups, N / 8]`, the lowest column in the lowest four bits."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=q_scale.device)
    return ((q_scale.unsqueeze(-1) >> shifts) & 15).to(torch.uint8).flatten(1)


def _pack_words(section: Section, words: Tensor) -> Tensor:
    """int32 `[N / 16, words]` of one section, filled up to whole pieces with the code that stands for 0."""
    parts = []
    for at in range(0, words.shape[1], _PACK_COLUMNS):
        codes = unpack(words[:, at : at + _PACK_COLUMNS].contiguous(), section.bits)
        missing = section.pieces * PIECE_ROWS - len(codes)
        codes = torch.nn.functional.pad(codes, (0, 0, 0, missing), value=1 << (section.bits - 1))
        parts.append(pack_tiles(codes, section.bits))
    return torch.cat(parts)
