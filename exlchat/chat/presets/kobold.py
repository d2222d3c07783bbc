"""The keys of KoboldAI's presets, which SillyTavern writes for that backend too, and of what KoboldCpp is asked.

What their values mean is in KoboldCpp's source (`gpttype_adapter.cpp`): an order of numbered steps, of which some do
two things; with Mirostat nothing but penalties and the temperature comes before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from exlchat.chat.presets.sampler_values import breakers, texts
from exlchat.chat.presets.samplers import Dialect

_TRUNCATION = {"top_k": 0, "top_p": 1, "min_p": 0, "top_a": 0, "typical": 1, "tfs": 1, "nsigma": 0}
_ALWAYS = {**_TRUNCATION, "xtc_probability": 0, "dynatemp_range": 0}
"""What Mirostat takes the place of, switched off."""

_STEPS = (
    ("top_k",),
    ("top_a",),
    ("top_p", "min_p"),
    ("tfs",),
    ("typical_p",),
    ("temperature", "dynamic_temperature", "quadratic_sampling", "top_n_sigma"),
    ("repetition_penalty", "presence_penalty"),
)
"""By number, in the names of `sampler_priority`."""
_USUAL_ORDER = (6, 0, 1, 3, 4, 2, 5)
_PENALTIES = ("rep_pen", "presence_penalty")


def is_kobold(values: Mapping[str, Any]) -> bool:
    """Whether a preset with these keys is one: of SillyTavern's for text completion it lacks what those always have."""
    signs = {"typical", "mirostat", "dynatemp_range", "use_default_badwordsids"}
    return bool(signs & values.keys()) and not {"typical_p", "mirostat_mode"} & values.keys()


def _restated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with a range as two ends, a limit that is one, and without what Mirostat leaves out."""
    said = dict(values)
    if "genamt" not in said and "max_context_length" in said and "max_length" in said:
        # Else it is the context's, as SillyTavern writes it.
        said["genamt"] = said.pop("max_length")
    if said.get("mirostat") in (1, 2):
        said |= {key: off for key, off in _ALWAYS.items() if key in said}
    middle, reach = _number(said.get("temp", said.get("temperature", 1))), _number(said.get("dynatemp_range"))
    if middle is not None and reach:
        del said["dynatemp_range"]
        said |= {"dynatemp_low": max(middle - reach, 0.0), "dynatemp_high": middle + reach}
    return said


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        return None
    return float(value)


KOBOLD = Dialect(
    program="KoboldAI",
    id="kobold",
    ours={
        "temp": "temperature",
        "temperature": "temperature",
        "genamt": "max_tokens",
        **{one: one for one in ("top_k", "top_p", "min_p", "top_a", "tfs")},
        "typical": "typical_p",
        "nsigma": "top_n_sigma",
        "mirostat_tau": "mirostat_tau",
        "mirostat_eta": "mirostat_eta",
        **{one: one for one in ("dynatemp_low", "dynatemp_high", "dynatemp_exponent")},
        **{one: one for one in ("smoothing_factor", "smoothing_curve", "xtc_probability", "xtc_threshold")},
        "rep_pen": "repetition_penalty",
        "rep_pen_range": "penalty_range",
        "presence_penalty": "presence_penalty",
        **{one: one for one in ("dry_multiplier", "dry_base", "dry_allowed_length")},
        "dry_penalty_last_n": "dry_range",
        "dry_sequence_breakers": "dry_breakers",
    },
    spoken={"stop_sequence": ("stop", texts), "banned_tokens": ("ban", texts)},
    readers={"dry_sequence_breakers": breakers},
    flags={"mirostat": (2,)},
    off={
        "top_k": (0, -1),
        "top_p": (1,),
        "min_p": (0,),
        "top_a": (0,),
        "typical": (1, 0),
        "tfs": (1, 0),
        "nsigma": (0, -1),
        "mirostat": (0,),
        "dynatemp_range": (0,),
        "dynatemp_high": (0,),
        "smoothing_factor": (0,),
        "xtc_probability": (0,),
        "rep_pen": (1,),
        # At these the penalty is the same for near and far tokens.
        "rep_pen_slope": (0, 1),
        "presence_penalty": (0,),
        "dry_multiplier": (0,),
        "use_default_badwordsids": (False,),
        "ban_eos_token": (False,),
        "bypass_eos": (False,),
        "singleline": (False,),
        "single_line": (False,),
        "grammar": ("",),
        "logit_bias": ([], {}),
        "sampler_seed": (-1,),
        "seed": (-1,),
        "adaptive_target": (-1, 0),
        "guidance_scale": (1,),
        "negative_prompt": ("",),
    },
    led={
        "mirostat_tau": ("mirostat",),
        "mirostat_eta": ("mirostat",),
        "dynatemp_low": ("dynatemp_high",),
        "dynatemp_exponent": ("dynatemp_high",),
        "smoothing_curve": ("smoothing_factor",),
        "xtc_threshold": ("xtc_probability",),
        "rep_pen_range": _PENALTIES,
        "rep_pen_slope": ("rep_pen",),
        **dict.fromkeys(
            ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"), ("dry_multiplier",)
        ),
        "adaptive_decay": ("adaptive_target",),
    },
    usual={"mirostat_tau": 5},
    quiet=frozenset({"sampler_order", "streaming_kobold", "name", "prompt", "memory", "genkey", "quiet", "trim_stop"}),
    others_off=False,
    order=tuple(name for step in _USUAL_ORDER for name in _STEPS[step]),
    order_key="sampler_order",
    numbered_steps=_STEPS,
    restated=_restated,
)
