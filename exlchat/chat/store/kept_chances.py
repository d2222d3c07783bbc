"""The chances of an answer's tokens as text, for its record: thousands of numbers that are seldom read."""

from __future__ import annotations

import base64
import binascii
import struct
import zlib
from collections.abc import Sequence

from exlchat.llm.events import PlaceChances, TokenChance

_CHANCE = struct.Struct("<IfI")
_PLACE = struct.Struct("<B")
_MOST_BYTES = 256 * 1024 * 1024
"""More than an answer of a hundred thousand tokens with a hundred alternatives has; a damaged text may unpack to it."""


def pack_chances(places: Sequence[PlaceChances]) -> str:
    """As base64 of the deflated places: how many likeliest ones there are, then the token and those.

    Log-probabilities are kept as 32-bit floats. A place without a token, as of a mark that was put into the answer,
    has an empty one.
    """
    packed = bytearray()
    for place in places:
        packed += _PLACE.pack(min(len(place.top), 255))
        taken = place.taken or TokenChance(0, 0.0, 0)
        for one in (taken, *place.top[:255]):
            packed += _CHANCE.pack(one.token_id, one.log_probability, one.rank)
    return base64.b64encode(zlib.compress(bytes(packed))).decode("ascii")


def unpack_chances(text: str) -> tuple[PlaceChances, ...]:
    """The inverse of `pack_chances`.

    Raises:
        ValueError: a damaged text.
    """
    try:
        inflating = zlib.decompressobj()
        packed = inflating.decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        if not inflating.eof:
            raise ValueError("the kept chances are damaged (their end is missing)")
        places, at = [], 0
        while at < len(packed):
            (count,) = _PLACE.unpack_from(packed, at)
            at += _PLACE.size
            ones = [TokenChance(*_CHANCE.unpack_from(packed, at + index * _CHANCE.size)) for index in range(count + 1)]
            at += (count + 1) * _CHANCE.size
            places.append(PlaceChances(ones[0] if ones[0].rank else None, tuple(ones[1:])))
    except (zlib.error, binascii.Error, struct.error) as error:
        raise ValueError(f"the kept chances are damaged ({error})") from None
    return tuple(places)
