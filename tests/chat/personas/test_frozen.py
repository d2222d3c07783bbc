"""Macros, freezing, and how a persona begins a conversation."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.model import Message
from exlchat.chat.personas.frozen import FrozenPersona, freeze
from exlchat.chat.personas.lore_of_turn import lore_note
from exlchat.chat.personas.lorebook import Lore, Lorebook, LoreEntry, noted_lore
from exlchat.chat.personas.macros import Macros, clock_values
from exlchat.chat.personas.opening import (
    greeting_place,
    opening_tree,
    persona_of,
    takes_over,
)
from exlchat.chat.personas.persona import Character, Example, Persona, PersonaError
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.llm.sampling import SamplingSettings
from tests.chat.personas.strategies import personas, texts
from tests.patience import within

NOW = datetime(2024, 2, 29, 9, 5)
VALUES = {**clock_values(NOW), "user": "Kim", "char": "Ada", "tone": "dry"}


def resolved(text: str, *, seed: int = 0, angled: bool = False) -> str:
    return Macros(VALUES, seed, angled=angled).resolve(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{user}} and {{CHAR}}", "Kim and Ada"),
        ("{{date}} {{time}} {{weekday}}", "2024-02-29 09:05 Thursday"),
        ("{{ tone }}", "dry"),
        ("a{{// not said }}b{{comment: nor this}}c", "abc"),
        ("{{reverse:abc}}", "cba"),
        ("{{reverse:{{user}}}}", "miK"),
        ("{{random:x}}{{pick:y}}", "xy"),
        ("{{random::a::a}}", "a"),
        (r"{{random:a\,b}}", "a,b"),
        ("{{roll:1}} {{roll:d1}} {{roll:3d1+2}}", "1 1 5"),
        ("{{roll:many}} {{unknown}} {{unknown:x}}", "{{roll:many}} {{unknown}} {{unknown:x}}"),
        ("{{user", "{{user"),
        ("}} {{ {{user}}", "}} {{ Kim"),
        ("{{newline}}", "\n"),
        ("<user> <div>", "<user> <div>"),
        ("", ""),
    ],
)
def test_macros(text: str, expected: str) -> None:
    assert resolved(text) == expected


def test_old_cards_write_macros_in_angles() -> None:
    assert resolved("<USER> <bot> <char> <b>", angled=True) == "Kim Ada Ada <b>"


def test_chance_comes_from_the_seed() -> None:
    text = "{{random:a,b,c,d}}{{random:a,b,c,d}}{{random:a,b,c,d}}{{roll:1000}}"
    assert len({resolved(text, seed=seed) for seed in range(50)}) > 40
    assert resolved(text, seed=7) == resolved(text, seed=7)
    assert {resolved("{{roll:d6}}", seed=seed) for seed in range(200)} == set("123456")


def test_a_pick_is_the_same_everywhere_and_random_is_not() -> None:
    picks = [resolved("{{pick:a,b,c,d}}{{roll:9}}{{pick:a,b,c,d}}", seed=seed) for seed in range(30)]
    assert all(one[0] == one[-1] for one in picks)
    assert len({one[0] for one in picks}) == 4
    assert any(len(set(resolved("{{random:a,b,c,d}}" * 2, seed=seed))) == 2 for seed in range(10))


def test_a_value_is_never_looked_through_again() -> None:
    values = {"user": "{{char}}{{char}}", "char": "{{user}}{{user}}"}
    assert Macros(values, 0).resolve("{{user}}") == "{{char}}{{char}}"


@given(st.text(st.sampled_from("{}:/,a <user>\\"), max_size=60))
def test_any_text_is_resolved(text: str) -> None:
    Macros(VALUES, 1, angled=True).resolve(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{" * 400_000,
        "{{random:" * 50_000 + "}}" * 50_000,
        "}}" * 5_000_000,
        "{{roll:100d999999999}}" * 100,
        "{{reverse:" * 40_000 + "x" * 100_000 + "}}" * 40_000,
    ],
    ids=["open", "nested", "closed", "dice", "reversed"],
)
def test_a_hostile_text_takes_no_time(text: str) -> None:
    with within(1):
        resolved(text)


def frozen(persona: Persona, seed: int = 3) -> FrozenPersona:
    return freeze(persona, user="Kim", now=NOW, seed=seed)


@given(personas, st.integers(0, 9))
def test_a_frozen_persona_survives_json_and_is_the_same_for_the_same_seed(persona: Persona, seed: int) -> None:
    one = frozen(persona, seed)
    assert FrozenPersona.from_json(json.loads(json.dumps(one.as_json()))) == one
    assert frozen(persona, seed) == one


@pytest.mark.parametrize(
    "damaged", [{}, {"name": "A"}, {"name": 1}, {"name": "A", "char": "A", "user": "B", "seed": "x"}]
)
def test_a_damaged_frozen_persona_is_one_line(damaged: dict[str, object]) -> None:
    with pytest.raises(PersonaError) as caught:
        FrozenPersona.from_json(damaged)
    assert "\n" not in str(caught.value)


def test_the_users_variables_may_use_the_others() -> None:
    persona = Persona("Ada", system="Be {{tone}}.", variables={"tone": "kind to {{user}}"})
    assert frozen(persona).system == "Be kind to Kim."


def test_a_cards_parts_come_in_one_order_with_constant_lore() -> None:
    persona = Persona(
        "Ada",
        character=Character("Addie", "{{char}} is tall.", "calm", "A library", "Stay calm."),
        examples=(Example("Hi", "Hello, {{user}}."),),
        examples_as="system",
        lorebook=Lorebook(
            (
                LoreEntry("after 2", constant=True, insertion_order=2),
                LoreEntry("after 1", constant=True, insertion_order=1),
                LoreEntry("before", constant=True, position="before_char"),
                LoreEntry("@@activate_only_after 3\nlater", constant=True),
                LoreEntry("never", constant=True, enabled=False),
                LoreEntry("keyed", keys=("x",)),
            )
        ),
    )
    one = frozen(persona)
    parts = one.system.split("\n\n")
    assert "Addie" in parts[0]
    assert "Kim" in parts[0]
    assert parts[1:] == [
        "before",
        "Addie is tall.",
        "Personality: calm",
        "Scenario: A library",
        "after 1",
        "after 2",
        "How Addie answers, in examples:\nKim: Hi\nAddie: Hello, Kim.",
        "Stay calm.",
    ]
    assert sorted(one.told) == [0, 1, 2]
    assert one.messages() == ()
    assert one.system_text == one.system


def test_original_stands_for_the_usual_prompt_of_a_card() -> None:
    usual = frozen(Persona("Ada", character=Character())).system
    assert frozen(Persona("Ada", character=Character(), system="First. {{original}}")).system == f"First. {usual}"


def test_constant_lore_with_a_budget_waits_for_somebody_who_can_count() -> None:
    book = Lorebook((LoreEntry("one two three", constant=True), LoreEntry("four", constant=True)), token_budget=2)
    persona = Persona("Ada", lorebook=book)
    assert frozen(persona).told == ()
    counted = freeze(persona, user="Kim", now=NOW, seed=0, count_tokens=lambda text: len(text.split()))
    assert counted.told == (1,)
    assert counted.system == "four"


def test_sampling_changes_only_what_it_names() -> None:
    base = SamplingSettings(0.7, 5, 0.9, 0.05)
    assert SamplingOverrides(temperature=0.2).apply(base) == SamplingSettings(0.2, 5, 0.9, 0.05)
    assert SamplingOverrides().apply(base) == base


PERSONA = Persona(
    "Ada",
    system="You are {{char}}.",
    greeting="Hello {{user}}.",
    alternate_greetings=("", "Hi."),
    examples=(Example("a?", "b."), Example("", "c.")),
)


def test_a_conversation_begins_with_prompt_examples_and_greetings_as_siblings() -> None:
    tree = opening_tree(frozen(PERSONA), now=5.0, greeting=1)
    assert [(one.role, one.text) for one in tree.messages] == [
        ("system", "You are Ada.\n\nHow Ada answers, in examples:\nKim: a?\nAda: b.\nAda: c."),
        ("assistant", "Hello Kim."),
        ("assistant", "Hi."),
    ]
    ids = [one.id for one in tree.messages]
    assert [one.parent_id for one in tree.messages] == [None, ids[0], ids[0]]
    assert tree.tip_id == ids[2]
    assert len(set(ids)) == 3
    with pytest.raises(ValueError, match="no greeting 3"):
        opening_tree(frozen(PERSONA), now=5.0, greeting=2)


def test_who_speaks_is_read_from_the_branch() -> None:
    first, second = frozen(PERSONA), frozen(Persona("Bo", system="You are Bo."))
    begun = opening_tree(first, now=1.0).messages
    branch = [begun[0], begun[2]]
    assert persona_of(branch) == first
    assert greeting_place(branch) == 1
    changed = [*branch, takes_over(second, parent_id=branch[-1].id, now=2.0)]
    assert persona_of(changed) == second
    plain = Message("p", changed[-1].id, "system", "Somebody.", 3.0)
    assert persona_of([*changed, plain]) is None
    assert persona_of([]) is None


@given(st.lists(st.builds(Lore, st.integers(0, 99), texts), max_size=4))
def test_told_lore_is_kept_with_its_message(lore: list[Lore]) -> None:
    note = json.loads(json.dumps(lore_note(lore)))
    assert noted_lore(Message("m", None, "user", "hi", 0.0, persona=note)) == tuple(lore)


def test_damaged_notes_of_lore_are_passed_over() -> None:
    message = Message("m", None, "user", "hi", 0.0, persona={"lore": [1, {"entry": "x"}, {"entry": 1, "text": "y"}]})
    assert noted_lore(message) == (Lore(1, "y"),)
