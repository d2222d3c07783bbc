"""YAML of strangers: YAML 1.2's values, and one line at once for everything that is damaged or meant to do harm."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from exlchat.untrusted.yaml_reader import DEEPEST, LONGEST_NUMBER, YamlError, read_yaml
from tests.patience import within

MOST = 400_000


@pytest.fixture(params=["C", "Python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """PyYAML as it is built where libyaml is, and as it is where it is not."""
    if request.param == "Python":
        monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    elif not yaml.__with_libyaml__:
        pytest.skip("this PyYAML is without libyaml")
    return str(request.param)


def refused(text: str) -> str:
    """The clause that a text is refused with."""
    with pytest.raises(YamlError) as caught:
        read_yaml(text, most=MOST)
    line = str(caught.value)
    assert line.isprintable()
    assert len(line) < 250
    return line


def read_or_refused(text: str) -> Any:
    """The value, or the clause."""
    try:
        return read_yaml(text, most=MOST)
    except YamlError:
        return refused(text)


def is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(type(key) is str and is_plain(inner) for key, inner in value.items())
    if isinstance(value, str):
        value.encode("utf-8")
    return value is None or type(value) in (bool, int, float, str)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types; NaN is NaN."""
    return repr(one) == repr(other)


# Values


@pytest.mark.usefixtures("parser")
def test_the_core_schema_as_the_specification_shows_it() -> None:
    # Example 10.9 of YAML 1.2.2, "Core Tag Resolution".
    text = """\
A null: null
Also a null: # Empty
Not a null: ""
Booleans: [ true, True, false, FALSE ]
Integers: [ 0, 0o7, 0x3A, -19 ]
Floats: [
  0., -0.0, .5, +12e03, -2E+05 ]
Also floats: [
  .inf, -.Inf, +.INF, .NAN ]
"""
    assert same(
        read_yaml(text, most=MOST),
        {
            "A null": None,
            "Also a null": None,
            "Not a null": "",
            "Booleans": [True, True, False, False],
            "Integers": [0, 7, 58, -19],
            "Floats": [0.0, -0.0, 0.5, 12000.0, -200000.0],
            "Also floats": [math.inf, -math.inf, math.inf, math.nan],
        },
    )


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("~", None),
        ("Null", None),
        ("0x1F", 31),
        ("0o17", 15),
        ("+5", 5),
        ("-0", 0),
        ("12345678901234567890123", 12345678901234567890123),
        ("0.7", 0.7),
        ("1e-2", 0.01),
        (".5", 0.5),
        ("-.5e1", -5.0),
        ("1.", 1.0),
        ("00.5", 0.5),
        ("1e999", math.inf),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ('!!int "12"', 12),
        ("!!float 1.5", 1.5),
        ("!!null ~", None),
        ("!!seq [1]", [1]),
        ("!!map {a: 1}", {"a": 1}),
        ("&x 12", 12),
        ('"12"', "12"),
        ("|-\n  true", "true"),
        ('"\\u0000\\x1b"', "\0\x1b"),
    ],
)
def test_what_is_more_than_text(written: str, value: Any) -> None:
    assert same(read_yaml(f"key: {written}\n", most=MOST), {"key": value})


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "written",
    [
        *(
            "yes",
            "No",
            "on",
            "OFF",
            "y",
            "tRUE",
            "nUll",
            "nan",
            "inf",
            ".infinity",
            "=",
            "1.2.3",
            "1_000",
            "1\u00a0",
            "٣",
        ),
        *("2024-01-01", "2024-01-01 12:00:00", "9999-99-99", "12:30:45"),
        *("007", "-0644", "+00", "0b101", "0X1F", "-0x1F", "0o8", "1e", "e5", ".", "-."),
    ],
)
def test_what_is_text(written: str) -> None:
    assert same(read_yaml(f"key: {written}\n", most=MOST), {"key": written})


