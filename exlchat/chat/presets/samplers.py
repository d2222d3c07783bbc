"""The keys of other programs' presets: what each stands for here, and which value switches it off.

text-generation-webui leaves out what has its default; SillyTavern writes all of its keys into each file. What their
values mean is in the sources of these programs (`modules/presets.py`, `modules/sampler_hijack.py`;
`public/scripts/textgen-settings.js`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exlchat.chat.presets.sampler_values import (
    biases,
    breakers,
    count,
    id_list,
    number,
    per_ten_thousand,
    phrase_bans,
    phrases_alone,
    schema,
    text,
    word_bans,
)
from exlchat.llm.controls import STEPS

Reader = Callable[[str, Any], Any]
"""Name of ours, value of theirs -> value of ours; raises `ValueError` for what cannot be."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one program.

    Args:
        program: as people know it.
        id: its table in `[foreign]`.
        ours: its key -> that of `SamplingOverrides`, of a sampler.
        spoken: its key -> what it asks an answer to be, by the names of `AnswerOptions`, and how that is read; a key
            may be here as well as in `ours`.
        readers: its key -> how its value is read, where it is not a number that is the same here.
        flags: keys that only switch others on -> the values with which those are applied here.
        off: key -> the values that switch it off; no value is as good as these.
        led: key -> the keys of which at least one has to be on for this one to mean anything.
        usual: what the program takes for a key that a file leaves out, while what leads it is on.
        quiet: keys that have nothing to do with how a token is drawn, or say it once more for one backend.
        others_off: whether a key that a file leaves out stands for "off"; else for nothing.
        order: of its steps, where a file says none; that of ours where it is not known.
        order_key: what says the order.
        numbered_steps: of an order in numbers, the names that each stands for.
        restated: its values with each key standing for one thing.
    """

    program: str
    id: str
    ours: Mapping[str, str]
    spoken: Mapping[str, tuple[str, Callable[[Any], Any]]]
    readers: Mapping[str, Reader]
    flags: Mapping[str, tuple[Any, ...]]
    off: Mapping[str, tuple[Any, ...]]
    led: Mapping[str, tuple[str, ...]]
    usual: Mapping[str, Any]
    quiet: frozenset[str]
    others_off: bool
    order: tuple[str, ...]
    order_key: str = "sampler_priority"
    numbered_steps: tuple[tuple[str, ...], ...] = ()
    restated: Callable[[Mapping[str, Any]], dict[str, Any]] = dict

    @property
    def known(self) -> frozenset[str]:
        return frozenset((*self.ours, *self.spoken, *self.off, *self.led, *self.quiet))

    def is_off(self, key: str, values: Mapping[str, Any]) -> bool:
        value = values[key]
        if value is None or any(_same(value, one) for one in self.off.get(key, ())):
            return True
        return key in self.led and not self.leaders_on(key, values)

    def leaders_on(self, key: str, values: Mapping[str, Any]) -> list[str]:
        return [one for one in self.led.get(key, ()) if one in values and not self.is_off(one, values)]

    def listed(self, values: Mapping[str, Any]) -> list[str] | None:
        """The names of the steps in the order that a preset says; `None` where it says none that can be read."""
        order = values.get(self.order_key)
        if isinstance(order, str):
            return order.split()
        if not isinstance(order, list):
            return None
        if self.numbered_steps and all(one in range(len(self.numbered_steps)) for one in order):
            return [name for one in order for name in self.numbered_steps[one]]
        return list(order) if all(isinstance(one, str) for one in order) else None

    def read(self, key: str, value: Any) -> Any:
        """The value of ours. Raises `ValueError`: it cannot be here."""
        reader: Reader = self.readers.get(key, number)
        return reader(self.ours[key], value)


def _same(value: object, other: object) -> bool:
    """`0` and `0.0` are the same, `0` and `False` are not."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


STEP_NAMES = {
    "temperature": "temperature",
    "dynamic_temperature": "temperature",
    "quadratic_sampling": "smoothing",
    "typical_p": "typical",
    **{
        name: name
        for name in (
            "top_n_sigma",
            "top_k",
            "top_p",
            "top_a",
            "min_p",
            "tfs",
            "epsilon_cutoff",
            "eta_cutoff",
            "mirostat",
            "xtc",
            "skew",
        )
    },
}
"""The names of `sampler_priority` that are steps of the distribution here."""
FIRST_NAMES = {
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "dry": "dry_multiplier",
    "no_repeat_ngram": "no_repeat_ngram",
}
"""Those that come before all steps here, with what switches them on."""
MISSING_NAMES = frozenset({"encoder_repetition_penalty", "adaptive_p"})
"""Those that are not here; they are named by keys of their own if they are on."""

