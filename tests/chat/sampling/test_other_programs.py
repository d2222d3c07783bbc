"""Presets of text-generation-webui and SillyTavern, as these programs write them, whole and damaged."""

from __future__ import annotations

import json
import tomllib
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.presets.other_programs import ImportedPreset, read_file
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.preset import SamplingPresetError
from exlchat.chat.presets.toml_file import parse_preset, write_text
from exlchat.llm.sampling import SamplingSettings
from tests.chat.personas.strategies import json_values
from tests.patience import within

# All keys that SillyTavern writes for text completion, each at the value that switches it off.
NEUTRAL: dict[str, Any] = {
    "temp": 1,
    "temperature_last": True,
    "top_p": 1,
    "top_k": 0,
    "top_a": 0,
    "tfs": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "typical_p": 1,
    "min_p": 0,
    "rep_pen": 1,
    "rep_pen_range": 0,
    "rep_pen_decay": 0,
    "rep_pen_slope": 1,
    "no_repeat_ngram_size": 0,
    "penalty_alpha": 0,
    "num_beams": 1,
    "length_penalty": 1,
    "min_length": 0,
    "encoder_rep_pen": 1,
    "freq_pen": 0,
    "presence_pen": 0,
    "skew": 0,
    "do_sample": True,
    "early_stopping": False,
    "dynatemp": False,
    "min_temp": 0,
    "max_temp": 2,
    "dynatemp_exponent": 1,
    "smoothing_factor": 0,
    "smoothing_curve": 1,
    "dry_allowed_length": 2,
    "dry_multiplier": 0,
    "dry_base": 1.75,
    "dry_sequence_breakers": '["\\n", ":", "\\"", "*"]',
    "dry_penalty_last_n": 0,
    "add_bos_token": True,
    "ban_eos_token": False,
    "skip_special_tokens": True,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "guidance_scale": 1,
    "negative_prompt": "",
    "grammar_string": "",
    "json_schema": None,
    "banned_tokens": "",
    "sampler_priority": ["repetition_penalty", "dry", "temperature", "top_k", "top_p", "typical_p", "min_p", "xtc"],
    "samplers": ["penalties", "dry", "top_k", "typical_p", "xtc", "top_p", "min_p", "temperature"],
    "ignore_eos_token": False,
    "spaces_between_special_tokens": True,
    "speculative_ngram": False,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "logit_bias": [],
    "xtc_threshold": 0.1,
    "xtc_probability": 0,
    "nsigma": 0,
    "min_keep": 0,
    "rep_pen_size": 0,
}

_STEERING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}

Read = Callable[[str, str | bytes], ImportedPreset]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def reading(name: str, content: str | bytes) -> ImportedPreset:
        file = tmp_path / name
        file.write_bytes(content.encode() if isinstance(content, str) else content)
        return read_file(file)

    return reading


def harmless(line: str) -> bool:
    """One line, without what steers a terminal."""
    return not any(unicodedata.category(one) == "Cc" or unicodedata.bidirectional(one) in _STEERING for one in line)


def webui(**values: Any) -> SamplingOverrides:
    """What text-generation-webui draws by where a preset says no more: everything off."""
    return SamplingOverrides(**{"temperature": 1.0, **values}, others_off=True)


def test_a_webui_preset_leaves_off_what_it_leaves_out(read: Read) -> None:
    got = read("Midnight Enigma.yaml", "temperature: 0.98\ntop_p: 0.37\ntop_k: 100\nrepetition_penalty: 1.18\n")
    assert got.kind == "preset of text-generation-webui"
    # 1024 is its default for the range of the penalties.
    wanted = webui(temperature=0.98, top_p=0.37, top_k=100, repetition_penalty=1.18, penalty_range=1024)
    assert got.preset.overrides == wanted
    assert (got.preset.foreign, got.notices) == ({}, ())
    assert got.preset.description == "Midnight Enigma, of text-generation-webui"
    assert read("Null preset.yaml", "temperature: 1\n").preset.overrides == webui()


def test_without_sampling_it_is_greedy(read: Read) -> None:
    got = read("Debug-deterministic.yaml", "do_sample: False\n")
    assert got.preset.overrides.temperature == 0
    assert (dict(got.preset.foreign), got.notices) == ({}, ())


