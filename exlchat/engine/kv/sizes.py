"""How large the parts of a cache are: pages, layers, windows."""

from __future__ import annotations

from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, CacheKind
from exlchat.llm.info import ModelError

MOST_AT_ONCE = 2048
"""Tokens of a prompt that are computed in one go, at most."""


def cache_kind(spec: ModelSpec, name: str) -> CacheKind:
    """The kind of that name.

    Raises:
        ModelError: there is none, or it does not fit the model's heads.
    """
    if name not in KINDS:
        raise ModelError(f"kv_cache is {name!r}; there are {', '.join(KINDS)}")
    if not KINDS[name].fits(spec.head_dim):
        raise ModelError(
            f"kv_cache {name} needs heads of a multiple of 32, and this model's have {spec.head_dim}; use fp16"
        )
    return KINDS[name]


def layer_bytes(spec: ModelSpec, kind: CacheKind) -> int:
    """Of one position's key and value in one layer, as they are stored."""
    return spec.num_kv_heads * kind.token_bytes(spec.head_dim)


def cache_bytes(spec: ModelSpec, kind: CacheKind, pages: int, slots: int) -> int:
    """Of a pool with so many pages, `slots` of which have memory in layers that see a window only."""
    narrow = sum(window > 0 for window in spec.windows)
    return PAGE_TOKENS * layer_bytes(spec, kind) * ((spec.num_layers - narrow) * pages + narrow * slots)


def window_slots(spec: ModelSpec, longest: int, pages: int) -> int:
    """How many pages have memory in layers that see a window only; 0 without such layers.

    Enough for the window, a chunk of a prompt and the pages that both only touch, for as many sequences as the pool
    holds long ones.

    Args:
        longest: pages of the longest sequence.
        pages: of the pool.
    """
    each = pages_seen(spec, MOST_AT_ONCE)
    return min(pages, max(1, pages // longest) * each)


def pages_seen(spec: ModelSpec, more: int = 0) -> int:
    """Pages that a token, and so many more that are computed with it, see or touch in a layer with a window.

    Those that both only touch are counted; 0 without such layers.
    """
    window = max(spec.windows)
    return pages_of(window) + pages_of(more) + 2 if window else 0


def pages_of(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS)