_WEBUI_ORDER = (
    "repetition_penalty presence_penalty frequency_penalty dry top_n_sigma temperature dynamic_temperature "
    "quadratic_sampling top_k top_p typical_p epsilon_cutoff eta_cutoff tfs top_a min_p mirostat xtc"
)
_SHARED_OURS = {
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "top_a": "top_a",
    "typical_p": "typical_p",
    "tfs": "tfs",
    "epsilon_cutoff": "epsilon_cutoff",
    "eta_cutoff": "eta_cutoff",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "smoothing_factor": "smoothing_factor",
    "smoothing_curve": "smoothing_curve",
    "dynatemp_exponent": "dynatemp_exponent",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
    "dry_multiplier": "dry_multiplier",
    "dry_base": "dry_base",
    "dry_allowed_length": "dry_allowed_length",
    "dry_sequence_breakers": "dry_breakers",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "guidance_scale": "guidance_scale",
    "custom_token_bans": "banned_tokens",
}
_SHARED_READERS: dict[str, Reader] = {
    "epsilon_cutoff": per_ten_thousand,
    "eta_cutoff": per_ten_thousand,
    "dry_sequence_breakers": breakers,
    "custom_token_bans": id_list,
}
_SHARED_OFF: dict[str, tuple[Any, ...]] = {
    "temperature_last": (False,),
    "top_k": (0, -1),
    "top_p": (1,),
    "min_p": (0,),
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
    "negative_prompt": ("guidance_scale",),
}
_SHARED_SPOKEN = {"min_length": ("min_tokens", count), "negative_prompt": ("negative", text)}
_WEBUI_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_TAVERN_PENALTIES = ("rep_pen", "freq_pen", "presence_pen")

WEBUI = Dialect(
    program="text-generation-webui",
    id="webui",
    ours={
        **_SHARED_OURS,
        "temperature": "temperature",
        "max_new_tokens": "max_tokens",
        "top_n_sigma": "top_n_sigma",
        "dynatemp_low": "dynatemp_low",
        "dynatemp_high": "dynatemp_high",
        "repetition_penalty": "repetition_penalty",
        "frequency_penalty": "frequency_penalty",
        "presence_penalty": "presence_penalty",
        "repetition_penalty_range": "penalty_range",
    },
    spoken=_SHARED_SPOKEN,
    readers=_SHARED_READERS,
    flags={"dynamic_temperature": (True,), "mirostat_mode": (2,)},
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
        "repetition_penalty_range": _WEBUI_PENALTIES,
    },
    usual={
        "dynatemp_low": 1,
        "dynatemp_high": 1,
        "mirostat_tau": 5,
        "repetition_penalty_range": 1024,
    },
    quiet=frozenset({"sampler_priority"}),
    others_off=True,
    order=tuple(_WEBUI_ORDER.split()),
)

SILLYTAVERN = Dialect(
    program="SillyTavern",
    id="sillytavern",
    ours={
        **_SHARED_OURS,
        "temp": "temperature",
        "genamt": "max_tokens",
        "nsigma": "top_n_sigma",
        "skew": "skew",
        "min_temp": "dynatemp_low",
        "max_temp": "dynatemp_high",
        "rep_pen": "repetition_penalty",
        "freq_pen": "frequency_penalty",
        "presence_pen": "presence_penalty",
        "rep_pen_range": "penalty_range",
        "rep_pen_decay": "penalty_decay",
        "dry_penalty_last_n": "dry_range",
        "banned_tokens": "banned_tokens",
        "logit_bias": "logit_bias",
    },
    spoken={
        **_SHARED_SPOKEN,
        "banned_tokens": ("ban", phrase_bans),
        "global_banned_tokens": ("ban", phrases_alone),
        "json_schema": ("constraint", schema),
    },
    readers={**_SHARED_READERS, "banned_tokens": word_bans, "logit_bias": biases},
    flags={"dynatemp": (True,), "mirostat_mode": (2,)},
    off={
        **_SHARED_OFF,
        "dynatemp": (False,),
        "rep_pen": (1,),
        "rep_pen_slope": (0, 1),
        "rep_pen_size": (0,),
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
        "rep_pen_range": _TAVERN_PENALTIES,
        "rep_pen_size": _TAVERN_PENALTIES,
        "rep_pen_decay": _TAVERN_PENALTIES,
        "rep_pen_slope": ("rep_pen",),
        "json_schema_allow_empty": ("json_schema",),
        "send_banned_tokens": ("banned_tokens", "global_banned_tokens"),
    },
    usual={"min_temp": 0, "max_temp": 2, "mirostat_tau": 5},
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
            "send_banned_tokens",
        }
    ),
    others_off=False,
    order=tuple(name for step in STEPS for name, same in STEP_NAMES.items() if same == step),
)