def test_every_sampler_that_is_here_is_taken_over_and_no_other(read: Read) -> None:
    got = read(
        "all.yaml",
        """
temperature: 0.7
dynamic_temperature: true
dynatemp_low: 0.5
dynatemp_high: 1.5
smoothing_factor: 0
smoothing_curve: 2
min_p: 0.02
typical_p: 0.9
tfs: 1
top_a: 0.0
epsilon_cutoff: 3
eta_cutoff: 10.42
top_n_sigma: 1.5
xtc_threshold: 0.1
xtc_probability: 0.5
dry_multiplier: 0.8
dry_base: 1.75
dry_allowed_length: 3
dry_sequence_breakers: '"\\n", ":"'
mirostat_mode: 2
mirostat_tau: 8
repetition_penalty: 1.0
repetition_penalty_range: 2048
presence_penalty: 0
frequency_penalty: 0.3
no_repeat_ngram_size: 4
guidance_scale: 1.5
custom_token_bans: "3, 7,9"
encoder_repetition_penalty: 1.2
brand_new_sampler: {a: [1, 2]}
""",
    )
    order = got.preset.overrides.order
    assert got.preset.overrides == webui(
        temperature=0.7,
        dynatemp_low=0.5,
        dynatemp_high=1.5,
        min_p=0.02,
        typical_p=0.9,
        # This program writes these two in units of 1e-4.
        epsilon_cutoff=0.0003,
        eta_cutoff=0.001042,
        top_n_sigma=1.5,
        xtc_probability=0.5,
        dry_multiplier=0.8,
        dry_allowed_length=3,
        dry_breakers=("\n", ":"),
        mirostat_tau=8.0,
        penalty_range=2048,
        frequency_penalty=0.3,
        no_repeat_ngram=4,
        guidance_scale=1.5,
        banned_tokens=(3, 7, 9),
        order=order,
    )
    # Its order where a preset says none.
    steps = ("top_n_sigma", "temperature", "typical", "epsilon_cutoff", "eta_cutoff", "min_p", "mirostat", "xtc")
    assert got.preset.overrides.apply(SamplingSettings()).steps == steps
    assert got.preset.foreign["webui"] == {"encoder_repetition_penalty": 1.2, "brand_new_sampler": {"a": [1, 2]}}
    assert got.notices == (
        "all.yaml: kept, not applied: encoder_repetition_penalty 1.2, brand_new_sampler {'a': [1, 2]}",
    )


