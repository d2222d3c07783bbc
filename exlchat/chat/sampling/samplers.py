"""The keys of other programs' presets: what each stands for, which value switches it off, and what an order changes.

text-generation-webui leaves out what has its default; SillyTavern writes all of its keys into each file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

OURS = ("temperature", "top_k", "top_p", "min_p")
"""The samplers of the engine, in its order."""

_ORDER_COUNTS = (("temperature", "top_p"), ("temperature", "min_p"), ("top_k", "top_p"), ("top_p", "min_p"))
"""The pairs whose order changes what is drawn. Top-k goes by ranks, which no temperature changes, and min-p by shares
of the best token's probability, which top-k leaves as they are; top-p goes by sums of what is left."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one program.

    Args:
        program: as people know it.
        id: its table in `[foreign]`.
        ours: its key -> that of `SamplingWishes`.
        off: key -> the values that switch it off; no value is as good as these.
        led: key -> the keys of which at least one has to be on for this one to mean anything.
        quiet: keys that have nothing to do with how a token is drawn, or say it once more for one backend.
        missing: what a key stands for that a file leaves out; without one it stands for nothing.
    """

    program: str
    id: str
    ours: Mapping[str, str]
    off: Mapping[str, tuple[Any, ...]]
    led: Mapping[str, tuple[str, ...]]
    quiet: frozenset[str]
    missing: Mapping[str, float]

    @property
    def known(self) -> frozenset[str]:
        """All its keys."""
        return frozenset((*self.ours, *self.off, *self.led, *self.quiet))

    def is_off(self, key: str, values: Mapping[str, Any]) -> bool:
        """Whether a key of a preset changes nothing."""
        value = values[key]
        if value is None or any(_same(value, one) for one in self.off.get(key, ())):
            return True
        leaders = self.led.get(key)
        return leaders is not None and all(one not in values or self.is_off(one, values) for one in leaders)


def _same(value: object, other: object) -> bool:
    """`0` and `0.0` are the same, `0` and `False` are not."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def order_matters(order: Sequence[str], on: frozenset[str]) -> bool:
    """Whether samplers applied in `order` draw otherwise than in ours, of those that are `on`."""
    place = {name: number for number, name in enumerate(order)}
    return any(
        first in on and second in on and place.get(first, -1) > place.get(second, len(order))
        for first, second in _ORDER_COUNTS
    )


_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_SHARED_OFF: dict[str, tuple[Any, ...]] = {
    "temperature_last": (False,),
    "smoothing_factor": (0,),
    "top_a": (0,),
    "typical_p": (1, 0),
    "tfs": (1, 0),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "no_repeat_ngram_size": (0,),
    "penalty_alpha": (0,),
    "guidance_scale": (1,),
    "mirostat_mode": (0,),
    "adaptive_target": (-1, 0),
    "do_sample": (True,),
    "num_beams": (1,),
    "early_stopping": (False,),
    "min_length": (0,),
    "add_bos_token": (True,),
    "ban_eos_token": (False,),
    "ignore_eos_token": (False,),
    "skip_special_tokens": (True,),
    "seed": (-1,),
    "negative_prompt": ("",),
    "grammar_string": ("",),
    "custom_token_bans": ("",),
}
_SHARED_LED: dict[str, tuple[str, ...]] = {
    "smoothing_curve": ("smoothing_factor",),
    "xtc_threshold": ("xtc_probability",),
    "dry_base": ("dry_multiplier",),
    "dry_allowed_length": ("dry_multiplier",),
    "dry_sequence_breakers": ("dry_multiplier",),
    "dry_penalty_last_n": ("dry_multiplier",),
    "mirostat_tau": ("mirostat_mode",),
    "mirostat_eta": ("mirostat_mode",),
    "adaptive_decay": ("adaptive_target",),
    "length_penalty": ("num_beams",),
}

WEBUI = Dialect(
    program="text-generation-webui",
    id="webui",
    ours={name: name for name in OURS} | {"max_new_tokens": "max_tokens"},
    off={
        **_SHARED_OFF,
        "dynamic_temperature": (False,),
        "repetition_penalty": (1,),
        "encoder_repetition_penalty": (1,),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "top_n_sigma": (0,),
    },
    led={
        **_SHARED_LED,
        "dynatemp_low": ("dynamic_temperature",),
        "dynatemp_high": ("dynamic_temperature",),
        "dynatemp_exponent": ("dynamic_temperature",),
        "repetition_penalty_range": _PENALTIES,
    },
    quiet=frozenset({"sampler_priority"}),
    # It takes its defaults for what a preset leaves out, and those are "off".
    missing={"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
)

SILLYTAVERN = Dialect(
    program="SillyTavern",
    id="sillytavern",
    ours={"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "genamt": "max_tokens"},
    off={
        **_SHARED_OFF,
        "typical": (1, 0),
        "dynatemp": (False,),
        "rep_pen": (1,),
        "encoder_rep_pen": (1,),
        "freq_pen": (0,),
        "presence_pen": (0,),
        "skew": (0,),
        "nsigma": (0, -1),
        "min_keep": (0,),
        "json_schema": ({}, ""),
        "banned_tokens": ("",),
        "global_banned_tokens": ("",),
        "logit_bias": ([],),
        "adaptive_target": (-0.01, -1, 0),
    },
    led={
        **_SHARED_LED,
        "min_temp": ("dynatemp",),
        "max_temp": ("dynatemp",),
        "dynatemp_exponent": ("dynatemp",),
        "rep_pen_range": ("rep_pen", "freq_pen", "presence_pen"),
        "rep_pen_size": ("rep_pen", "freq_pen", "presence_pen"),
        "rep_pen_decay": ("rep_pen",),
        "rep_pen_slope": ("rep_pen",),
        "json_schema_allow_empty": ("json_schema",),
        "send_banned_tokens": ("banned_tokens", "global_banned_tokens"),
    },
    quiet=frozenset(
        {
            "sampler_priority",
            # The order for other backends.
            "samplers",
            "samplers_priorities",
            "sampler_order",
            "streaming",
            "streaming_url",
            "preset",
            "type",
            "name",
            "include_reasoning",
            "speculative_ngram",
            "spaces_between_special_tokens",
            "max_context_unlocked",
        }
    ),
    missing={},
)
