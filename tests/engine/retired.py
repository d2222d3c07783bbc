"""The sequence that was answered last, as a cache holds it until another begins."""

from __future__ import annotations

from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence


def retired(cache: KVCache) -> KVSequence:
    """With its pages and ids."""
    sequence = getattr(cache._close_retired, "__self__", None)
    assert isinstance(sequence, KVSequence)
    return sequence