@pytest.mark.parametrize(
    ("text", "kept", "named"),
    [
        ("mirostat_mode: 1\nmirostat_tau: 4", {"mirostat_mode", "mirostat_tau"}, "mirostat_mode 1"),
        # A sampler with a value that cannot be is not applied with another one in its place.
        (
            "xtc_probability: 0.5\nxtc_threshold: 0.9",
            {"xtc_probability", "xtc_threshold"},
            "xtc_probability 0.5, xtc_threshold 0.9",
        ),
        (
            "dynamic_temperature: true\ndynatemp_low: 2\ndynatemp_high: 1",
            {"dynamic_temperature", "dynatemp_low", "dynatemp_high"},
            "dynamic_temperature True, dynatemp_low 2, dynatemp_high 1",
        ),
        ("no_repeat_ngram_size: 1", {"no_repeat_ngram_size"}, "no_repeat_ngram_size 1"),
        ("custom_token_bans: 3, the", {"custom_token_bans"}, "custom_token_bans 3, the"),
        ("smoothing_factor: 0.2\nsmoothing_curve: 7", {"smoothing_factor", "smoothing_curve"}, "smoothing_factor 0.2"),
        ("negative_prompt: [no]\nguidance_scale: 1.5", {"negative_prompt"}, "negative_prompt ['no']"),
        ("min_length: -4", {"min_length"}, "min_length -4"),
    ],
)
def test_a_sampler_that_cannot_be_here_is_kept_whole(read: Read, text: str, kept: set[str], named: str) -> None:
    got = read("a.yaml", f"min_p: 0.1\n{text}\n")
    assert set(got.preset.foreign["webui"]) == kept
    assert f"kept, not applied: {named}" in got.notices[0]
    given_names = set(got.preset.overrides.given()) - {"temperature", "min_p", "guidance_scale"}
    assert not given_names


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        # As this program writes it, and older ones of it.
        ("sampler_priority: |-\n  top_k\n  min_p\n  temperature\n", ("min_p", "temperature")),
        ("sampler_priority:\n- top_k\n- min_p\n- temperature\n", ("min_p", "temperature")),
        ("sampler_priority:\n- dry\n- temperature\n- top_k\n- min_p\n", ("temperature", "min_p")),
        # What a list leaves out comes after it.
        ("top_p: 0.9\nsampler_priority: [min_p, temperature]\n", ("min_p", "temperature", "top_p")),
        ("temperature_last: true\n", ("min_p", "temperature")),
        ("temperature_last: false\n", ("temperature", "min_p")),
        ("smoothing_factor: 0.2\n", ("temperature", "smoothing", "min_p")),
        ("smoothing_factor: 0.2\ntemperature_last: true\n", ("min_p", "temperature", "smoothing")),
        ("typical_p: 0.9\nsampler_priority: [typical_p, min_p, temperature]\n", ("typical", "min_p", "temperature")),
        (
            "dynamic_temperature: true\nsampler_priority: [temperature, min_p, dynamic_temperature]\n",
            ("min_p", "temperature"),
        ),
    ],
)
def test_an_order_is_taken_over(read: Read, text: str, steps: tuple[str, ...]) -> None:
    got = read("a.yaml", "temperature: 1.5\nmin_p: 0.1\n" + text)
    assert got.preset.overrides.apply(SamplingSettings()).steps == steps
    assert (got.preset.foreign, got.notices) == ({}, ())
    # With one step there is nothing to order, and greedily neither.
    if text.startswith(("sampler_priority", "temperature_last")):
        assert read("b.yaml", "min_p: 0.1\n" + text).preset.overrides.order is None
    assert read("c.yaml", "temperature: 0\nmin_p: 0.1\n" + text).notices == ()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        # Penalties come first here.
        ("repetition_penalty: 1.1\nsampler_priority: [min_p, repetition_penalty, temperature]\n", True),
        ("repetition_penalty: 1.1\nsampler_priority: [repetition_penalty, temperature, min_p]\n", False),
        ("sampler_priority: [min_p, repetition_penalty, temperature]\n", False),
        ("sampler_priority: [min_p, something_new, temperature]\n", True),
        ("sampler_priority: [temperature, min_p, encoder_repetition_penalty]\n", False),
    ],
)
def test_an_order_that_cannot_be_kept_is_named(read: Read, text: str, named: bool) -> None:
    got = read("a.yaml", "temperature: 1.5\nmin_p: 0.1\n" + text)
    assert ("sampler_priority" in "".join(got.notices)) == named == ("webui" in got.preset.foreign)


def test_words_and_biases_of_sillytavern_become_tokens(read: Read) -> None:
    entries = [
        {"id": "a", "text": "foo", "value": -5},
        {"id": "b", "text": "{bar}", "value": 3},
        {"id": "c", "text": "[7, 8]", "value": 1.5},
        {"id": "d", "text": "", "value": 0},
    ]
    got = read("a.json", json.dumps({**NEUTRAL, "banned_tokens": "[1, 2]\ndelve", "logit_bias": entries}))
    assert got.preset.overrides.banned_tokens == (1, 2, "delve")
    # A plain text is a word behind a space there.
    assert got.preset.overrides.logit_bias == ((" foo", -5.0), ("bar", 3.0), (7, 1.5), (8, 1.5))
    assert got.notices == ()
    silent = read("c.json", json.dumps({**NEUTRAL, "banned_tokens": "delve", "send_banned_tokens": False}))
    assert not silent.preset.overrides.banned_tokens


def test_what_an_answer_is_asked_to_be_is_taken_over(read: Read) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    values = {
        "banned_tokens": '[3]\n"a shiver ran"\ndelve\n"eyes widen"',
        "global_banned_tokens": '"testament to"',
        "min_length": 40,
        "negative_prompt": "You are rude.",
        "guidance_scale": 1.5,
        "json_schema": schema,
    }
    got = read("a.json", json.dumps({**NEUTRAL, **values}))
    overrides = got.preset.overrides
    assert overrides.banned_tokens == (3, "delve")
    assert overrides.ban == ("a shiver ran", "eyes widen", "testament to")
    assert (overrides.min_tokens, overrides.negative, overrides.guidance_scale) == (40, "You are rude.", 1.5)
    assert overrides.constraint is not None
    assert (overrides.constraint.kind, json.loads(overrides.constraint.text)) == ("json_schema", schema)
    assert got.notices == ()
    assert not set(values) & set(got.preset.foreign["sillytavern"])
    other = read("b.yaml", "min_length: 30\nguidance_scale: 2\nnegative_prompt: no lists\n")
    assert other.preset.overrides == webui(min_tokens=30, guidance_scale=2.0, negative="no lists")
    assert (other.preset.foreign, other.notices) == ({}, ())


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"banned_tokens": 'two words\n"a text"'}, "banned_tokens"),
        ({"global_banned_tokens": "delve"}, "global_banned_tokens"),
        ({"json_schema": "{"}, "json_schema"),
        ({"grammar_string": 'root ::= "a"'}, "grammar_string"),
    ],
)
def test_what_cannot_be_asked_is_kept_and_named(read: Read, values: dict[str, Any], named: str) -> None:
    got = read("a.json", json.dumps({**NEUTRAL, **values}))
    assert named in got.preset.foreign["sillytavern"]
    assert f"kept, not applied: {named}" in got.notices[0]
    assert not {"ban", "constraint"} & got.preset.overrides.given().keys()
    assert not got.preset.overrides.banned_tokens