def test_keys_are_texts_as_they_are_written() -> None:
    text = "1: a\n0x1: b\ntrue: c\nyes: d\n~: e\n: f\n'<<': g\n2024-01-01: h\n"
    wanted = {"1": "a", "0x1": "b", "true": "c", "yes": "d", "~": "e", "": "f", "<<": "g", "2024-01-01": "h"}
    assert same(read_yaml(text.replace(": f", "'': f"), most=MOST), wanted)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("# nothing\n", None),
        ("---\n", None),
        ("%YAML 1.2\n---\na: 1\n...\n", {"a": 1}),
        ("\ufeffa: b", {"a": "b"}),
        ("a: b\r\nc: |\r\n  d\r\n  e\r\n", {"a": "b", "c": "d\ne\n"}),
        ("{a, b: [c, {d: }]}", {"a": None, "b": ["c", {"d": None}]}),
        ("- - a\n  - b\n-\n  c:\n  - d\n", [["a", "b"], {"c": ["d"]}]),
        ("? a\n: b\n", {"a": "b"}),
    ],
)
def test_shapes(text: str, value: Any) -> None:
    assert same(read_yaml(text, most=MOST), value)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cn", "Zl", "Zp")), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES.filter(lambda value: "Infinity" not in json.dumps(value) and "NaN" not in json.dumps(value)))
def test_json_means_what_it_means(value: Any) -> None:
    for indent in (None, 1):
        text = json.dumps(value, ensure_ascii=False, indent=indent)
        assert same(read_yaml(text, most=MOST), json.loads(text))


@given(VALUES)
def test_what_pyyaml_writes_comes_back(value: Any) -> None:
    """It quotes all that YAML 1.1 reads as something else, so that the texts are texts here too."""

    class Quoting(yaml.SafeDumper):
        """1.2 has numbers that 1.1 takes for text, such as 1e5 and 0o7."""

    Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, '"'))
    text = yaml.dump(value, Dumper=Quoting, allow_unicode=True, sort_keys=False)
    assert same(read_yaml(text, most=MOST), value)


# Refusals

BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "YAML with a reference (*a, line 2)"),
        ("&a [*a]", "YAML with a reference (*a, line 1)"),
        ("a: &a {b: *a}", "YAML with a reference (*a, line 1)"),
        ("a: *b", "YAML with a reference (*b, line 1)"),
        ("*a : b", "YAML with a reference (*a, line 1)"),
        ("a: 1\n<<: {b: 2}\n", "YAML with a merge key (<<, line 2)"),
        ("x: y\na: !!python/object/apply:os.system ['touch never']", "!!python/object/apply:os.system, line 2)"),
        ("!!python/name:os.system ''", "(!!python/name:os.system, line 1)"),
        ("!!binary aGFs", "(!!binary, line 1)"),
        ("!!timestamp 2001-01-01", "(!!timestamp, line 1)"),
        ("!!set {a, b}", "(!!set, line 1)"),
        ("- a\n- !thing b", "(!thing, line 2)"),
        ("!!int yes", "(!!int, line 1)"),
        ("!!str [a]", "(!!str, line 1)"),
        ("!!map [a]", "(!!map, line 1)"),
        ("!!foo a: b", "(!!foo, line 1)"),
        ("%TAG ! tag:yaml.org,2002:\n---\n!str a", "YAML with a %TAG line (line 1)"),
        ("#\r%TAG ! a\n---\nb", "YAML with a %TAG line (line 2)"),
        ("a: 1\nb: 2\na: 3\n", "YAML with the key 'a' twice (again in line 3)"),
        ("{a, 'a'}", "YAML with the key 'a' twice (again in line 1)"),
        ("x: y\n? [a]\n: b\n", "YAML with a list or a table as a key (line 2)"),
        ("? {a: b}\n: c", "YAML with a list or a table as a key (line 1)"),
        ("a\n---\nb\n", "YAML of several documents (another in line 2)"),
        ("a: b\nc:\n\t- d", "no YAML (line 3: found character"),
        ("\ta: b", "no YAML (line 1: found character"),
        ("name: x: y", "no YAML (line 1: mapping values are not allowed"),
        ("a: [\n", "no YAML (line 2: "),
        ('a: "b\n', "no YAML (line 2: "),
        ("a: b\nc: \0", "no YAML (line 2: the character U+0000"),
        ("a:\r\nb: \x1b[31m", "no YAML (line 2: the character U+001B"),
        ("a: \x7f", "no YAML (line 1: the character U+007F"),
        ("a: \ud800", "no YAML (line 1: the character U+D800"),
        ('a: "\\ud800"', "no YAML (line 1: "),
        ('a: "\\U00110000"', "no YAML ("),
        ("%YAML " + "9" * 5000 + ".1\n---\na", "no YAML ("),
        ("%YAML 2.0\n---\na", "no YAML (line 1: "),
        ("a: " + "9" * (LONGEST_NUMBER + 1), "YAML with a number of more than 300 digits (line 1)"),
        ("a: 0x" + "f" * 300_000, "YAML with a number of more than 300 digits (line 1)"),
        ("a: 1." + "9" * 300_000, "YAML with a number of more than 300 digits (line 1)"),
        ("x" * (MOST + 1), "YAML of more than 400,000 characters"),
        ("&" + "a" * 1000 + " x: *" + "a" * 1000, "YAML with a reference (*aaa"),
        ("k" * 1000 + ": 1\n" + "k" * 1000 + ": 2\n", "YAML with the key 'kkk"),
    ],
    ids=range(42),
)
def test_what_is_not_taken_is_said_with_its_line(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refused(text)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "[" * 1000 + "]" * 1000,
        "- " * 1000,
        "{a: " * 1000,
        "{" * 1000,
        "? " * 1000,
        "[{a: " * 1000,
        "".join(" " * n + "a:\n" for n in range(500)),
        "".join(" " * n + "-\n" for n in range(500)),
        "a: " + "[" * 1000,
    ],
    ids=range(10),
)
def test_a_thousand_levels(text: str) -> None:
    with within(1):
        line = refused(text)
        assert "levels deep" in line or "as a key" in line


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"%TAG !a{n}! x\n" for n in range(25_000)) + "--- a",
        "".join(f"a{n}: &a{n} x\n" for n in range(20_000)),
        "[" + "[]," * 60_000 + "]",
        "!<" + "a" * 300_000 + "> x",
        "a: " + "1" * 300_000 + "x",
        "a: " + "1." * 150_000,
        "- " + "a " * 100_000,
        BOMB,
        "\n" * 400_000,
        "\n" * 399_999 + "\0",
        "? a\n" * 50_000,
    ],
    ids=range(11),
)
def test_long_texts_end_within_a_second(text: str) -> None:
    with within(1), contextlib.suppress(YamlError):
        read_yaml(text, most=MOST)


