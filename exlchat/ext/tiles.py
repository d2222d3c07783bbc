"""Where the codes of a tile stand: 64 input rows of 16 columns, as the 32 lanes of a warp take them.

A lane has 32 codes of a tile, the A operands of four `mma.m16n8k16`, in as many 32-bit words as a code has bits.
`csrc/tiles.cuh` makes the operands of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

TILE_ROWS = 64


@dataclass(frozen=True, slots=True)
class Field:
    """Bits of a code in the lower half of a word; those of the next input row stand in the upper half alike.

    Args:
        word: of the lane's.
        bit: the lowest, 0 to 15.
        count: how many.
        code_bit: which bits of the code they are.
    """

    word: int
    bit: int
    count: int
    code_bit: int = 0

    @property
    def mask(self) -> int:
        return (1 << self.count) - 1


def _fields(bits: int) -> list[tuple[Field, ...]]:
    """Where the code of each register of a lane's operands stands: `[product, b, c]` in one.

    An operand is made by taking a word, shifted or not, and replacing all but the code's bits by those of a float16: so
    codes stand where few shifts bring them, and those of column r + 8 perhaps at other bits than those of r.
    """
    lower: list[tuple[Field, ...]] = []
    upper: list[tuple[Field, ...]] = []
    numbers = range(8)
    match bits:
        case 2:
            starts = [(n // 4, (4, 0, 12, 8)[n % 4]) for n in numbers]
            lower += [(Field(word, bit, 2),) for word, bit in starts]
            upper += [(Field(word, bit + 2, 2),) for word, bit in starts]
        case 3:
            lower += [(Field(n // 3, (0, 6, 13)[n % 3], 3),) for n in range(6)] + [
                (Field(2, 6, 3),),
                (Field(2, 13, 3),),
            ]
            upper += [(Field(n // 2, (3, 10)[n % 2], 3),) for n in range(6)] + [(Field(2, 0, 3),)]
            upper.append(tuple(Field(word, 9, 1, word) for word in range(3)))
        case 4:
            lower += [(Field(n // 2, n % 2 * 8, 4),) for n in numbers]
            upper += [(Field(n // 2, n % 2 * 8 + 4, 4),) for n in numbers]
        case 5:
            lower += [(Field(n, 0, 5),) for n in range(5)] + [(Field(n, 10, 5),) for n in range(3)]
            upper += [(Field(n, 5, 5),) for n in range(5)] + [(Field(3, 11, 5),), (Field(4, 11, 5),)]
            upper.append(tuple(Field(word, 15 if word < 3 else 10, 1, word) for word in range(5)))
        case 6:
            lower += [(Field(n, 0, 6),) for n in range(6)]
            upper += [(Field(n, 10, 6),) for n in range(6)]
            for first in (0, 3):  # of three words whose middle bits make two codes
                lower.append((Field(first + 2, 6, 4), Field(first + 1, 8, 2, 4)))
                upper.append((Field(first + 1, 6, 2), Field(first, 6, 4, 2)))
        case 8:
            lower += [(Field(n, 0, 8),) for n in numbers]
            upper += [(Field(n, 8, 8),) for n in numbers]
        case _:
            raise ValueError(f"no codes have {bits} bits")
    return [pair for both in zip(lower, upper, strict=True) for pair in both]


# How many of a lane's words stand one behind the other; the first words of all lanes come before the rest of all.
_REGIONS = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1], 6: [4, 2], 8: [4, 4]}
FIELDS: dict[int, list[tuple[Field, ...]]] = {bits: _fields(bits) for bits in _REGIONS}
"""By bits: of the 16 codes `[product, b, c]` that a lane takes for one input row of two, the fields of each."""


def pack_tiles(codes: Tensor, bits: int) -> Tensor:
    """int32 `[N / 16, words]` from the integer codes `[rows, N]` of one section; rows a multiple of `TILE_ROWS`."""
    halves = _operands(codes.to(torch.int32).view(-1, 2, 4, 2, 2, 2, codes.shape[1] // 16, 2, 8))
    words = halves.new_zeros(*halves.shape[:3], bits)
    for operand, fields in enumerate(FIELDS[bits]):
        code = halves[..., operand, :]
        for field in fields:
            part = (code >> field.code_bit & field.mask) << field.bit
            words[..., field.word] |= part[..., 0] | part[..., 1] << 16
    regions = torch.split(words, _REGIONS[bits], dim=-1)
    return torch.cat([region.flatten(2) for region in regions], dim=-1).transpose(0, 1).flatten(1)


def unpack_tiles(words: Tensor, bits: int) -> Tensor:
    """int32 codes `[rows, N]` of one section from int32 `[N / 16, words]`, its tiles alone."""
    columns = len(words)
    tiles = words.view(columns, -1, 32 * bits).transpose(0, 1)
    sizes = _REGIONS[bits]
    regions = torch.split(tiles, [32 * size for size in sizes], dim=-1)
    by_lane = torch.cat([r.view(*r.shape[:2], 32, size) for r, size in zip(regions, sizes, strict=True)], dim=-1)
    halves = words.new_zeros(*by_lane.shape[:3], 16, 2)
    for operand, fields in enumerate(FIELDS[bits]):
        for field in fields:
            for half in range(2):
                part = by_lane[..., field.word] >> (field.bit + 16 * half) & field.mask
                halves[..., operand, half] |= part << field.code_bit
    codes = halves.view(-1, columns, 8, 4, 2, 2, 2, 2, 2)
    return codes.permute(0, 4, 3, 5, 6, 8, 1, 7, 2).reshape(-1, 16 * columns)


def _operands(codes: Tensor) -> Tensor:
    """Codes `[tiles, jh, q, jl, b, e, N / 16, c, r]` as `[tiles, N / 16, lane, operand, e]`.

    jh and jl make the number of the product, b and e the input rows of a lane's register, c the column r or r + 8.
    """
    return codes.permute(0, 6, 8, 2, 1, 3, 4, 7, 5).flatten(2, 3).flatten(3, 6)
