"""GPTQ and AWQ layers -> the layout that the CUDA kernels read. Rows are sorted by their group."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.formats import awq, gptq
from exlchat.engine.formats.exl2_tiles import rows_per_scale
from exlchat.engine.formats.grouped import GroupedLayer
from exlchat.ext.layout import (
    BLOCK_ROWS,
    NO_FEATURE,
    PIECE_ROWS,
    TILE_COLUMNS,
    PackedMatrix,
    Section,
    plain_scales,
)
from exlchat.ext.tiles import pack_tiles

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
    sizes = _filled_sizes(layer.groups, len(layer.zeros))
    gather = _sorted_rows(layer.groups, sizes)
    if len(gather) >= NO_FEATURE:
        raise ValueError(f"{len(gather)} stored rows; the kernels take {NO_FEATURE - 1}")
    step = rows_per_scale([size for size in sizes.tolist() if size])
    pieces = -(-len(gather) // PIECE_ROWS)
    section = Section(_BITS, "plain", step, row=0, piece=0, pieces=pieces, word=0, scale=0)
    of_scale = torch.arange(len(layer.zeros), device=gather.device).repeat_interleave(sizes)[::step]
    of_scale = torch.cat((of_scale, of_scale[-1:].expand(pieces * PIECE_ROWS // step - len(of_scale))))
    mirrored = layer.zeros == 0
    signed = torch.where(mirrored, -layer.scales, layer.scales)
    less_one = torch.where(mirrored, _LARGEST - 1, layer.zeros - 1).to(torch.uint8)
    return PackedMatrix(
        features=layer.features,
        outputs=layer.outputs,
        sections=(section,),
        words=_pack_words(section, layer, gather, mirrored),
        scales=plain_scales(signed[of_scale], less_one[of_scale], section),
        gather=gather.to(torch.int32).to(torch.int16),
        bias=bias,
    )


def _filled_sizes(groups: Tensor, count: int) -> Tensor:
    """int64 `[count]`: rows of each group, filled up to whole blocks; writers leave only the last one short."""
    sizes = torch.bincount(groups, minlength=count)
    return -(-sizes // BLOCK_ROWS) * BLOCK_ROWS


def _sorted_rows(groups: Tensor, sizes: Tensor) -> Tensor:
    """int64 `[sum of sizes]`: the features group by group, `NO_FEATURE` where a group is filled up."""
    order = groups.argsort(stable=True)
    real_ends, ends = torch.bincount(groups, minlength=len(sizes)).cumsum(0), sizes.cumsum(0)
    # How far filling up has moved the rows of each group.
    moved = torch.cat((ends.new_zeros(1), (ends - real_ends)[:-1]))
    rows = torch.arange(len(order), device=groups.device) + moved[groups[order]]
    gather = torch.full((int(ends[-1]),), NO_FEATURE, device=groups.device)
    gather[rows] = order
    return gather


def _pack_words(section: Section, layer: GroupedLayer, gather: Tensor, mirrored: Tensor) -> Tensor:
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
