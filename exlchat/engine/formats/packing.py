"""Quantized layers -> the layout that the CUDA kernels read.

Rows of EXL2 keep the order of the file; those of GPTQ and AWQ are sorted by their group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.formats import awq, gptq
from exlchat.engine.formats.exl2 import Group, read_groups, unpack
from exlchat.engine.formats.grouped import GroupedLayer
from exlchat.ext.layout import (
    BLOCK_ROWS,
    NO_FEATURE,
    PIECE_ROWS,
    TILE_COLUMNS,
    LayoutSection,
    PackedMatrix,
    indexed_scales,
    plain_scales,
)
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
    sections: list[LayoutSection] = []
    words: list[Tensor] = []
    scales: list[Tensor] = []
    for bits, run in groupby(read_groups(tensors), key=lambda group: group.bits):
        groups = list(run)
        first, rows = groups[0], sum(group.rows for group in groups)
        step = rows_per_scale([group.rows for group in groups])
        pieces = -(-rows // PIECE_ROWS)
        word, scale = (sum(part.shape[1] for part in parts) for parts in (words, scales))
        section = LayoutSection(bits, "indexed", step, first.row, sum(s.pieces for s in sections), pieces, word, scale)
        sections.append(section)
        number = torch.tensor(_groups_of_scales(groups, pieces * PIECE_ROWS, step), device=q_weight.device)
        scales.append(indexed_scales(index[number], maximum[number], section))
        words.append(_pack_section(section, q_weight[first.word_row : first.word_row + rows * bits // 32]))
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


def _pack_section(section: LayoutSection, words: Tensor) -> Tensor:
    """int32 `[N / 16, words]` of one section, filled up to whole pieces with the code that stands for 0."""
    parts = []
    for at in range(0, words.shape[1], _PACK_COLUMNS):
        codes = unpack(words[:, at : at + _PACK_COLUMNS].contiguous(), section.bits)
        missing = section.pieces * PIECE_ROWS - len(codes)
        codes = torch.nn.functional.pad(codes, (0, 0, 0, missing), value=1 << (section.bits - 1))
        parts.append(pack_tiles(codes, section.bits))
    return torch.cat(parts)


# The only width that the layout has with a scale and a zero point of every column.
_BITS = 4
_LARGEST = (1 << _BITS) - 1


def pack_gptq(
    tensors: Mapping[str, Tensor], bias: Tensor | None = None, *, settings: gptq.GptqSettings
) -> PackedMatrix:
    """The tensors of a GPTQ layer, and a float16 bias `[N]`, as `pack_grouped`; raises what that raises."""
    return pack_grouped(gptq.read_layer(tensors, settings), bias)


def pack_awq(tensors: Mapping[str, Tensor], bias: Tensor | None = None, *, settings: awq.AwqSettings) -> PackedMatrix:
    """The tensors of an AWQ layer, and a float16 bias `[N]`, as `pack_grouped`; raises what that raises."""
    return pack_grouped(awq.read_layer(tensors, settings), bias)


def pack_grouped(layer: GroupedLayer, bias: Tensor | None = None) -> PackedMatrix:
    """A layer, and a float16 bias `[N]`, in the kernels' layout, on the same device.

    Codes of 2 and 3 bits take 4: scales and zero points of single columns are there for that width alone. Where a zero
    point is 0, which the layout lacks, codes are mirrored: `(c - 0) s = ((15 - c) - 15) (-s)`.

    Raises:
        ModelError: the tensors do not fit together.
        ValueError: what the pieces cannot hold: codes of 8 bits, N not a multiple of 16, too many rows to number with
            16 bits. Such a layer is written out in float16.
    """
    if layer.bits > _BITS or layer.outputs % TILE_COLUMNS:
        raise ValueError(f"{layer.outputs} outputs of {layer.bits} bits; the kernels take 16s, of up to {_BITS} bits")
    sizes = filled_sizes(layer.groups, len(layer.zeros))
    gather = sorted_rows(layer.groups, sizes)
    if len(gather) >= NO_FEATURE:
        raise ValueError(f"{len(gather)} stored rows; the kernels take {NO_FEATURE - 1}")
    step = rows_per_scale([size for size in sizes.tolist() if size])
    pieces = -(-len(gather) // PIECE_ROWS)
    section = LayoutSection(_BITS, "plain", step, row=0, piece=0, pieces=pieces, word=0, scale=0)
    of_scale = torch.arange(len(layer.zeros), device=gather.device).repeat_interleave(sizes)[::step]
    of_scale = torch.cat((of_scale, of_scale[-1:].expand(pieces * PIECE_ROWS // step - len(of_scale))))
    mirrored = layer.zeros == 0
    signed = torch.where(mirrored, -layer.scales, layer.scales)
    less_one = torch.where(mirrored, _LARGEST - 1, layer.zeros - 1).to(torch.uint8)
    return PackedMatrix(
        features=layer.features,
        outputs=layer.outputs,
        sections=(section,),
        words=_pack_grouped(section, layer, gather, mirrored),
        scales=plain_scales(signed[of_scale], less_one[of_scale], section),
        gather=gather.to(torch.int32).to(torch.int16),
        bias=bias,
    )


def filled_sizes(groups: Tensor, count: int) -> Tensor:
    """int64 `[count]`: rows of each group, filled up to whole blocks; writers leave only the last one short."""
    sizes = torch.bincount(groups, minlength=count)
    return -(-sizes // BLOCK_ROWS) * BLOCK_ROWS


def sorted_rows(groups: Tensor, sizes: Tensor) -> Tensor:
    """int64 `[sum of sizes]`: the features group by group, `NO_FEATURE` where a group is filled up."""
    order = groups.argsort(stable=True)
    real_ends, ends = torch.bincount(groups, minlength=len(sizes)).cumsum(0), sizes.cumsum(0)
    # How far filling up has moved the rows of each group.
    moved = torch.cat((ends.new_zeros(1), (ends - real_ends)[:-1]))
    rows = torch.arange(len(order), device=groups.device) + moved[groups[order]]
    gather = torch.full((int(ends[-1]),), NO_FEATURE, device=groups.device)
    gather[rows] = order
    return gather


def _pack_grouped(section: LayoutSection, layer: GroupedLayer, gather: Tensor, mirrored: Tensor) -> Tensor:
    """int32 `[N / 16, words]`; rows without a feature hold code 0, which no activation meets."""
    rows = torch.where(gather == NO_FEATURE, layer.features, gather)
    rows = functional.pad(rows, (0, section.pieces * PIECE_ROWS - len(rows)), value=layer.features)
    parts = []
    for first, last in layer.column_ranges(TILE_COLUMNS):
        codes = layer.codes(first, last)
        if bool(mirrored[:, first:last].any()):
            codes = torch.where(mirrored[layer.groups, first:last], _LARGEST - codes, codes)
        parts.append(pack_tiles(functional.pad(codes, (0, 0, 0, 1))[rows], section.bits))
    return torch.cat(parts)
