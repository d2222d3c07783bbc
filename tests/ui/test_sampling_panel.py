"""The steps of the sampling values, where values come from, and what of a preset is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.sampling.toml_file import parse_preset
from exlchat.chat.sampling.wishes import SamplingWishes
from exlchat.engine.sampling_settings import SamplingSettings
from exlchat.settings import SETTINGS, Settings
from exlchat.ui.generation_settings import EXPLAINED, NAMES, GenerationSettings, at_start
from exlchat.ui.options import AppOptions
from exlchat.ui.sampling_panel import next_choice, preset_lines, stepped, typed_text, value_lines

NOW = GenerationSettings(SamplingSettings(temperature=0.7, min_p=0.05))


@pytest.mark.parametrize(
    ("name", "value", "up", "down"),
    [
        ("temperature", "0.7", "0.8", "0.6"),
        ("temperature", "0.75", "0.8", "0.7"),
        ("temperature", "9", None, "5"),
        ("top_k", "0", "1", None),
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
        ("context_policy", "stop", "drop", None),
        ("context_policy", "summarise", None, "drop"),
    ],
)
def test_steps_go_through_sensible_values(name: str, value: str, up: str | None, down: str | None) -> None:
    now = NOW.with_value(name, value)
    assert (stepped(now, name, 1), stepped(now, name, -1)) == (up, down)


@given(st.sampled_from(NAMES), st.lists(st.sampled_from((1, -1)), max_size=40))
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
    assert {one for one in NAMES if "changes nothing" in list(value_lines(now, now, one))[1]} == idle


def test_the_last_word_is_followed_by_the_first() -> None:
    assert next_choice(NOW.with_value("context_policy", "summarise")) == "stop"


def test_a_value_is_typed_as_exactly_as_it_is() -> None:
    exact = NOW.with_value("temperature", "0.123456789")
    assert typed_text(exact, "temperature") == "0.123456789"


def test_every_value_is_explained_by_its_setting_where_it_is_one() -> None:
    for name in NAMES:
        assert EXPLAINED[name]
        assert name not in SETTINGS or EXPLAINED[name] == SETTINGS[name].about.help


def test_each_value_knows_where_it_comes_from() -> None:
    options = AppOptions(
        None,
        seed=4,
        sampling=SamplingWishes(temperature=0.2, top_k=7, top_p=0.5),
        sampling_sources={"top_k": "preset mine", "top_p": "persona Ada"},
    )
    settings = Settings(min_p=0.1, max_tokens=99, top_k=3, from_environment=frozenset({"max_tokens"}))
    start = at_start(options, settings, None)
    assert {name: start.source(name) for name in NAMES} == {
        "temperature": "typed",
        "top_k": "preset mine",
        "top_p": "persona Ada",
        "min_p": "settings",
        "seed": "typed",
        "max_tokens": "environment",
        "context_policy": "default",
    }
    later = start.with_value("top_p", "0.9").with_wishes(SamplingWishes(min_p=0.0), "preset x")
    assert (later.source("top_p"), later.source("min_p"), later.source("top_k")) == ("typed", "preset x", "preset mine")
    assert later.taking("top_p", start).source("top_p") == "persona Ada"


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
