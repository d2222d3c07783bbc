"""Philox against the known answers that its authors publish (Random123, kat_vectors, lines philox4x32 10)."""

from __future__ import annotations

import pytest

from exlchat.ext.philox import Words, philox, uniform_bits

ALL = 0xFFFFFFFF
KNOWN: list[tuple[Words, tuple[int, int], Words]] = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL, ALL, ALL, ALL), (ALL, ALL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_published_answers(counter: Words, key: tuple[int, int], words: Words) -> None:
    assert philox(counter, key) == words


def test_a_uniform_number_is_the_first_two_words_from_the_top() -> None:
    assert uniform_bits(0, 0) == 0x6627E8D5E169C58D >> 11


def test_seed_and_index_of_64_bits_go_in_low_word_first() -> None:
    high, low, _, _ = philox((5, 6, 0, 0), (7, 8))
    assert uniform_bits(8 << 32 | 7, 6 << 32 | 5) == (high << 32 | low) >> 11
    assert uniform_bits(-1, 3) == uniform_bits(2**64 - 1, 3)
