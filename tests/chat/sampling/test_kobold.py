"""Presets of KoboldAI, as SillyTavern writes them for that backend, and values as KoboldCpp is asked with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exlchat.chat.presets.other_programs import ImportedPreset, read_file
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.toml_file import parse_preset, write_text
from exlchat.llm.sampling import SamplingSettings

# All keys of such a file, each at the value that switches it off.
NEUTRAL: dict[str, Any] = {
    "temp": 1,
    "rep_pen": 1,
    "rep_pen_range": 0,
    "top_p": 1,
    "min_p": 0,
    "top_a": 0,
    "top_k": 0,
    "typical": 1,
    "tfs": 1,
    "rep_pen_slope": 0,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "mirostat": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "use_default_badwordsids": False,
    "grammar": "",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def read(folder: Path, **values: Any) -> ImportedPreset:
    file = folder / "k.json"
    file.write_text(json.dumps({**NEUTRAL, **values}))
    found = read_file(file)
    assert parse_preset(write_text(found.preset), "k.toml") == found.preset
    return found


def steps(found: ImportedPreset) -> tuple[str, ...]:
    return found.preset.overrides.apply(SamplingSettings()).steps


def test_a_neutral_one_switches_all_off_that_it_names(folder: Path) -> None:
    found = read(folder)
    assert (found.kind, found.preset.description) == ("preset of KoboldAI", "k, of KoboldAI")
    on = SamplingSettings(0.7, 9, 0.9, 0.1, top_a=0.2, typical_p=0.5, tfs=0.9, mirostat_tau=4.0, repetition_penalty=1.1)
    assert found.preset.overrides.apply(on) == SamplingSettings()
    assert (found.notices, dict(found.preset.foreign)) == ((), {})


def test_mirostat_comes_with_its_tau_and_eta_and_in_the_place_of_all_that_cuts(folder: Path) -> None:
    found = read(folder, temp=1.17, mirostat=2, mirostat_tau=9.62, mirostat_eta=1, top_p=0.5, top_k=40, rep_pen=1.1)
    overrides = found.preset.overrides
    assert (overrides.mirostat_tau, overrides.mirostat_eta, overrides.temperature) == (9.62, 1.0, 1.17)
    assert (overrides.top_p, overrides.top_k, overrides.repetition_penalty) == (1.0, 0, 1.1)
    assert steps(found) == ("temperature", "mirostat")
    assert found.notices == ()
    # What a file leaves out is 5 there.
    file = folder / "short.json"
    file.write_text('{"temp": 1, "rep_pen": 1, "mirostat": 2}')
    assert read_file(file).preset.overrides.mirostat_tau == 5.0


def test_mirostat_1_is_another_and_named(folder: Path) -> None:
    found = read(folder, mirostat=1, mirostat_tau=4)
    assert found.preset.overrides.mirostat_tau in (None, 0.0)
    assert found.notices == ("k.json: kept, not applied: mirostat 1",)
    assert found.preset.foreign["kobold"]["mirostat_tau"] == 4


CUTS = {"temp": 1.5, "top_k": 9, "top_a": 0.2, "top_p": 0.9, "min_p": 0.1, "tfs": 0.9, "typical": 0.8}


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([6, 0, 1, 3, 4, 2, 5], ("top_k", "top_a", "tfs", "typical", "top_p", "min_p", "temperature")),
        ([6, 5, 4, 3, 2, 1, 0], ("temperature", "typical", "tfs", "top_p", "min_p", "top_a", "top_k")),
        # As if it were the first, where a file says none.
        (None, ("top_k", "top_a", "tfs", "typical", "top_p", "min_p", "temperature")),
    ],
)
def test_an_order_of_numbers(folder: Path, order: list[int] | None, expected: tuple[str, ...]) -> None:
    found = read(folder, **CUTS, rep_pen=1.1, sampler_order=order)
    assert steps(found) == expected
    assert (found.notices, dict(found.preset.foreign)) == ((), {})
    assert steps(read(folder, **CUTS, sampler_order=order, xtc_probability=0.5)) == (*expected, "xtc")


def test_the_temperature_brings_along_what_is_done_with_it(folder: Path) -> None:
    more = {"dynatemp_range": 0.7, "dynatemp_exponent": 2, "smoothing_factor": 0.3, "nsigma": 1.5}
    found = read(folder, temp=0.5, min_p=0.1, sampler_order=[6, 5, 0, 1, 2, 3, 4], **more)
    assert steps(found) == ("temperature", "smoothing", "top_n_sigma", "min_p")
    overrides = found.preset.overrides
    # Half a range below and above, but not below 0.
    assert (overrides.dynatemp_low, overrides.dynatemp_high, overrides.dynatemp_exponent) == (0.0, 1.2, 2.0)
    assert found.notices == ()
    assert not read(folder, temp=0.5, dynatemp_range=0).preset.overrides.dynatemp_high


@pytest.mark.parametrize(
    ("values", "named"),
    [
        # Penalties come first here.
        ({"rep_pen": 1.1, "sampler_order": [5, 6, 0, 1, 2, 3, 4]}, "sampler_order [5, 6, 0, 1, 2, 3, 4]"),
        ({"sampler_order": [6, 0, 9]}, "sampler_order [6, 0, 9]"),
        ({"sampler_order": ["a"]}, "sampler_order ['a']"),
        ({"rep_pen": 1.1, "rep_pen_slope": 0.7}, "rep_pen_slope 0.7"),
        ({"grammar": 'root ::= "a"'}, 'grammar root ::= "a"'),
        ({"use_default_badwordsids": True}, "use_default_badwordsids True"),
        ({"sampler_seed": 7}, "sampler_seed 7"),
        ({"logit_bias": {"5": -100}}, "logit_bias {'5': -100}"),
        ({"something_new": 3}, "something_new 3"),
        ({"dynatemp_range": "wide"}, "dynatemp_range wide"),
        ({"max_length": 2048}, "max_length 2048"),
        ({"tfs": 4}, "tfs 4"),
    ],
)
def test_what_is_not_followed_is_kept_and_named(folder: Path, values: dict[str, Any], named: str) -> None:
    found = read(folder, **{"temp": 1.5, "min_p": 0.1, **values})
    assert found.notices == (f"k.json: kept, not applied: {named}",)
    assert found.preset.overrides.min_p == 0.1


def test_an_order_that_changes_nothing_is_not_named(folder: Path) -> None:
    for values in ({}, {"temp": 1.5}, {"temp": 0, "top_k": 1, "rep_pen": 1.1}):
        assert read(folder, **values, sampler_order=[5, 6, 0, 1, 2, 3, 4]).notices == ()


def test_values_as_the_server_is_asked_with_them(folder: Path) -> None:
    file = folder / "asked.json"
    asked = {
        "temperature": 0.8,
        "rep_pen": 1.07,
        "rep_pen_range": 360,
        "rep_pen_slope": 1,
        "typical": 1,
        "max_context_length": 4096,
        "max_length": 220,
        "sampler_order": [6, 0, 1, 3, 4, 2, 5],
        "stop_sequence": ["\n###", ""],
        "banned_tokens": ["a shiver"],
        "presence_penalty": 0.2,
        "dry_multiplier": 0.8,
        "dry_penalty_last_n": 512,
        "dry_sequence_breakers": ["\n", ":"],
        "genkey": "KCPP1",
        "prompt": "",
    }
    file.write_text(json.dumps(asked))
    found = read_file(file)
    assert found.preset.overrides == SamplingOverrides(
        temperature=0.8,
        repetition_penalty=1.07,
        presence_penalty=0.2,
        penalty_range=360,
        typical_p=1.0,
        dry_multiplier=0.8,
        dry_range=512,
        dry_breakers=("\n", ":"),
        stop=("\n###",),
        ban=("a shiver",),
        max_tokens=220,
    )
    assert found.notices == ("asked.json: kept, not applied: max_context_length 4096",)


def test_a_text_completion_preset_is_no_such_one(folder: Path) -> None:
    file = folder / "t.json"
    shared = {"temp": 1.5, "rep_pen": 1, "typical_p": 1, "mirostat_mode": 2, "mirostat_tau": 4, "sampler_order": [5, 6]}
    file.write_text(json.dumps(shared))
    found = read_file(file)
    assert (found.kind, found.preset.overrides.mirostat_tau) == ("preset of SillyTavern", 4.0)
