"""Persona files: read, checked, written back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given

from exlchat import paths
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from exlchat.chat.personas.persona import Character, Example, Persona, PersonaError
from exlchat.chat.personas.registry import PERSONAS
from exlchat.chat.personas.toml_file import parse_persona, read_persona, write_text
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.registry import id_for, is_id
from tests.chat.personas.strategies import personas
from tests.patience import within

FULL = '''
name = "Ada"
description = "A librarian"
system = """
You are {{char}}.
Be kind."""
greeting = "Hello."
alternate_greetings = ["Hi.", "Good day."]
examples_as = "system"
template = "chatml"
thinking = true
model = "org/name"

[[examples]]
user = "a?"
assistant = "b."

[sampling]
temperature = 1
top_k = 40
top_p = 0.9
min_p = 0.1
max_tokens = 99

[variables]
tone = "dry"

[character]
nickname = "A."
scenario = "A library"

[lorebook]
scan_depth = 3
token_budget = 100

[[lorebook.entries]]
keys = ["map"]
content = "The map is old."
insertion_order = 5

[foreign]
anything = { goes = [1, "two"] }
'''


def test_every_key_is_read() -> None:
    assert parse_persona(FULL, "ada.toml") == Persona(
        "Ada",
        description="A librarian",
        system="You are {{char}}.\nBe kind.",
        greeting="Hello.",
        alternate_greetings=("Hi.", "Good day."),
        examples=(Example("a?", "b."),),
        examples_as="system",
        template="chatml",
        sampling=SamplingOverrides(temperature=1, top_k=40, top_p=0.9, min_p=0.1, max_tokens=99),
        thinking=True,
        model="org/name",
        variables={"tone": "dry"},
        character=Character(nickname="A.", scenario="A library"),
        lorebook=Lorebook(
            (LoreEntry("The map is old.", keys=("map",), insertion_order=5),), scan_depth=3, token_budget=100
        ),
        foreign={"anything": {"goes": [1, "two"]}},
    )


@given(personas)
def test_what_is_written_is_read_again(persona: Persona) -> None:
    assert parse_persona(write_text(persona), "x.toml") == persona


def test_texts_of_several_lines_stay_readable() -> None:
    written = write_text(Persona("A", system="One line.\nAnother one."))
    assert "One line.\nAnother one." in written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name = "A"\nsystm = "x"', "unknown key 'systm'; did you mean system?"),
        ('name = "A"\nzzz = 1', "unknown key 'zzz'; the keys are name,"),
        ('name = "A"\nsystem = 3', "system is 3; it must be a text in quotes"),
        ('name = "A"\nthinking = "yes"', "thinking is 'yes'; it must be true or false"),
        ('name = "A"\nalternate_greetings = "x"', "must be a list of texts in quotes"),
        ('name = "A"\n[sampling]\ntemprature = 1', "sampling.unknown key 'temprature'; did you mean temperature?"),
        ('name = "A"\n[sampling]\ntemperature = -1', "temperature is -1"),
        ('name = "A"\n[sampling]\ntemperature = nan', "temperature is nan"),
        ('name = "A"\n[sampling]\ntemperature = ' + "9" * 400, "temperature is too large"),
        ('name = "A"\n[sampling]\ntop_k = true', "sampling.top_k is True; it must be a whole number"),
        ('name = "A"\n[sampling]\nmax_tokens = 0', "max_tokens is 0"),
        ('name = "A"\n[variables]\nuser = "x"', "variables.user: this name has a meaning of its own"),
        ('name = "A"\n[variables]\n"a b" = "x"', "must be lower-case letters"),
        ('name = "A"\n[variables]\nx = 1', "variables.x is 1"),
        ('name = "A"\n[[examples]]\nusr = "x"', "examples 1: unknown key 'usr'; did you mean user?"),
        ('name = "A"\nexamples_as = "x"', "must be one of messages, system"),
        ('name = "A"\n[[lorebook.entries]]\nkeys = ["x"]', "lorebook.entries 1: content is missing"),
        ('name = "A"\n[lorebook]\nscan_depth = -1', "lorebook.scan_depth is -1"),
        ('name = ""', "name is missing"),
        ("name = ", "not TOML"),
        ('name = "A"\nx = ' + "[" * 5000, "not TOML"),
        ('name = "A"\nsystem = 2020-01-01', "it must be a text in quotes"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(text: str, said: str) -> None:
    with within(1), pytest.raises(PersonaError) as caught:
        parse_persona(text, "folder/a.toml")
    line = str(caught.value)
    assert line.startswith("folder/a.toml: ")
    assert said in line
    assert "\n" not in line
    assert len(line) < 400


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    latin = tmp_path / "a.toml"
    latin.write_bytes(b'name = "\xe9"')
    with pytest.raises(PersonaError, match="byte 8 is not UTF-8"):
        read_persona(latin)
    with pytest.raises(PersonaError, match="there is no such file"):
        read_persona(tmp_path / "none.toml")


def test_the_personas_that_come_along_are_eight_good_ones() -> None:
    listed = PERSONAS.all(Path("/nowhere"), paths.shipped_personas())
    assert not listed.problems
    assert len(listed.entries) == 8
    for one in listed.entries:
        assert one.id == id_for(one.persona.name, "persona")
        assert one.persona.description
        assert 100 < len(one.persona.system) < 900
        assert "\n\n" not in one.persona.system


def test_the_users_own_go_before_those_that_come_along(tmp_path: Path) -> None:
    (tmp_path / "coder.toml").write_text('name = "My Coder"\n')
    (tmp_path / "broken.toml").write_text("name = 1\n")
    listed = PERSONAS.all(tmp_path, paths.shipped_personas())
    assert next(one.persona.name for one in listed.entries if one.id == "coder") == "My Coder"
    assert len(listed.entries) == 8
    assert len(listed.problems) == 1
    assert PERSONAS.find("coder", tmp_path).path == tmp_path / "coder.toml"
    assert PERSONAS.find("my coder", tmp_path).id == "coder"
    assert PERSONAS.find("Teacher", tmp_path).shipped
    with pytest.raises(PersonaError, match="did you mean editor"):
        PERSONAS.find("editr", tmp_path)
    with pytest.raises(PersonaError, match="there is no persona"):
        PERSONAS.find("../../etc/passwd", tmp_path)


@pytest.mark.parametrize("name", ["..", "../x", "Ada & Bo!", "", "Ж", "x" * 500, "a/b", "\x00", "CON:"])
def test_any_name_gives_a_harmless_file_name(name: str) -> None:
    assert is_id(id_for(name, "persona"))
    assert id_for(id_for(name, "x"), "y") == id_for(name, "x")