@pytest.mark.usefixtures("parser")
def test_as_deep_as_may_be() -> None:
    for begin, end in (("[", "]"), ("{a: ", "}")):
        assert is_plain(read_yaml(begin * DEEPEST + end * DEEPEST, most=MOST))
        deeper = DEEPEST + 1
        assert f"more than {DEEPEST} levels deep (line 1)" in refused(begin * deeper + end * deeper)


SAMPLES = [
    "name: Chiharu\ngreeting: |-\n  *waves*\n  Hi {{user}}!\ncontext: >\n  {{char}} builds\n  computers.\n",
    'user: "USER:"\nturn_template: "<|user|> <|user-message|>\\n<|bot|>\\u00e4"\ncontext: "A chat.\\n\\n"\n',
    "model: a:b\ntemperature: 1e-2\nmessages:\n- role: user\n  content:\n  - type: text\n    text: 'it''s'\n",
    "a: &x [1, 0x1F, .inf, ~, yes]\n? b\n: !!str {c: !t d}\n<<: *x\n--- # e\n%TAG ! f\n...\n",
]
PIECES = st.text(st.sampled_from("ab01 \n\t:-,?[]{}&*!|>'\"%#~<=.+exo\\u\r\x85\u2028\ufeff\0\ud800é日🦉"), max_size=12)


@st.composite
def mutated(draw: st.DrawFn) -> str:
    text = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(PIECES | st.text(max_size=3)) + text[at + draw(st.integers(0, 6)) :]
    return text


@pytest.mark.usefixtures("parser")
@hypothesis_settings(suppress_health_check=list(HealthCheck))
@given(text=st.text(max_size=60) | PIECES | mutated())
@example(text="{? : ? }")
@example(text=": a")
def test_any_text_is_a_plain_value_or_refused(text: str) -> None:
    value = read_or_refused(text)
    assert is_plain(value)
    json.dumps(value)


def test_no_start_waits_for_yaml() -> None:
    rooms = "exlchat.chat.exchange.reading, exlchat.chat.personas.files, exlchat.chat.prompt.formats.presets"
    code = f"import sys, {rooms}; sys.exit('yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
