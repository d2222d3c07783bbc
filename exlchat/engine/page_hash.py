"""What identifies a page of cached tokens: its ids and everything before them."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Sequence

HASH_BYTES = 16
PageHash = bytes


def page_hash(parent: bytes, ids: Sequence[int]) -> bytes:
    """BLAKE2b-128 over the hash of what precedes and the ids as little-endian int64.

    Args:
        parent: of the page before; of the first page, the root.
        ids: of the page's tokens.
    """
    words = array("q", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.blake2b(parent + words.tobytes(), digest_size=HASH_BYTES).digest()


def root_hash(**parts: str) -> bytes:
    """What stands before the first page: everything that keys and values depend on besides the ids.

    Args:
        parts: by name, in any order.
    """
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for name, text in sorted(parts.items()):
        for word in (name, text):
            raw = word.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.digest()
