"""How other programs say how tokens are drawn, in the bodies that they send."""

from __future__ import annotations

from typing import Any

import pytest

from exlchat.api.errors import ApiError
from exlchat.api.fields import Fields
from exlchat.api.sampling_fields import ALIASES, read_sampling
from exlchat.api.wishes import read_wishes
from exlchat.llm.controls import CONTROLS
from exlchat.llm.sampling import SamplingSettings

SILLYTAVERN = {
    "prompt": "Once",
    "model": "x",
    "max_new_tokens": 300,
    "max_tokens": 300,
    "temperature": 0.9,
    "temp": 0.9,
    "top_p": 1,
    "typical_p": 1,
    "typical": 1,
    "sampler_seed": -1,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "rep_pen": 1.1,
    "rep_pen_range": 1024,
    "repetition_penalty_range": 1024,
    "repetition_decay": 128,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_k": -1,
    "skew": 0,
    "min_tokens": 0,
    "length_penalty": 1,
    "early_stopping": False,
    "add_bos_token": True,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n", ":", "\\"", "*"]',
    "dry_penalty_last_n": 0,
    "dynatemp_low": 0,
    "dynatemp_high": 0,
    "dynatemp_range": 0,
    "dynatemp_exponent": 1,
    "stopping_strings": ["\nUser:"],
    "stop": ["\nUser:", "###"],
    "truncation_length": 8192,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "top_a": 0,
    "tfs": 1,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": "",
    "banned_strings": ["shivers down"],
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "top_n_sigma": 0,
    "temperature_last": True,
    "json_schema": {},
    "grammar_string": "",
    "seed": -1,
    "guidance_scale": 1,
    "negative_prompt": "",
    "stream": True,
}
"""What SillyTavern sends to a TabbyAPI, names side by side."""


def drawn(**body: Any) -> SamplingSettings:
    return SamplingSettings(**read_sampling(Fields(body)))


def test_a_body_of_sillytavern() -> None:
    fields = Fields(SILLYTAVERN)
    wishes = read_wishes(fields, top=None)
    found = SamplingSettings(**wishes.sampling)
    expected = SamplingSettings(
        temperature=0.9,
        min_p=0.05,
        repetition_penalty=1.1,
        penalty_range=1024,
        penalty_decay=128,
        dry_multiplier=0.8,
        dry_breakers=("\n", ":", '"', "*"),
    )
    on = {name for name in CONTROLS if expected.is_on(name)}
    assert {name for name in CONTROLS if found.is_on(name)} - {"order"} == on
    assert {name: getattr(found, name) for name in on} == {name: getattr(expected, name) for name in on}
    assert found.steps[-1] == "temperature"
    assert wishes.max_tokens == 300
    assert wishes.seed is None
    assert wishes.stream
    assert wishes.speech["stop"] == ("\nUser:", "###")
    assert wishes.speech["ban"] == ("shivers down",)
    assert "constraint" not in wishes.speech
    assert set(fields.ignored) <= {
        "early_stopping",
        "length_penalty",
        "model",
        "prompt",
        "skip_special_tokens",
        "truncation_length",
        "add_bos_token",
    }


@pytest.mark.parametrize(("name", "aliases"), ALIASES.items())
def test_every_alias_stands_for_its_control(name: str, aliases: tuple[str, ...]) -> None:
    control = CONTROLS[name]
    value: Any = {"texts": ["x"], "tokens": [7]}.get(control.kind)
    if value is None:
        value = 2 if control.kind == "whole" else 0.5 if control.high == 1 else 1.5
    for alias in aliases:
        wanted = {alias: value} | ({"dynatemp_high": 2.0} if name == "dynatemp_low" else {})
        found = getattr(drawn(**wanted), name)
        assert found == (tuple(value) if isinstance(value, list) else value), alias


