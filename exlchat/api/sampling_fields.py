"""How tokens are drawn, by the names that OpenAI, vLLM, llama.cpp, TabbyAPI and SillyTavern have for it.

Several of these names often come side by side for one thing, and some only mean something beside another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.chat.presets.sampler_values import breakers, id_list
from exlchat.llm.controls import CONTROLS
from exlchat.llm.sampling import checked_value, order_with_last

ALIASES: Mapping[str, tuple[str, ...]] = {
    "temperature": ("temp",),
    "typical_p": ("typical",),
    "tfs": ("tfs_z",),
    "top_n_sigma": ("nsigma",),
    "repetition_penalty": ("rep_pen", "repeat_penalty"),
    "frequency_penalty": ("freq_pen",),
    "presence_penalty": ("presence_pen",),
    "penalty_range": ("repetition_penalty_range", "repetition_range", "rep_pen_range", "repeat_last_n"),
    "penalty_decay": ("repetition_decay", "rep_pen_decay"),
    "dry_range": ("dry_penalty_last_n",),
    "dry_breakers": ("dry_sequence_breakers",),
    "no_repeat_ngram": ("no_repeat_ngram_size",),
    "dynatemp_low": ("min_temp",),
    "dynatemp_high": ("max_temp",),
    "dynatemp_exponent": ("temp_exponent",),
    "banned_tokens": ("custom_token_bans",),
    "guidance_scale": ("cfg_scale",),
}
"""What else a control is called. Of names for one thing the first that is there counts, ours before all."""

_OFF: Mapping[str, tuple[Any, Any]] = {
    "top_k": (-1, 0),
    "tfs": (0, 1.0),
    "typical_p": (0, 1.0),
    "penalty_range": (-1, 0),
    "dry_range": (-1, 0),
    "top_n_sigma": (-1, 0.0),
    "dry_breakers": ("", None),
    "banned_tokens": ("", None),
    "order": ([], None),
}
"""How others write that something is off, and how it is written here; `None` says nothing at all."""
_READ = {"dry_breakers": breakers, "banned_tokens": id_list}
_MIROSTAT = ("mirostat_mode", "mirostat")
_DYNATEMP = ("dynamic_temperature", "dynatemp")
_FALSE = (False, 0)
_LAST = ("smoothing", "temperature")


def read_sampling(fields: Fields) -> dict[str, Any]:
    """What is said, by the names of `SamplingSettings`. Raises `ApiError` for what cannot be."""
    found: dict[str, Any] = {}
    for name in CONTROLS:
        key = fields.first(name, *ALIASES.get(name, ()))
        value = fields.raw(key)
        if value is not None:
            value = _restated(name, value)
        if value is not None:
            found[name] = _checked(name, key, value)
    _switched(fields, found)
    _ranged(fields, found)
    return found


def _restated(name: str, value: Any) -> Any:
    if name in _OFF and not isinstance(value, bool) and value == _OFF[name][0]:
        return _OFF[name][1]
    if CONTROLS[name].kind == "whole" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _checked(name: str, key: str, value: Any) -> Any:
    if name == "top_p" and value == 0 and not isinstance(value, bool):
        # Of the likeliest tokens that sum to nothing there is one.
        value = CONTROLS[name].usual * 1e-9
    try:
        if name == "logit_bias":
            return _biases(value)
        if name in _READ and isinstance(value, str):
            return _READ[name](name, value)
        return checked_value(name, value)
    except ValueError as error:
        raise bad(key, str(error) if str(error).startswith(key) else f"{key}: {error}") from None


def _biases(value: Any) -> Any:
    """OpenAI's object of ids as texts, or llama.cpp's list of pairs, in which `false` bans a token."""
    if not isinstance(value, dict):
        pairs = value if isinstance(value, list) else None
        if pairs is not None and all(isinstance(one, list) and len(one) == 2 for one in pairs):
            value = [[token, CONTROLS["logit_bias"].low if bias is False else bias] for token, bias in pairs]
        return checked_value("logit_bias", value)
    if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in value):
        raise ValueError("a token is named by its id, as a text of digits")
    return checked_value("logit_bias", [(int(token), bias) for token, bias in value.items()])


def _switched(fields: Fields, found: dict[str, Any]) -> None:
    """What one field says of others."""
    for switches, led in ((_MIROSTAT, "mirostat_tau"), (_DYNATEMP, "dynatemp_high")):
        if any(fields.raw(name) in _FALSE for name in switches if name in fields):
            for name, control in CONTROLS.items():
                if led in (name, control.leader) or (led == "dynatemp_high" and name == "dynatemp_low"):
                    found.pop(name, None)
            found[led] = CONTROLS[led].off
        else:
            fields.first(*switches)
    if fields.flag("temperature_last") and "order" not in found:
        found["order"] = order_with_last(_LAST)
    if not fields.flag("do_sample", default=True):
        found["temperature"] = 0.0
    if found.get("temperature") == 0.0:
        # The likeliest token is taken, whatever else is sent by a client that sends all it has.
        for name in ("dynatemp_low", "dynatemp_high"):
            if name in found:
                found[name] = CONTROLS[name].off


def _ranged(fields: Fields, found: dict[str, Any]) -> None:
    """llama.cpp's dynamic temperature: so much above and below the temperature."""
    reach = fields.number("dynatemp_range", 0.0, 0.0, 100.0) or 0.0
    if reach > 0.0 and "dynatemp_high" not in found and found.get("temperature") != 0.0:
        middle = found.get("temperature", 1.0)
        found |= {"dynatemp_low": max(middle - reach, 0.0), "dynatemp_high": middle + reach}
