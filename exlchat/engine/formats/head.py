"""A float output head -> the layout of the kernels, by plain rounding: `--quantize-head`.

Every token reads the whole head: 1.05 GB in float16 of an 8B with 128256 tokens, whose layers take 3.6 GB in 4 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

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
from exlchat.llm.info import ModelError

_GROUP_ROWS = 32
# Of the layout's scales with a zero point of every column.
_PLAIN_BITS = 4
# Outputs rounded at once, so that the transient copies of a head stay small beside it.
_OUTPUTS_AT_ONCE = 2048


def pack_head(weight: Tensor, bits: int) -> PackedMatrix:
    """The head in groups of 32 inputs, its outputs filled up to a multiple of 16.

    Of 4 bits every output has a scale and a zero point of its own in each group, so that its range is met exactly. Of 6
    and 8 bits a scale is one of 16 steps below the group's largest, as in EXL2; the step above what an output needs is
    taken, so that no weight is cut off.

    Args:
        weight: float `[N, K]`.
        bits: 4, 6 or 8.

    Raises:
        ModelError: weights that are no numbers, or more inputs than the layout can number.
    """
    outputs, features = weight.shape
    stored = -(-features // BLOCK_ROWS) * BLOCK_ROWS
    if stored >= NO_FEATURE:
        raise ModelError(f"it has {features} inputs; --quantize-head takes {NO_FEATURE - 1}")
    pieces = -(-stored // PIECE_ROWS)
    section = LayoutSection(bits, "plain" if bits == _PLAIN_BITS else "indexed", _GROUP_ROWS, 0, 0, pieces, 0, 0)
    blocks = [_Rows(block, section) for block in torch.split(weight, _OUTPUTS_AT_ONCE)]
    largest = torch.stack([block.largest for block in blocks]).amax(0)
    if not bool(largest.isfinite().all()):
        raise ModelError("it holds what is no number; download the model again")
    parts = [block.pack(largest) for block in blocks]
    gather = torch.arange(stored, device=weight.device)
    gather[features:] = NO_FEATURE
    return PackedMatrix(
        features=features,
        outputs=-(-outputs // TILE_COLUMNS) * TILE_COLUMNS,
        sections=(section,),
        words=torch.cat([words for words, _ in parts]),
        scales=torch.cat([scales for _, scales in parts]),
        gather=gather.to(torch.int32).to(torch.int16),
    )


class _Rows:
    """Some outputs of a head.

    Args:
        weight: float `[n, K]`.
        section: of the whole head.
    """

    def __init__(self, weight: Tensor, section: LayoutSection) -> None:
        self._weight = weight
        self._section = section

    @property
    def largest(self) -> Tensor:
        """float32 `[groups]`: the largest magnitude of each group over all of these outputs."""
        return self._groups().abs().amax((1, 2))

    def pack(self, largest: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and scales as the layout has them.

        Args:
            largest: float32 `[groups]`, over all outputs of the head.
        """
        section, groups = self._section, self._groups()
        if section.scales == "plain":
            scale, zero = _ranges(groups, section.bits)
            stored = plain_scales(scale, (zero - 1).to(torch.uint8), section)
        else:
            unit = _units(largest, section.bits)
            index, scale = _steps(groups, unit, section.bits)
            zero = torch.full_like(index, 1 << (section.bits - 1))
            stored = indexed_scales(index.to(torch.uint8), unit, section)
        steps = scale.float().unsqueeze(1)
        codes = torch.where(steps > 0, (groups / steps).round(), 0) + zero.unsqueeze(1)
        codes = codes.clamp_(0, (1 << section.bits) - 1).to(torch.int32).flatten(0, 1)
        return pack_tiles(codes, section.bits), stored

    def _groups(self) -> Tensor:
        """float32 `[groups, 32, n]`, filled up with zeros to whole pieces and tiles of columns."""
        outputs, features = self._weight.shape
        missing = self._section.pieces * PIECE_ROWS - features, -outputs % TILE_COLUMNS
        filled = functional.pad(self._weight.float(), (0, missing[0], 0, missing[1]))
        return filled.T.reshape(-1, _GROUP_ROWS, filled.shape[0])


def _ranges(groups: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """float16 scales and zero points from 1 up, `[groups, n]` each, that span the range of each column."""
    top_code = (1 << bits) - 1
    low, high = groups.amin(1).clamp_max(0), groups.amax(1).clamp_min(0)
    # A zero point of 1 at least leaves one code less above it.
    scale = torch.maximum((high - low) / top_code, high / (top_code - 1)).half()
    zero = torch.where(scale > 0, (-low / scale.float()).round(), 1).clamp(1, top_code)
    return scale, zero.to(torch.int32)


def _units(largest: Tensor, bits: int) -> Tensor:
    """float16 `[groups]`: the smallest scale of each group, whose 256-fold is enough for its largest weight."""
    wanted = largest / ((1 << (bits - 1)) - 1) / 256
    unit = wanted.half()
    # The next float16 above.
    return torch.where(unit.float() < wanted, (unit.view(torch.int16) + 1).view(torch.float16), unit)


def _steps(groups: Tensor, unit: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Scale indices of 0 to 15 and the float16 scales that they stand for, `[groups, n]` each."""
    needed = groups.abs().amax(1) / ((1 << (bits - 1)) - 1)
    units = unit.float().unsqueeze(1)
    step = torch.where(units > 0, (needed / units).sqrt().ceil(), 1).clamp(1, 16)
    return (step - 1).to(torch.int32), (step.square() * units).half()
