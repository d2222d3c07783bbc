"""The steps of the sampling values, where values come from, and what of a preset is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat import paths
from exlchat.app.generation_settings import EXPLAINED, MAIN, NAMES, GenerationSettings, at_start
from exlchat.app.panels.sampling import groups, next_choice, preset_lines, stepped, typed_text, value_lines
from exlchat.app.panels.sampling_idle import order_line
from exlchat.chat.presets.control_values import from_plain, from_text, to_plain, to_text
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.toml_file import parse_preset
from exlchat.config.files import SettingsError
from exlchat.config.layers import Layer, resolve, typed
from exlchat.config.schema import SETTINGS
from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import CONTROLS
from exlchat.llm.sampling import SamplingSettings, order_with_last
from tests.chat.personas.strategies import control_values

NOW = GenerationSettings(SamplingSettings(temperature=0.7, min_p=0.05))


@pytest.mark.parametrize(
    ("name", "value", "up", "down"),
    [
        ("temperature", "0.7", "0.8", "0.6"),
        ("temperature", "0.75", "0.8", "0.7"),
        ("temperature", "9", None, "5"),
        # From off to what is usual, in its direction.
        ("top_k", "0", "40", None),
        ("top_k", "1", "2", "0"),
        ("xtc_probability", "off", "0.5", None),
        ("typical_p", "1", None, "0.9"),
        ("skew", "0", "0.2", "-0.1"),
        ("repetition_penalty", "1", "1.1", "0.95"),
        ("no_repeat_ngram", "0", "8", None),
        ("no_repeat_ngram", "2", "3", "0"),
        ("epsilon_cutoff", "0.0003", "0.0004", "0.0002"),
        ("mirostat_tau", "off", "5", None),
        ("xtc_threshold", "0.5", None, "0.45"),
        ("penalty_range", "0", "64", None),
        ("guidance_scale", "1", "1.5", "0.9"),
        ("dry_breakers", "off", None, None),
        ("order", "off", None, None),
        ("top_k", "45", "60", "40"),
        ("top_p", "0.95", "1", "0.9"),
        ("top_p", "0.05", "0.1", None),
        ("min_p", "0.05", "0.06", "0.04"),
        ("min_p", "1", None, "0.75"),
        ("seed", "none", "0", None),
        ("seed", "0", "1", "none"),
        ("seed", "9223372036854775807", None, "9223372036854775806"),
        ("max_tokens", "none", None, "16384"),
        ("max_tokens", "16384", "none", "8192"),
        ("max_tokens", "16", "32", None),
        ("context_policy", "drop", "summarise", None),
        ("context_policy", "stop", None, "summarise"),
    ],
)
def test_steps_go_through_sensible_values(name: str, value: str, up: str | None, down: str | None) -> None:
    now = NOW.with_value(name, value)
    assert (stepped(now, name, 1), stepped(now, name, -1)) == (up, down)


@given(
    st.sampled_from([name for name in NAMES if name != "dynatemp_low"]), st.lists(st.sampled_from((1, -1)), max_size=40)
)
def test_every_step_is_a_value_that_can_be_and_moves(name: str, steps: list[int]) -> None:
    now = NOW
    for by in steps:
        text = stepped(now, name, by)
        if text is not None:
            assert now.with_value(name, text) != now
            now = now.with_value(name, text)
            assert now.with_value(name, typed_text(now, name)) == now


@pytest.mark.parametrize(
    ("name", "value", "idle"),
    [
        ("temperature", "0", {"top_k", "top_p", "min_p", "seed"}),
        ("top_k", "1", {"temperature", "top_p", "min_p", "seed"}),
        ("temperature", "1", set()),
    ],
)
def test_a_value_that_changes_nothing_is_said_to(name: str, value: str, idle: set[str]) -> None:
    now = NOW.with_value(name, value)
    assert {one for one in MAIN if "changes nothing" in list(value_lines(now, now, one, {}))[1]} == idle


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("xtc_threshold", {}, "xtc_probability is off"),
        ("xtc_threshold", {"xtc_probability": "0.5"}, ""),
        ("xtc_probability", {"top_k": "1"}, "the most likely token is always taken"),
        ("mirostat_eta", {"temperature": "0", "mirostat_tau": "5"}, "the most likely token is always taken"),
        # What bends the logits bends the likeliest token too.
        ("repetition_penalty", {"temperature": "0"}, ""),
        ("guidance_scale", {"temperature": "0"}, ""),
        ("penalty_range", {}, "repetition_penalty, frequency_penalty, presence_penalty are off"),
        ("penalty_range", {"presence_penalty": "0.1"}, ""),
        ("penalty_decay", {"presence_penalty": "0.1"}, "penalty_range is off"),
        ("temperature", {"dynatemp_high": "1.5"}, "dynatemp_high takes its place"),
        ("order", {}, ""),
        ("order", {"min_p": "0"}, "fewer than two steps are on"),
    ],
)
def test_why_a_value_is_idle_is_said(name: str, settings: dict[str, str], reason: str) -> None:
    now = NOW
    for other, value in settings.items():
        now = now.with_value(other, value)
    held = list(value_lines(now, now, name, {}))[1]
    assert held.endswith(f"It changes nothing while {reason}." if reason else ").")


def test_the_order_of_what_is_on_is_said() -> None:
    assert order_line(NOW.sampling) == "order: temperature → min_p → draw"
    now = NOW.with_value("dry_multiplier", "0.8").with_value("presence_penalty", "0.1").with_value("logit_bias", "5=1")
    now = now.with_value("smoothing_factor", "0.3").with_value("order", "min_p, temperature")
    assert order_line(now.sampling) == "order: penalties → DRY → logit_bias → smoothing → min_p → temperature → draw"
    greedy = now.with_value("temperature", "0")
    assert order_line(greedy.sampling) == "order: penalties → DRY → logit_bias → the likeliest token"


def test_what_is_on_is_shown_and_the_rest_stands_in_groups() -> None:
    now = NOW.with_value("xtc_probability", "0.5")
    first, *others = groups(now)
    assert first == ("", [*MAIN, "xtc_probability"])
    assert [group for group, _ in others] == [*dict.fromkeys(one.group for one in CONTROLS.values()), "What is said"]
    assert sorted([*first[1], *(name for _, names in others for name in names)]) == sorted(NAMES)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dry_breakers", '"\\n" ":"', ("\n", ":")),
        ("dry_breakers", "\\n, :", ("\n", ":")),
        ("dry_breakers", '["a b", "\\""]', ("a b", '"')),
        ("dry_breakers", "[]", ()),
        ("banned_tokens", '" delve", 42, "42"', (" delve", 42, "42")),
        ("logit_bias", '" the"=-2, 42=5', ((" the", -2.0), (42, 5.0))),
        ("logit_bias", "[[42, 5]]", ((42, 5.0),)),
        ("logit_bias", '{"a=b": 1}', (("a=b", 1.0),)),
        ("order", "min_p temperature", order_with_last(["min_p", "temperature"])),
        ("order", "default", SamplingSettings().order),
        ("skew", "-0.5", -0.5),
        ("stop", '"\\n\\n", END', ("\n\n", "END")),
        ("ban", "off", ()),
        ("begin", '" Sure"', " Sure"),
        ("begin", "Sure, here", "Sure, here"),
        ("constraint", "regex [a-z]+, *[0-9]", Constraint("regex", "[a-z]+, *[0-9]")),
        ("constraint", 'choice yes, "not at all"', Constraint("choice", "yes\nnot at all")),
        ("constraint", 'schema {"type": "object"}', Constraint("json_schema", '{"type": "object"}')),
        ("constraint", 'grammar "start: A\\nA: /a/"', Constraint("grammar", "start: A\nA: /a/")),
        ("constraint", "off", None),
        ("think", "on", True),
        ("think", "none", None),
        ("thinking_budget", "200", 200),
        ("thinking_budget", "none", None),
        ("stop_repeating", "off", False),
        ("draft", "ngram", "ngram"),
        ("top_n_sigma", "off", 0.0),
    ],
)
def test_values_are_typed_in_plain_words_and_as_json(name: str, text: str, value: object) -> None:
    now = NOW.with_value(name, text)
    assert now.value(name) == value
    assert now.with_value(name, typed_text(now, name)) == now


@given(st.data())
def test_every_value_can_be_typed_as_it_is_shown_in_the_field(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(CONTROLS)))
    value = data.draw(control_values(name))
    assert from_text(name, to_text(name, value)) == value
    assert from_plain(name, to_plain(name, value)) == value


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("xtc_threshold", "0.6", "xtc_threshold is 0.6; it must be a number above 0, up to 0.5"),
        ("dry_range", "1.5", "dry_range is '1.5'; it must be a whole number from 0"),
        ("logit_bias", "the", "logit_bias is not like a list at 'the'; it is typed like \" the\"=-2, 42=5"),
        ("logit_bias", "the=x", "logit_bias has 'x' behind =; there must be a number"),
        ("logit_bias", "the=2000", "logit_bias of 'the' is 2000.0; it must be a number from -1000 to 1000"),
        ("banned_tokens", '"a', "banned_tokens is not like a list at '\"a'"),
        ("banned_tokens", "[1,", "banned_tokens is no list that can be read"),
        ("order", "warmth", "order names 'warmth'; the steps are smoothing"),
        ("temperature", "0", "temperature 0 takes the likeliest token, and dynatemp_high wants to draw"),
        ("xtc_probabilty", "1", "there is no setting xtc_probabilty; did you mean xtc_probability?"),
    ],
)
def test_what_cannot_be_typed_is_one_line(name: str, text: str, said: str) -> None:
    now = NOW.with_value("dynatemp_high", "1.5")
    with pytest.raises(ValueError) as caught:
        now.with_value(name, text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_last_word_is_followed_by_the_first() -> None:
    assert next_choice(NOW.with_value("context_policy", "summarise"), "context_policy") == "stop"


def test_a_value_is_typed_as_exactly_as_it_is() -> None:
    exact = NOW.with_value("temperature", "0.123456789")
    assert typed_text(exact, "temperature") == "0.123456789"


def test_every_value_is_explained_by_its_setting_where_it_is_one() -> None:
    for name in NAMES:
        assert EXPLAINED[name]
        assert name not in SETTINGS or EXPLAINED[name] == SETTINGS[name].help


def test_each_value_knows_where_it_comes_from() -> None:
    held = resolve(
        typed(seed=4, temperature=0.2),
        Layer("preset", {"top_k": 7}, "preset mine"),
        Layer("persona", {"top_p": 0.5}, "persona Ada"),
        Layer("environment", {"max_tokens": 99}),
        Layer("file", {"min_p": 0.1, "top_k": 3}),
    )
    start = at_start(held, None)
    assert {name: start.source(name) for name in MAIN} == {
        "temperature": "typed",
        "top_k": "preset mine",
        "top_p": "persona Ada",
        "min_p": "settings",
        "seed": "typed",
        "max_tokens": "environment",
        "context_policy": "default",
    }
    later = start.with_value("top_p", "0.9").with_overrides(SamplingOverrides(min_p=0.0), "preset x")
    assert [later.source(name) for name in ("top_p", "min_p", "top_k")] == ["conversation", "preset x", "preset mine"]
    assert later.taking(["top_p"], start).source("top_p") == "persona Ada"
    all_of_it = start.with_overrides(SamplingOverrides(min_p=0.0, others_off=True), "preset x")
    assert {all_of_it.source(name) for name in CONTROLS} == {"preset x"}
    table = at_start(resolve(Layer("file", {"sampling": (("skew", 0.1),)})), None)
    assert (table.source("skew"), table.source("top_a")) == ("settings", "default")


def test_the_greedy_default_of_the_guide_gives_way_to_a_dynamic_temperature() -> None:
    wish = typed(dynatemp_high=1.5)
    assert at_start(resolve(wish), paths.bundled_model()).sampling.steps == ("temperature", "min_p")
    with pytest.raises(SettingsError, match=r"does not go with settings\.toml: temperature 0 takes"):
        at_start(resolve(wish, Layer("file", {"temperature": 0.0})), None)


def test_where_values_come_from_is_no_difference_between_them() -> None:
    assert NOW.with_value("temperature", "0.7") == NOW


def test_what_a_preset_wishes_for_and_cannot_have_is_named() -> None:
    preset = parse_preset(
        'description = "Mine"\ntop_k = 5\n[foreign.webui]\nrepetition_penalty = 1.2\n"a\\u001bb" = 1\n',
        str(Path("x.toml")),
    )
    lines = list(preset_lines(preset, NOW, "preset mine"))
    assert lines[0] == "Mine"
    assert lines[1] == "top_k 5. Changes top_k 0 → 5."
    assert lines[2] == "Not applied: webui repetition_penalty, webui a b"
    assert list(preset_lines(preset, NOW.with_value("top_k", "5"), "preset mine"))[1] == "top_k 5. It holds now."
