"""A picture with two cards, as SillyTavern and Risu write them: each comes back as it was, and an edit changes both."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from exlchat.chat.personas import png
from exlchat.chat.personas.card_beside import BESIDE
from exlchat.chat.personas.card_writing import card_file
from exlchat.chat.personas.files import read_bytes
from exlchat.chat.personas.lorebook import LoreEntry
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.toml_file import parse_persona, write_text
from tests.chat.personas.test_lossless import exact, plain, texts_of_png, v1, v2, v3


def entry(key: str, content: str) -> dict[str, Any]:
    return {"keys": [key], "content": content, "extensions": {}, "enabled": True, "insertion_order": 1, "id": 4}


def cards() -> tuple[dict[str, Any], dict[str, Any]]:
    """An older card and a newer one, which differ in notes, tags and decorators."""
    newer = {
        "name": "Ada",
        "first_mes": "Hi.",
        "description": "Tall.",
        "creator_notes": "For three.",
        "tags": ["new"],
        "extensions": {"x": 1},
        "group_only_greetings": [],
        "character_book": {"extensions": {}, "entries": [entry("a", "@@depth 4\nOne."), entry("b", "Two.")]},
    }
    older = copy.deepcopy(newer)
    del older["group_only_greetings"]
    older |= {"creator_notes": "For two: use something newer.", "tags": ["old"]}
    older["character_book"]["entries"] = [entry("a", "One."), entry("b", "Two.")]
    return (
        {"spec": "chara_card_v2", "spec_version": "2.0", "data": older, "name": "Ada", "first_mes": "Hi."},
        {"spec": "chara_card_v3", "spec_version": "3.0", "data": newer},
    )


def encoded(card: Any) -> bytes:
    return base64.b64encode(json.dumps(card).encode())


def imported(older: Any, newer: Any) -> Persona:
    """Through the file that a persona lies in."""
    data = png.with_texts(png.plain_picture(2, 2), [("chara", encoded(older)), ("ccv3", encoded(newer))])
    return parse_persona(write_text(read_bytes(data, "a.png", usual_name="a").persona), "x")


def exported(persona: Persona) -> tuple[Any, Any]:
    texts = texts_of_png(card_file(persona, "png").data)
    older, newer = (json.loads(base64.b64decode(texts[keyword])) for keyword in ("chara", "ccv3"))
    return older, newer


@given(v1 | v2, v3)
def test_both_cards_come_back_to_the_letter(older: dict[str, Any], newer: dict[str, Any]) -> None:
    older, newer = plain(older), plain(newer)
    back = exported(imported(older, newer))
    assert [exact(one) for one in back] == [exact(older), exact(newer)]


def changed_text(persona: Persona) -> Persona:
    return replace(persona, greeting="Hello.")


def changed_character(persona: Persona) -> Persona:
    assert persona.character is not None
    return replace(persona, character=replace(persona.character, description="Small."))


def changed_notes(persona: Persona) -> Persona:
    return replace(persona, description="Notes of mine.")


def changed_entry(persona: Persona) -> Persona:
    assert persona.lorebook is not None
    first, second = persona.lorebook.entries
    entries = (replace(first, content="@@depth 4\nUno."), second)
    return replace(persona, lorebook=replace(persona.lorebook, entries=entries))


def changed_key(persona: Persona) -> Persona:
    assert persona.lorebook is not None
    first, second = persona.lorebook.entries
    return replace(persona, lorebook=replace(persona.lorebook, entries=(replace(first, keys=("z",)), second)))


def removed_entry(persona: Persona) -> Persona:
    assert persona.lorebook is not None
    return replace(persona, lorebook=replace(persona.lorebook, entries=persona.lorebook.entries[1:]))


def added_entry(persona: Persona) -> Persona:
    assert persona.lorebook is not None
    entries = (*persona.lorebook.entries, LoreEntry("@@depth 2\nThree.", keys=("c",), insertion_order=1.0))
    return replace(persona, lorebook=replace(persona.lorebook, entries=entries))


NEW = {"keys": ["c"], "extensions": {}, "enabled": True, "insertion_order": 1.0, "use_regex": False}


@pytest.mark.parametrize(
    ("edit", "in_older", "in_newer"),
    [
        (changed_text, {"first_mes": "Hello."}, {"first_mes": "Hello."}),
        (changed_character, {"description": "Small."}, {"description": "Small."}),
        (changed_notes, {"creator_notes": "Notes of mine."}, {"creator_notes": "Notes of mine."}),
        (
            changed_entry,
            {"entries": [entry("a", "Uno."), entry("b", "Two.")]},
            {"entries": [entry("a", "@@depth 4\nUno."), entry("b", "Two.")]},
        ),
        (
            changed_key,
            {"entries": [entry("z", "One."), entry("b", "Two.")]},
            {"entries": [entry("z", "@@depth 4\nOne."), entry("b", "Two.")]},
        ),
        (removed_entry, {"entries": [entry("b", "Two.")]}, {"entries": [entry("b", "Two.")]}),
        (
            added_entry,
            {"entries": [entry("a", "One."), entry("b", "Two."), {**NEW, "content": "Three."}]},
            {"entries": [entry("a", "@@depth 4\nOne."), entry("b", "Two."), {**NEW, "content": "@@depth 2\nThree."}]},
        ),
    ],
)
def test_an_edit_is_one_change_in_each(
    edit: Callable[[Persona], Persona], in_older: dict[str, Any], in_newer: dict[str, Any]
) -> None:
    cards_before = cards()
    back = exported(edit(imported(*cards_before)))
    for before, after, changes in zip(cards_before, back, (in_older, in_newer), strict=True):
        expected = copy.deepcopy(before)
        if "entries" in changes:
            expected["data"]["character_book"]["entries"] = changes["entries"]
        else:
            expected["data"] |= changes
        # The copies beside `data` that SillyTavern writes change along.
        expected |= {key: value for key, value in changes.items() if key in before}
        assert after == expected


def test_json_of_the_second_version_is_the_older_card() -> None:
    older, newer = cards()
    persona = imported(older, newer)
    assert json.loads(card_file(persona, "json", version=2).data) == older
    assert json.loads(card_file(persona, "json", version=3).data) == newer
    assert json.loads(card_file(persona, "json").data) == newer


def test_an_older_card_that_is_written_anew_anyway_is_not_kept() -> None:
    _, newer = cards()
    first = read_bytes(json.dumps(newer).encode(), "a.json", usual_name="a").persona
    again = read_bytes(card_file(first, "png").data, "a.png", usual_name="a").persona
    assert BESIDE not in again.foreign
    assert exported(again) == exported(first)


def test_an_older_card_that_is_damaged_is_named_and_written_anew() -> None:
    _, newer = cards()
    data = png.with_texts(png.plain_picture(2, 2), [("chara", b"!!!"), ("ccv3", encoded(newer))])
    found = read_bytes(data, "a.png", usual_name="a")
    assert any("(chara): the card is damaged" in notice for notice in found.notices)
    assert exported(found.persona)[1] == newer


def test_what_is_kept_and_damaged_is_one_line() -> None:
    persona = imported(*cards())
    broken = replace(persona, foreign={**persona.foreign, BESIDE: "{"})
    with pytest.raises(PersonaError, match=f"foreign.{BESIDE}") as error:
        card_file(broken, "png")
    assert "\n" not in str(error.value)