def test_what_is_switched_off_is_not_asked(read: Read) -> None:
    silent = {"banned_tokens": '"a text"', "global_banned_tokens": '"b"', "send_banned_tokens": False}
    got = read("a.json", json.dumps({**NEUTRAL, **silent, "negative_prompt": "no", "guidance_scale": 1}))
    assert (got.preset.overrides.ban, got.preset.overrides.negative, got.notices) == (None, None, ())


def test_a_neutral_sillytavern_preset_says_that_all_is_off(read: Read) -> None:
    got = read("Neutral.json", json.dumps(NEUTRAL))
    assert got.kind == "preset of SillyTavern"
    on = SamplingSettings(0.7, 9, 0.9, 0.1, xtc_probability=0.5, dry_multiplier=0.8, typical_p=0.5, skew=1.0)
    assert got.preset.overrides.apply(on) == SamplingSettings()
    assert got.notices == ()
    # Orders for other backends are no "off".
    assert set(got.preset.foreign["sillytavern"]) == {
        "samplers",
        "sampler_order",
        "spaces_between_special_tokens",
        "speculative_ngram",
    }


def test_a_sillytavern_preset_gives_its_values_and_names_the_rest(read: Read) -> None:
    values = {**NEUTRAL, "temp": 1.25, "min_p": 0.1, "top_k": -1, "rep_pen": 1.1, "rep_pen_range": 1024, "genamt": 350}
    values |= {"dynatemp": True, "min_temp": 0.5, "max_temp": 1.5, "nsigma": 1.2, "skew": 0.3, "freq_pen": 0.1}
    got = read("Universal.json", json.dumps({**values, "max_length": 8192, "dry_multiplier": 0.8, "penalty_alpha": 1}))
    assert got.preset.overrides.max_tokens == 350
    sampling = got.preset.overrides.apply(SamplingSettings())
    assert replace(sampling, order=SamplingSettings().order) == SamplingSettings(
        temperature=1.25,
        min_p=0.1,
        top_n_sigma=1.2,
        dynatemp_low=0.5,
        dynatemp_high=1.5,
        skew=0.3,
        repetition_penalty=1.1,
        frequency_penalty=0.1,
        penalty_range=1024,
        dry_multiplier=0.8,
    )
    # The temperature last, of those that its list names; what the list does not know comes after them.
    assert sampling.steps == ("min_p", "temperature", "top_n_sigma", "skew")
    assert got.notices == ("Universal.json: kept, not applied: penalty_alpha 1, max_length 8192",)


def test_a_greedy_sillytavern_preset_has_nothing_to_say_about_chance(read: Read) -> None:
    values = {**NEUTRAL, "temp": 0, "top_p": 0, "top_k": 1, "do_sample": False}
    got = read("Deterministic.json", json.dumps(values))
    assert got.preset.overrides.temperature == 0
    assert got.notices == ()


def test_what_a_sillytavern_preset_leaves_out_stays_as_it_is(read: Read) -> None:
    assert read("old.json", '{"temp": 0.5, "rep_pen": 1}').preset.overrides == SamplingOverrides(
        temperature=0.5, repetition_penalty=1.0
    )


def test_one_of_several_presets_in_a_file_of_sillytavern(read: Read) -> None:
    master = {"instruct": {"name": "x"}, "preset": {**NEUTRAL, "temp": 0.9, "name": "Mine"}}
    assert read("master.json", json.dumps(master)).preset.overrides.temperature == 0.9


