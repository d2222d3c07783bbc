"""What a start was given on the command line in the place of a setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exlchat.engine.sampling_settings import SamplingSettings
from exlchat.setting_sampling import CONTROL_NAMES, OWN_KEYS

if TYPE_CHECKING:
    from exlchat.ui.options import AppOptions

_TYPED = ("theme", "template", "system", "context_policy", "context", "kv_cache", "extension", "quantize_head")


def given(options: AppOptions, key: str) -> Any:
    """The value that was typed, or is of the preset or persona that was; `None` if the setting holds."""
    sizes = options.cache_sizes
    if key == "sampling":
        typed = tuple((name, one) for name, one in options.sampling.given().items() if name in CONTROL_NAMES)
        return typed if typed or options.sampling.others_off else None
    if key in OWN_KEYS and options.sampling.others_off:
        return getattr(options.sampling.apply(SamplingSettings()), key)
    if key in (*OWN_KEYS, "max_tokens"):
        return getattr(options.sampling, key)
    if key in _TYPED:
        return getattr(options, key)
    if key == "disk_gb":
        return sizes.disk_gigabytes
    if key in ("cache_tokens", "cache_gb"):
        # One of them takes the place of both.
        return sizes.gigabytes if sizes.tokens is None else sizes.tokens
    return None
