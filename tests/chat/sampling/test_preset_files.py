"""Preset files: read, checked, written back, and found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat import paths
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.presets.registry import PRESETS
from exlchat.chat.presets.toml_file import parse_preset, read_preset, write_text
from exlchat.config.schema import Settings
from exlchat.llm.controls import STEPS
from exlchat.llm.sampling import SamplingSettings
from tests.chat.personas.strategies import sampling as overrides
from tests.chat.personas.strategies import texts, toml_values
from tests.patience import within

FULL = """
description = "For maps"
temperature = 1
top_k = 40
top_p = 0.9
min_p = 0.1
max_tokens = 99

[foreign.webui]
repetition_penalty = 1.18
sampler_priority = ["top_k", "temperature"]
"""

presets = st.builds(
    SamplingPreset, description=texts, overrides=overrides, foreign=st.dictionaries(texts, toml_values, max_size=3)
)


def test_every_key_is_read() -> None:
    assert parse_preset(FULL, "maps.toml") == SamplingPreset(
        "For maps",
        SamplingOverrides(temperature=1.0, top_k=40, top_p=0.9, min_p=0.1, max_tokens=99),
        {"webui": {"repetition_penalty": 1.18, "sampler_priority": ["top_k", "temperature"]}},
    )


@given(presets)
def test_what_is_written_is_read_again(preset: SamplingPreset) -> None:
    assert parse_preset(write_text(preset), "x.toml") == preset


def test_lists_and_orders_are_written_as_people_like_to_read_them() -> None:
    text = """
dry_breakers = ["\\n", ":"]
banned_tokens = [" delve", 42]
order = ["min_p", "temperature"]
others_off = true