def test_our_own_file_is_taken_over(read: Read) -> None:
    got = read("mine.toml", 'description = "x"\ntop_k = 3\n')
    assert (got.kind, got.preset.description, got.preset.overrides.top_k) == ("preset", "x", 3)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("temperature: warm", "temperature warm"),
        ("temperature: .nan", "temperature nan"),
        ("temperature: .inf", "temperature inf"),
        ("temperature: -1", "temperature -1"),
        ("top_p: 0", "top_p 0"),
        ("top_p: 1.5", "top_p 1.5"),
        ("top_k: true", "top_k True"),
        ("top_k: 2.5", "top_k 2.5"),
        ("top_k: [1, 2]", "top_k [1, 2]"),
        ("min_p: 2020-01-01", "min_p 2020-01-01"),
        ("max_new_tokens: 0", "max_new_tokens 0"),
        ("temperature: " + "9" * 299, "temperature 9999"),
        ("seed: 7", "seed 7"),
        ('grammar_string: "root ::= \\e[2J\\u202e"', "grammar_string root ::= [2J"),
        ("3: 4", "3 4"),
        ("deep: [[null], {a: ~}]", "deep [[None], {'a': None}]"),
        ("when: 2020-01-01T10:00:00Z", "when 2020-01-01T10:00:00Z"),
    ],
)
def test_what_cannot_be_taken_over_is_kept_and_named_and_can_be_read_again(read: Read, line: str, named: str) -> None:
    got = read("a.yaml", f"min_p: 0.1\n{line}\n" if "min_p" not in line else line)
    assert f"kept, not applied: {named}" in got.notices[0]
    assert len(got.notices[0]) < 400
    assert harmless(got.notices[0])
    again = parse_preset(write_text(got.preset), "a.toml")
    assert again.overrides == got.preset.overrides
    assert again.foreign["webui"].keys() == got.preset.foreign["webui"].keys()
    refused = named.split(maxsplit=1)[0]
    assert refused in got.preset.foreign["webui"]
    assert got.preset.overrides.given().get(refused) is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.yaml", "", "no names with values"),
        ("a.yaml", "- 1\n- 2\n", "no names with values"),
        ("a.yaml", "name: Ada\ncontext: x\n", "no sampler that is known"),
        ("a.yaml", "instruction_template: x\n", "no sampler that is known"),
        ("a.yaml", "temperature: [1", "YAML"),
        pytest.param("a.yaml", "temperature: " + "[" * 3000, "levels deep", id="deep YAML"),
        ("a.yaml", "a: &a [1]\ntop_k: *a\n", "a reference"),
        ("a.yaml", "blob: !!binary aGVsbG8=", "tag"),
        ("a.yaml", "a: !!python/object/apply:os.system ['touch /tmp/pwned']\n", "tag"),
        ("a.yaml", "temperature: 1\ntemperature: 2\n", "twice"),
        ("a.yaml", b"temperature: 1 # caf\xe9", "byte 20 is not UTF-8"),
        ("a.json", '{"temp": 1', "not JSON"),
        ("a.json", '{"temp": NaN}', "not JSON"),
        pytest.param("a.json", '{"a":' * 1000 + "1" + "}" * 1000, "nested deeper", id="deep JSON"),
        ("a.json", "[1, 2]", "no names with values"),
        ("a.json", '{"temperature": 1, "openai_max_tokens": 300, "prompts": []}', "a chat completion preset"),
        ("a.json", '{"input_sequence": "x"}', "no sampler that is known"),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(100), "not UTF-8"),
        ("a.toml", "temprature = 1\n", "did you mean temperature?"),
        pytest.param("a.yaml", b"#" * 1_000_001, "larger than 1 MB", id="large"),
    ],
)
def test_what_is_no_preset_is_one_line(read: Read, name: str, content: str | bytes, said: str) -> None:
    with within(1), pytest.raises(SamplingPresetError) as caught:
        read(name, content)
    line = str(caught.value)
    assert name in line
    assert said in line
    assert harmless(line)
    assert len(line) < 300


@given(
    values=st.dictionaries(st.sampled_from([*NEUTRAL, "genamt", "x"]) | st.text(max_size=5), json_values, max_size=8)
)
def test_any_json_with_a_temperature_gives_a_preset_that_can_be_written(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("any") / "a.json"
    file.write_text(json.dumps({**values, "temp": 0.5}))
    got = read_file(file)
    written = write_text(got.preset)
    assert tomllib.loads(written)["temperature"] == (0 if values.get("do_sample") is False else 0.5)
    assert parse_preset(written, "a.toml") == got.preset
    assert harmless("".join(got.notices))
