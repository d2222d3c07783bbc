"""What somebody wants of an answer, over what somebody else wants."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, reject

from exlchat.app.generation_settings import GenerationSettings, at_start
from exlchat.app.options import AppOptions
from exlchat.chat.answer_option_values import ANSWER_OPTIONS
from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.personas.toml_file import read_persona
from exlchat.chat.presets.overrides import WISHED, SamplingOverrides
from exlchat.chat.presets.preset import SamplingPresetError
from exlchat.chat.presets.toml_file import read_preset
from exlchat.config.layers import Layer, Resolved, resolve
from exlchat.llm.constraint import Constraint
from exlchat.llm.controls import CONTROLS, STEPS
from exlchat.llm.sampling import SamplingSettings
from tests.chat.personas.strategies import sampling as overrides


def test_there_is_a_wish_for_every_control() -> None:
    """The fields are written out, so that they are checked by type; this holds them to the table."""
    assert [one.name for one in fields(SamplingOverrides)] == [
        *(one.name for one in fields(SamplingSettings)),
        *ANSWER_OPTIONS,
        "max_tokens",
        "others_off",
    ]


def over(first: SamplingOverrides, second: SamplingOverrides) -> Resolved:
    """The wishes of one over those of the other; raises `ValueError` where they contradict each other."""
    typed = AppOptions(None).with_layer(Layer("typed", first.decided()))
    return resolve(*typed.with_layer(Layer("preset", second.decided())).layers)


def wished(held: Resolved) -> dict[str, Any]:
    return {name: held.value(name) for name in WISHED if held.source(name) != "default"}


@given(overrides, overrides)
def test_the_first_wins_value_by_value(first: SamplingOverrides, second: SamplingOverrides) -> None:
    try:
        both = wished(over(first, second))
    except ValueError:
        # They contradict each other, which is a test of its own.
        reject()
    for name in (*CONTROLS, *ANSWER_OPTIONS, "max_tokens"):
        values = []
        for one in (first, second):
            off = CONTROLS[name].off if one.others_off and name in CONTROLS else None
            values.append(off if getattr(one, name) is None else getattr(one, name))
        assert both.get(name) == (values[1] if values[0] is None else values[0])


@given(overrides)
def test_no_wish_changes_nothing(some: SamplingOverrides) -> None:
    nothing = SamplingOverrides()
    assert wished(over(nothing, some)) == wished(over(some, nothing)) == some.decided()


@given(overrides, overrides)
def test_applying_both_is_applying_one_after_the_other(first: SamplingOverrides, second: SamplingOverrides) -> None:
    base = SamplingSettings(temperature=0.7, top_k=3, top_p=0.9, min_p=0.05, xtc_probability=0.5)
    try:
        one_by_one = first.apply(second.apply(base))
    except ValueError:
        # They contradict each other, which is a test of its own.
        reject()
    drawn = {name: value for name, value in wished(over(first, second)).items() if name in CONTROLS}
    assert replace(base, **drawn) == one_by_one


def test_all_else_off_leaves_nothing_of_what_was_on() -> None:
    base = SamplingSettings(temperature=0.7, xtc_probability=0.5, dry_multiplier=0.8, banned_tokens=(5,))
    assert SamplingOverrides(min_p=0.1, others_off=True).apply(base) == SamplingSettings(min_p=0.1)
    assert SamplingOverrides(min_p=0.1).apply(base).xtc_probability == 0.5


def test_what_contradicts_what_holds_is_said_where_they_meet() -> None:
    wish = SamplingOverrides(dynatemp_high=1.5)
    with pytest.raises(ValueError, match="temperature 0 takes the likeliest token") as caught:
        wish.apply(SamplingSettings(temperature=0.0))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="set one of them back"):
        over(SamplingOverrides(temperature=0.0), wish)
    # Alone it may be: the other half of it may hold already.
    low = SamplingOverrides(dynatemp_low=0.5)
    assert low.apply(SamplingSettings(dynatemp_high=2.0)).dynatemp_low == 0.5
    with pytest.raises(ValueError, match=r"dynatemp_low is 0\.5"):
        low.apply(SamplingSettings())


def test_an_order_names_all_steps_or_those_that_come_last() -> None:
    order = SamplingOverrides(order=("min_p", "temperature")).order
    assert order is not None
    assert order[-2:] == ("min_p", "temperature")
    assert set(order) == set(STEPS)
    assert SamplingOverrides(order=tuple(reversed(STEPS))).order == tuple(reversed(STEPS))
    with pytest.raises(ValueError, match="order names 'warmth'; the steps are smoothing"):
        SamplingOverrides(order=("warmth",))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("inf")}, "temperature is inf; it must be a number"),
        ({"temperature": 10**5000}, "temperature is too large"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_k": 10**10}, "top_k is too large"),
        ({"xtc_threshold": 0.6}, "xtc_threshold is 0.6; it must be a number above 0, up to 0.5"),
        ({"no_repeat_ngram": 1}, "no_repeat_ngram is 1"),
        ({"dry_breakers": "x"}, "dry_breakers is 'x'; it must be a list"),
        ({"logit_bias": ((3, 2000.0),)}, "logit_bias of 3 is 2000.0"),
        ({"banned_tokens": (-1,)}, "banned_tokens names -1; a token is its id, or its text"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_is_one_short_line(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as caught:
        SamplingOverrides(**values)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 120


def test_a_start_goes_by_what_was_typed_then_by_the_settings() -> None:
    settings = Layer("file", {"temperature": 0.4, "top_p": 0.9, "max_tokens": 100})
    typed = Layer("typed", SamplingOverrides(top_p=0.5, max_tokens=7).decided())
    assert at_start(resolve(typed, settings), None) == GenerationSettings(
        SamplingSettings(temperature=0.4, top_p=0.5, min_p=0.05), max_tokens=7
    )
    assert at_start(resolve(settings), None).max_tokens == 100


def test_a_schema_may_lie_in_a_file_beside_the_preset_or_persona(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "object"}')
    (tmp_path / "p.toml").write_text('schema = "s.json"\nban = ["delve"]\nmin_tokens = 5\n')
    overrides = read_preset(tmp_path / "p.toml").overrides
    assert overrides.constraint == Constraint("json_schema", '{"type": "object"}')
    assert overrides.speak(AnswerOptions(stop=("x",))) == AnswerOptions(
        stop=("x",), ban=("delve",), min_tokens=5, constraint=overrides.constraint
    )
    (tmp_path / "ada.toml").write_text('[sampling]\nschema = "s.json"\n')
    assert read_persona(tmp_path / "ada.toml").sampling.constraint == overrides.constraint
    for text, wrong in (
        ('schema = "gone.json"', "there is no such file"),
        ('schema = "s.json"\nregex = "a"', "schema and regex are both there"),
        ("choice = []", "empty"),
        ("min_tokens = -1", "min_tokens"),
        ('ban = [""]', "ban"),
        ("baned = []", "did you mean ban"),
    ):
        (tmp_path / "p.toml").write_text(text)
        with pytest.raises(SamplingPresetError, match=wrong):
            read_preset(tmp_path / "p.toml")