[logit_bias]
" the" = -2
"""
    overrides = parse_preset(text, "x.toml").overrides
    assert overrides.dry_breakers == ("\n", ":")
    assert overrides.banned_tokens == (" delve", 42)
    assert overrides.logit_bias == ((" the", -2.0),)
    assert overrides.order is not None
    assert overrides.order[-2:] == ("min_p", "temperature")
    again = write_text(SamplingPreset(overrides=overrides))
    assert 'order = ["min_p", "temperature"]' in again
    assert parse_preset(again, "x.toml").overrides == overrides
    # An id is no text, so a table of them is written as pairs.
    pairs = parse_preset('logit_bias = [[5, 1.5], ["5", -1]]', "x.toml").overrides
    assert pairs.logit_bias == ((5, 1.5), ("5", -1.0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("temprature = 1", "unknown key 'temprature'; did you mean temperature?"),
        ("top-k = 1", "unknown key 'top-k'; did you mean top_k?"),
        ("hue = 1", "unknown key 'hue'; the keys are description, temperature"),
        ("xtc = 0.5", "unknown key 'xtc'; did you mean xtc_probability or xtc_threshold?"),
        ("xtc_threshold = 0.9", "xtc_threshold is 0.9; it must be a number above 0, up to 0.5"),
        ("dynatemp_high = 1\ndynatemp_low = 2", "dynatemp_low is 2 and dynatemp_high 1"),
        ("dry_breakers = [1]", "dry_breakers is [1]; it must be a list of texts in quotes"),
        ("banned_tokens = [true]", "it must be a list of tokens, each a text in quotes or an id"),
        ('logit_bias = {" the" = "low"}', "it must be a table of tokens in quotes with a number each"),
        ("logit_bias = [[1, 2, 3]]", "logit_bias holds [1, 2, 3]; it must be pairs"),
        ('order = ["min_p", "min_p"]', "order names a step twice"),
        ('others_off = "yes"', "others_off is 'yes'; it must be true or false"),
        ('temperature = "warm"', "temperature is 'warm'; it must be a number"),
        ("temperature = -1", "temperature is -1"),
        ("temperature = nan", "temperature is nan"),
        ("temperature = " + "9" * 400, "temperature is too large"),
        ("top_k = true", "top_k is True; it must be a whole number"),
        ("top_k = 1.5", "top_k is 1.5; it must be a whole number"),
        ("top_p = 0", "top_p is 0"),
        ("max_tokens = 0", "max_tokens is 0"),
        ("foreign = 1", "foreign is 1; it must be a table"),
        ("description = 2020-01-01", "it must be a text in quotes"),
        ("temperature = ", "not TOML"),
        ("x = " + "[" * 5000, "not TOML"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(text: str, said: str) -> None:
    with within(1), pytest.raises(SamplingPresetError) as caught:
        parse_preset(text, "folder/a.toml")
    line = str(caught.value)
    assert line.startswith("folder/a.toml: ")
    assert said in line
    assert "\n" not in line
    assert len(line) < 300


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    latin = tmp_path / "a.toml"
    latin.write_bytes(b'description = "\xe9"')
    with pytest.raises(SamplingPresetError, match="byte 15 is not UTF-8"):
        read_preset(latin)
    with pytest.raises(SamplingPresetError, match="there is no such file"):
        read_preset(tmp_path / "none.toml")
    large = tmp_path / "large.toml"
    large.write_text("#" * 1_000_001)
    with pytest.raises(SamplingPresetError, match="which no preset is"):
        read_preset(large)
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    with pytest.raises(SamplingPresetError, match="not a plain file"):
        read_preset(pipe)


def test_those_that_come_along_say_when_to_take_them_and_leave_nothing_open() -> None:
    listed = PRESETS.all(Path("/nowhere"), paths.shipped_presets())
    assert not listed.problems
    by_id = {one.id: one.preset for one in listed.entries}
    plain = {"deterministic", "precise", "balanced", "creative", "wild"}
    assert set(by_id) == plain | {"storyteller", "steady", "mirostat", "typical"}
    busy = SamplingSettings(0.1, 1, 0.1, 0.9, dry_multiplier=1.0, skew=0.5, banned_tokens=(3,), order=STEPS[::-1])
    for name, preset in by_id.items():
        assert 20 < len(preset.description) < 100
        # Whatever held before, what holds after it is the same.
        assert preset.overrides.apply(busy) == preset.overrides.apply(SamplingSettings())
        assert name not in plain or set(preset.overrides.given()) == {"temperature", "top_k", "top_p", "min_p"}
    heat = [by_id[one].overrides.temperature for one in ("deterministic", "precise", "balanced", "creative", "wild")]
    assert heat == sorted(heat)
    assert by_id["deterministic"].overrides.apply(SamplingSettings()).greedy
    # Its line says that it is what holds where nothing is said.
    assert by_id["balanced"].overrides.apply(SamplingSettings(0.1, 1, 0.1, 0.9)) == Settings().drawing()


def test_the_users_own_go_before_those_that_come_along(tmp_path: Path) -> None:
    (tmp_path / "wild.toml").write_text("temperature = 5\n")
    (tmp_path / "broken.toml").write_text("temperature = -1\n")
    (tmp_path / "My Own.toml").write_text("top_k = 5\n")
    listed = PRESETS.all(tmp_path, paths.shipped_presets())
    assert [one.id for one in listed.entries if not one.shipped] == ["My Own", "wild"]
    assert len(listed.entries) == 10
    assert len(listed.problems) == 1
    assert "broken.toml: temperature is -1" in listed.problems[0]
    assert PRESETS.find("wild", tmp_path).path == tmp_path / "wild.toml"
    assert PRESETS.find("My Own", tmp_path).preset.overrides.top_k == 5
    assert PRESETS.find("Creative", tmp_path).shipped
    assert PRESETS.find(str(tmp_path / "wild.toml")).preset.overrides.temperature == 5
    with pytest.raises(SamplingPresetError, match="did you mean creative"):
        PRESETS.find("creativ", tmp_path)
    with pytest.raises(SamplingPresetError, match="there are My Own, wild, balanced"):
        PRESETS.find("../../etc/passwd", tmp_path)
    with pytest.raises(SamplingPresetError, match="temperature is -1"):
        PRESETS.find("broken", tmp_path)
