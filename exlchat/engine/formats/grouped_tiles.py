"""GPTQ tensors -> the layout that the CUDA kernels read. Rows are sorted by their group."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from exlchat.engine.formats.exl2 import unpack
from exlchat.engine.formats.exl2_tiles import rows_per_scale
from exlchat.engine.formats.gptq import GptqSettings, decode_zeros, row_groups
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

_BITS = 4
# Columns packed at once, so that the transient copies of a large layer stay small beside the layer.
_PACK_COLUMNS = 2048


def pack_gptq(tensors: Mapping[str, Tensor], bias: Tensor | None = None, *, settings: GptqSettings) -> PackedMatrix:
    """The tensors of a GPTQ layer, and a float16 bias `[N]`, in the kernels' layout, on the same device.

    Raises:
        ModelError: the tensors do not fit together.
        ValueError: what the pieces cannot hold: N not a multiple of 16, too many rows to number with 16 bits, or a
            zero point of 0, which only version 2 has.
    """
    groups, outputs = row_groups(tensors, settings), tensors["qweight"].shape[1]
    zeros = decode_zeros(tensors["qzeros"], settings)
    if outputs % TILE_COLUMNS or int(zeros.min()) < 1:
        raise ValueError(f"{outputs} outputs, zero points from {int(zeros.min())}; the kernels take 16s, and 1 to 16")
    sizes = _filled_sizes(groups, len(zeros))
    gather = _sorted_rows(groups, sizes)
    if len(gather) >= NO_FEATURE:
        raise ValueError(f"{len(gather)} stored rows; the kernels take {NO_FEATURE - 1}")
    step = rows_per_scale([size for size in sizes.tolist() if size])
    pieces = -(-len(gather) // PIECE_ROWS)
    section = Section(_BITS, "plain", step, row=0, piece=0, pieces=pieces, word=0, scale=0)
    of_scale = torch.arange(len(zeros), device=groups.device).repeat_interleave(sizes)[::step]
    of_scale = torch.cat((of_scale, of_scale[-1:].expand(pieces * PIECE_ROWS // step - len(of_scale))))
    scales = plain_scales(tensors["scales"].half()[of_scale], (zeros - 1).to(torch.uint8)[of_scale], section)
    return PackedMatrix(
        features=len(groups),
        outputs=outputs,
        sections=(section,),
        words=_pack_words(section, tensors["qweight"], gather),
        scales=scales,
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


def _pack_words(section: Section, qweight: Tensor, gather: Tensor) -> Tensor:
    """int32 `[N / 16, words]`; rows without a feature hold code 0, which no activation meets."""
    features = qweight.shape[0] * 32 // _BITS
    rows = torch.where(gather == NO_FEATURE, features, gather)
    rows = functional.pad(rows, (0, section.pieces * PIECE_ROWS - len(rows)), value=features)
    parts = []
    for start in range(0, qweight.shape[1], _PACK_COLUMNS):
        columns = slice(start, start + _PACK_COLUMNS)
        codes = functional.pad(unpack(qweight[:, columns].contiguous(), _BITS), (0, 0, 0, 1))
        parts.append(pack_tiles(codes[rows], _BITS))
    return torch.cat(parts)
