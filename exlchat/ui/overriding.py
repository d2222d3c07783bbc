"""What a start was given on the command line in the place of a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exlchat.ui.options import AppOptions

_SAMPLED = ("temperature", "top_k", "top_p", "min_p", "max_tokens")
_TYPED = ("theme", "template", "system", "context_policy", "context", "kv_cache", "extension", "quantize_head")


def given(options: AppOptions, key: str) -> Any:
    """The value that was typed, or is of the preset or persona that was; `None` if the setting holds."""
    sizes = options.cache_sizes
    if key in _SAMPLED:
        return getattr(options.sampling, key)
    if key in _TYPED:
        return getattr(options, key)
    if key == "disk_gb":
        return sizes.disk_gigabytes
    if key in ("cache_tokens", "cache_gb"):
        # One of them takes the place of both.
        return sizes.gigabytes if sizes.tokens is None else sizes.tokens
    return None
