"""What a start was given on the command line in the place of a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exlchat.config.sampling_table import CONTROL_NAMES, OWN_KEYS
from exlchat.llm.sampling import SamplingSettings

if TYPE_CHECKING:
    from exlchat.app.options import AppOptions
    from exlchat.chat.presets.wishes import SamplingWishes

_TYPED = (
    "theme",
    "template",
    "system",
    "context_policy",
    "context",
    "kv_cache",
    "extension",
    "quantize_head",
)


def given(options: AppOptions, key: str) -> Any:
    """The value that was typed, or is of the preset or persona that was; `None` if the setting holds."""
    sizes = options.cache_sizes
    if key in (*OWN_KEYS, "sampling", "max_tokens", "draft"):
        return _drawn_by(options.sampling, key)
    if key in _TYPED:
        return getattr(options, key)
    if key == "draft_model":
        return None if options.draft_model is None else str(options.draft_model)
    if key == "disk_gb":
        return sizes.disk_gigabytes
    if key in ("cache_tokens", "cache_gb"):
        # One of them takes the place of both.
        return sizes.gigabytes if sizes.tokens is None else sizes.tokens
    return None


def _drawn_by(wishes: SamplingWishes, key: str) -> Any:
    if key == "sampling":
        typed = tuple((name, one) for name, one in wishes.given().items() if name in CONTROL_NAMES)
        return typed if typed or wishes.others_off else None
    if key not in ("max_tokens", "draft") and wishes.others_off:
        return getattr(wishes.apply(SamplingSettings()), key)
    return getattr(wishes, key)
