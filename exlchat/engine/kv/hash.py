"""What a page of keys and values is called: a hash of everything it was computed from."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from hashlib import blake2b

HASH_BYTES = 16

KEYS_AND_VALUES = "8"
"""Part of every root. To be raised when the same model computes or stores other keys and values than before: with a
change of rotary embedding, norms, rounding, codes of a kind of cache, or where heads lie in a page. Pages of older
versions are then not found any more, and go when their room is wanted."""


def page_hash(parent: bytes, ids: Sequence[int]) -> bytes:
    """BLAKE2b-128 of the hash of the page before and of this page's ids.

    Args:
        parent: 16 bytes: the hash of the page before, or the root of a conversation's first page.
        ids: the page's own token ids.

    Returns:
        16 bytes.

    Raises:
        ValueError: an id does not fit into 64 bits.
    """
    return blake2b(parent + pack_ids(ids), digest_size=HASH_BYTES).digest()


def root_hash(**parts: str) -> bytes:
    """16 bytes for everything besides ids that changes keys and values, as named parts; their order does not matter.

    Every name and value is preceded by its length in UTF-8, so that no two sets of parts look alike.
    """
    state = blake2b(digest_size=HASH_BYTES)
    for name, value in sorted(parts.items()):
        for text in (name.encode(), value.encode(errors="surrogatepass")):
            state.update(len(text).to_bytes(8, "little") + text)
    return state.digest()


def pack_ids(ids: Sequence[int]) -> bytes:
    """Ids as little-endian int64, one behind the other. Raises `ValueError` where one does not fit."""
    try:
        return struct.pack(f"<{len(ids)}q", *ids)
    except struct.error as error:
        raise ValueError(f"token ids must be whole numbers of at most 64 bits ({error})") from None


def unpack_ids(packed: bytes) -> tuple[int, ...]:
    """The ids of `pack_ids`. Raises `ValueError` where the length is no multiple of 8."""
    if len(packed) % 8:
        raise ValueError(f"{len(packed)} bytes are no whole number of ids")
    return struct.unpack(f"<{len(packed) // 8}q", packed)
