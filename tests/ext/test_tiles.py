"""Codes stand where `csrc/tiles.cuh` looks for them: its operations on a lane's words, in Python."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from exlchat.ext.tiles import FIELDS, pack_tiles, unpack_tiles

# By bits: what a code of column r and one of column r + 8 is multiplied with.
FACTORS = {2: (16, 64), 3: (64, 8), 4: (1, 16), 5: (1, 32), 6: (1, 16), 8: (1, 1)}
MAGIC = 0x6400
Words = list[int]


def two_bits(n: int, w: Words) -> tuple[int, int]:
    v = w[n // 4] >> (8 if n & 2 else 0)
    v = v << 4 if n & 1 else v
    return v & 3 << 4, v & 3 << 6


def three_bits(n: int, w: Words) -> tuple[int, int]:
    lower = [w[0] << 6, w[0], w[0] >> 7, w[1] << 6, w[1], w[1] >> 7, w[2], w[2] >> 7]
    upper = [w[0], w[0] >> 7, w[1], w[1] >> 7, w[2], w[2] >> 7, w[2] << 3]
    spare = (w[0] >> 7 << 1 & 8) | (w[1] >> 7 << 2 & 16) | (w[2] >> 7 << 3 & 32)
    return lower[n] & 7 << 6, (upper[n] & 7 << 3 if n < 7 else spare)


def four_bits(n: int, w: Words) -> tuple[int, int]:
    v = w[n // 2] >> (8 if n & 1 else 0)
    return v & 15, v & 15 << 4


def five_bits(n: int, w: Words) -> tuple[int, int]:
    lower = [*w, *(w[i] >> 10 for i in range(3))]
    upper = [*w, w[3] >> 6, w[4] >> 6]
    spare = sum(w[i] >> 10 << i & 1 << 5 + i for i in range(3)) | (w[3] >> 6 << 4 & 256) | (w[4] >> 6 << 5 & 512)
    return lower[n] & 31, (upper[n] & 31 << 5 if n < 7 else spare)


def six_bits(n: int, w: Words) -> tuple[int, int]:
    if n < 6:
        return w[n] & 63, w[n] >> 6 & 63 << 4
    at = (n - 6) * 3
    v = w[at + 1] >> 6
    return (v << 2 & 3 << 4) | (w[at + 2] >> 6 & 15), (v << 4 & 3 << 4) | (w[at] & 15 << 6)


def eight_bits(n: int, w: Words) -> tuple[int, int]:
    return w[n] & 255, w[n] >> 8 & 255


PAIRS: dict[int, Callable[[int, Words], tuple[int, int]]] = {
    2: two_bits,
    3: three_bits,
    4: four_bits,
    5: five_bits,
    6: six_bits,
    8: eight_bits,
}


def lane_words(packed: torch.Tensor, bits: int, lane: int) -> Words:
    """As `load_tile` loads them: the first words of all lanes stand before the rest of all."""
    first = min(bits, 4) if bits > 3 else 2
    words = [int(packed[lane * first + i]) for i in range(first)]
    words += [int(packed[32 * first + lane * (bits - first) + i]) for i in range(bits - first)]
    return [word & 0xFFFFFFFF for word in words]


@pytest.mark.parametrize("bits", FIELDS)
def test_the_kernels_find_every_code(bits: int) -> None:
    codes = torch.randint(1 << bits, (64, 32), generator=torch.Generator().manual_seed(bits))
    packed = pack_tiles(codes, bits)
    for column in range(2):
        for lane in range(32):
            words, r, q = lane_words(packed[column], bits, lane), lane // 4, lane % 4
            for e in range(2):
                halves = [word >> 16 * e & 0xFFFF for word in words]
                for n in range(8):
                    found = PAIRS[bits](n, halves)
                    row = 32 * (n // 4) + 8 * q + 4 * (n // 2 % 2) + 2 * (n % 2) + e
                    wanted = [int(codes[row, 16 * column + r + 8 * c]) * FACTORS[bits][c] for c in range(2)]
                    assert list(found) == wanted
                    assert all(number & MAGIC == 0 for number in found)


@pytest.mark.parametrize("bits", FIELDS)
def test_every_bit_has_one_place(bits: int) -> None:
    places = [(f.word, f.bit + i) for fields in FIELDS[bits] for f in fields for i in range(f.count)]
    assert sorted(places) == [(word, bit) for word in range(bits) for bit in range(16)]
    codes = torch.randint(1 << bits, (256, 48))
    assert torch.equal(unpack_tiles(pack_tiles(codes, bits), bits), codes.int())
