"""Philox4x32-10: random numbers by key and counter, without a state to carry along.

Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3", doi 10.1145/2063384.2063405. The kernel
of `csrc/sample.cuh` computes the same numbers, so that a seed means the same on every device.
"""

from __future__ import annotations

Words = tuple[int, int, int, int]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF


def philox(counter: Words, key: tuple[int, int]) -> Words:
    """The four 32-bit words of one counter, ten rounds."""
    c0, c1, c2, c3 = counter
    key0, key1 = key
    for _ in range(10):
        first, second = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ key0, second & _WORD, (first >> 32) ^ c3 ^ key1, first & _WORD
        key0, key1 = (key0 + _KEY_STEPS[0]) & _WORD, (key1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def uniform_bits(seed: int, index: int, *, attempt: int = 0, coin: bool = False) -> int:
    """53 random bits: the numerator over 2**53 of the uniform number, from 0 below 1, of draw `index`.

    Args:
        seed: the key; of a larger or negative one the lower 64 bits count.
        index: the lower 64 bits of the counter.
        attempt: how often the token there was drawn before and taken back: the third word, below 2**32.
        coin: the number by which XTC decides, not the one that draws: the fourth word is 1, not 0.
    """
    key = (seed & _WORD, seed >> 32 & _WORD)
    high, low, _, _ = philox((index & _WORD, index >> 32 & _WORD, attempt & _WORD, int(coin)), key)
    return (high << 32 | low) >> 11
