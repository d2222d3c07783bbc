"""EXL2 tensors -> the layout that the CUDA kernels read.

Rows keep the order of the file; a section of one bit width is filled up to whole pieces of 128 rows, whose extra rows
take no feature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from exlchat.engine.formats.exl2 import Group, read_groups, unpack
from exlchat.ext.layout import NO_FEATURE, SECTION_ROWS, TILE_ROWS, PackedMatrix, Section, pack_tiles

# Columns packed at once, so that the transient copies of a large layer stay small beside the layer.
_PACK_COLUMNS = 2048


def pack_exl2(tensors: Mapping[str, Tensor]) -> PackedMatrix:
    """The five tensors of an EXL2 layer in the kernels' layout, on the same device.

    Raises:
        ModelError: the tensors do not fit together.
        ValueError: a group size that the tiles cannot hold (not a multiple of 32).
    """
    q_weight, q_scale = tensors["q_weight"], tensors["q_scale"]
    features, outputs = len(tensors["q_invperm"]), q_weight.shape[1]
    order = tensors["q_invperm"].long().argsort()
    sections: list[Section] = []
    words: list[Tensor] = []
    scale_groups: list[int] = []
    gather: list[Tensor] = []
    for bits, run in groupby(read_groups(tensors), key=lambda group: group.bits):
        groups = list(run)
        first, rows = groups[0], sum(group.rows for group in groups)
        tiles = -(-rows // SECTION_ROWS) * 2
        step = rows_per_scale([group.rows for group in groups])
        word = sum(part.shape[1] for part in words)
        sections.append(Section(bits, sum(s.tiles for s in sections), tiles, word, len(scale_groups), step))
        scale_groups += _groups_of_scales(groups, tiles * TILE_ROWS, step)
        # Four index bytes are read at once.
        scale_groups += scale_groups[-1:] * (-len(scale_groups) % 4)
        packed = q_weight[first.word_row : first.word_row + rows * bits // 32]
        words.append(_pack_words(packed, bits, tiles * TILE_ROWS))
        gather.append(order[first.row : first.row + rows])
        gather.append(order.new_full((tiles * TILE_ROWS - rows,), NO_FEATURE))
    index = torch.tensor(scale_groups, device=q_weight.device)
    return PackedMatrix(
        features=features,
        outputs=outputs,
        sections=tuple(sections),
        words=torch.cat(words, dim=1),
        scale_index=_pack_scale_index(q_scale)[:, :, index].contiguous(),
        scale_max=(tensors["q_scale_max"].float() / 256).half()[index],
        gather=torch.cat(gather).to(torch.int32).to(torch.int16),
    )


def rows_per_scale(sizes: Sequence[int]) -> int:
    """The coarsest step of 128, 64 or 32 rows at which all groups of a section begin.

    Raises:
        ValueError: there is none.
    """
    for step in (128, 64, 32):
        if all(size % step == 0 for size in sizes[:-1]):
            return step
    raise ValueError(f"groups of {sizes[0]} rows; the kernels take multiples of 32")


def _groups_of_scales(groups: list[Group], rows: int, step: int) -> list[int]:
    """Which group of the layer each scale of a section belongs to; rows past the last belong to the last."""
    numbers: list[int] = []
    for row in range(0, rows, step):
        stored = min(groups[0].row + row, groups[-1].row + groups[-1].rows - 1)
        numbers.append(next(group.index for group in groups if group.row <= stored < group.row + group.rows))
    return numbers


def _pack_scale_index(q_scale: Tensor) -> Tensor:
    """uint8 `[N / 16, 8, groups]` from int32 `[groups, N / 8]`, the lowest column in the lowest four bits."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=q_scale.device)
    index = ((q_scale.unsqueeze(-1) >> shifts) & 15).view(q_scale.shape[0], -1, 2, 8)
    return (index[:, :, 0] | (index[:, :, 1] << 4)).to(torch.uint8).permute(1, 2, 0)


def _pack_words(words: Tensor, bits: int, rows: int) -> Tensor:
    """int32 `[N / 16, words]` from the packed rows of one section, filled up to `rows` rows with zero codes."""
    parts = []
    for columns in torch.split(words, _PACK_COLUMNS, dim=1):
        codes = unpack(columns.contiguous(), bits)
        parts.append(pack_tiles(torch.nn.functional.pad(codes, (0, 0, 0, rows - len(codes))), bits))
    return torch.cat(parts)