def test_our_own_name_counts_before_others() -> None:
    assert drawn(repetition_penalty=1.2, rep_pen=1.5).repetition_penalty == 1.2
    assert drawn(rep_pen=1.5, repeat_penalty=1.7).repetition_penalty == 1.5


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"mirostat": 2, "mirostat_tau": 5}, {"mirostat_tau": 5}),
        ({"mirostat": 0, "mirostat_tau": 5}, {"mirostat_tau": 0}),
        ({"mirostat_tau": 5}, {"mirostat_tau": 5}),
        ({"dynatemp_range": 0.5, "temperature": 0.8}, {"dynatemp_low": pytest.approx(0.3), "dynatemp_high": 1.3}),
        ({"dynamic_temperature": False, "dynatemp_low": 1, "dynatemp_high": 2}, {"dynatemp_high": 0}),
        ({"temperature": 0, "dynatemp_low": 0.5, "dynatemp_high": 2}, {"dynatemp_high": 0, "temperature": 0}),
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0}),
        ({"min_temp": 0.5, "max_temp": 1.5, "temp_exponent": 2}, {"dynatemp_low": 0.5, "dynatemp_exponent": 2}),
        ({"repeat_last_n": -1, "repeat_penalty": 1.1}, {"penalty_range": 0}),
        ({"tfs_z": 0}, {"tfs": 1.0}),
        ({"top_k": 40.0}, {"top_k": 40}),
        ({"logit_bias": {"15": -100, "7": 2.5}}, {"logit_bias": ((15, -100.0), (7, 2.5))}),
        ({"logit_bias": [[15, 1], ["x", -1]]}, {"logit_bias": ((15, 1.0), ("x", -1.0))}),
        ({"logit_bias": []}, {"logit_bias": ()}),
        ({"custom_token_bans": "5, 7"}, {"banned_tokens": (5, 7)}),
        ({"banned_tokens": [5]}, {"banned_tokens": (5,)}),
        ({"temperature": None, "top_k": None}, {"temperature": 1.0, "top_k": 0}),
    ],
)
def test_what_others_mean(body: dict[str, Any], expected: dict[str, Any]) -> None:
    found = drawn(**body)
    assert {name: getattr(found, name) for name in expected} == expected


def test_of_nothing_the_likeliest_is_left() -> None:
    assert 0 < drawn(top_p=0).top_p < 1e-6


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"rep_pen": -2}, "rep_pen"),
        ({"temp": "hot"}, "temp"),
        ({"top_k": 1.5}, "top_k"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": 7}, "logit_bias"),
        ({"custom_token_bans": "x"}, "custom_token_bans"),
        ({"dry_sequence_breakers": "[["}, "dry_sequence_breakers"),
        ({"sampler_seed": 1.5}, "sampler_seed"),
        ({"order": ["nothing"]}, "order"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids"),
        ({"stop": 7}, "stop"),
        ({"stop": ["a"] * 9, "stop_sequence": [str(n) for n in range(128)]}, "stop"),
        ({"json_schema": {"type": "object"}, "regex": "a+"}, "regex"),
        ({"regex": 7}, "regex"),
        ({"guided_choice": ["a\nb"]}, "guided_choice"),
        ({"guided_json": "{"}, "guided_json"),
        ({"draft": "x"}, "draft"),
    ],
)
def test_what_cannot_be_is_named_as_it_was_sent(body: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read_wishes(Fields(body), top=None)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert param in caught.value.message


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        ({"json_schema": {"type": "object"}}, "json_schema", '{"type": "object"}'),
        ({"guided_json": '{"type": "object"}'}, "json_schema", '{"type": "object"}'),
        ({"regex_pattern": "a+"}, "regex", "a+"),
        ({"guided_choice": ["yes", "no"]}, "choice", "yes\nno"),
        ({"structured_outputs": {"regex": "a+"}}, "regex", "a+"),
        ({"structured_outputs": {"choice": ["yes"]}}, "choice", "yes"),
        ({"grammar_string": "start: x"}, "grammar", "start: x"),
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}'),
        ({"response_format": {"type": "json_object", "schema": {"type": "array"}}}, "json_schema", '{"type": "array"}'),
    ],
)
def test_what_an_answer_has_to_be(body: dict[str, Any], kind: str, text: str) -> None:
    constraint = read_wishes(Fields(body), top=None).speech["constraint"]
    assert (constraint.kind, constraint.text) == (kind, text)
