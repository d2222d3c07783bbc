"""Lorebooks of SillyTavern mean what they mean there; what is not followed is named. Its rules are in the manual page
"World Info" and in what it writes: every key counts, only keys between slashes are patterns, four kinds of logic."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.personas.card import card_of_persona, persona_of_card
from exlchat.chat.personas.files import read_bytes, read_lorebook
from exlchat.chat.personas.lore_activation import constant_places, triggered
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from exlchat.chat.personas.persona import PersonaError
from tests.chat.personas.silly_lore import card, card_entry, world, world_entry
from tests.chat.personas.strategies import json_values

Reading = Callable[[Path, dict[str, Any], tuple[Any, ...]], Lorebook]


def from_world(folder: Path, *entries: Any) -> Lorebook:
    file = folder / "world.json"
    file.write_text(json.dumps(world(*entries)))
    return read_lorebook(file)[0]


def from_card(_folder: Path, *entries: Any) -> Lorebook:
    book = read_bytes(json.dumps(card(*entries)).encode(), "a.json", usual_name="a").persona.lorebook
    assert book is not None
    return book


SHAPES = [pytest.param(from_world, world_entry, id="world"), pytest.param(from_card, card_entry, id="card")]
both_shapes = pytest.mark.parametrize(("read", "entry"), SHAPES)


def told(book: Lorebook, *texts: str, seed: int = 0, already: tuple[int, ...] = ()) -> list[int]:
    lore = triggered(book, texts, already, seed=seed, count_tokens=lambda text: len(text.split()))
    return [one.index for one in lore]


WARDEN = (
    ["realm", "wood", "grove", "enchanted grove"],
    ["nightmaw", "brute", "fiend", "fiends", "brutes"],
    ["clearing", "safe harbour", "shelter"],
    ["might", "sorcery", "talent"],
)


@both_shapes
def test_all_fifteen_keys_of_four_entries_call_for_them(read: Any, entry: Any, tmp_path: Path) -> None:
    """The shape of the lorebook that comes with SillyTavern's own character: four entries of 4, 5, 3 and 3 keys."""
    book = read(tmp_path, *(entry(list(keys)) for keys in WARDEN))
    fired = [key for place, keys in enumerate(WARDEN) for key in keys if place in told(book, f"Tell of the {key}.")]
    assert len(fired) == 15


@both_shapes
@pytest.mark.parametrize(
    ("logic", "expected"),
    [
        (0, {"": False, "map": True, "map rope": True}),
        (1, {"": True, "map": True, "map rope": False}),
        (2, {"": True, "map": False, "map rope": False}),
        (3, {"": False, "map": False, "map rope": True}),
    ],
)
def test_secondary_keys_have_four_kinds_of_logic(
    read: Any, entry: Any, logic: int, expected: dict[str, bool], tmp_path: Path
) -> None:
    """AND ANY 0, NOT ALL 1, NOT ANY 2, AND ALL 3."""
    book = read(tmp_path, entry(["ship"], second=("map", "/ropes?/"), selectiveLogic=logic))
    assert {words: told(book, f"the ship {words}") == [0] for words in expected} == expected
    assert told(book, "map rope") == []
    unselective = read(tmp_path, entry(["ship"], second=("map",), selectiveLogic=logic, selective=False))
    assert told(unselective, "the ship") == [0]


@both_shapes
def test_more_than_fifty_entries_of_patterns(read: Any, entry: Any, tmp_path: Path) -> None:
    book = read(tmp_path, *(entry([f"/thing {number}\\b/i", f"object {number}."]) for number in range(120)))
    assert told(book, "THING 3 and object 119.") == [3, 119]


@both_shapes
def test_whole_words(read: Any, entry: Any, tmp_path: Path) -> None:
    """A key of one word must stand alone, one of several need not; without the setting, none must."""
    whole, plain = entry(["elf", "old oak", "c++"], matchWholeWords=True), entry(["elf"])
    book = read(tmp_path, whole, plain)
    for text, places in {
        "herself": [1],
        "an elf.": [0, 1],
        "elf": [0, 1],
        "an elf's": [0, 1],
        "elf_7": [1],
        "a cold oaken door": [0],
        "in c++ we": [0],
        "c++11": [],
    }.items():
        assert told(book, text) == places, text


@both_shapes
def test_case_counts_where_an_entry_says_so(read: Any, entry: Any, tmp_path: Path) -> None:
    book = read(tmp_path, entry(["Rose"], caseSensitive=True), entry(["Rose"], caseSensitive=False))
    assert told(book, "a rose") == [1]
    assert told(book, "Rose") == [0, 1]


@both_shapes
def test_an_entry_has_a_scan_depth_of_its_own(read: Any, entry: Any, tmp_path: Path) -> None:
    book = read(tmp_path, entry(["ship"], scanDepth=1), entry(["ship"], scanDepth=6), entry(["ship"]))
    assert told(book, "ship", "a", "b", "c", "d", "e") == [1]


@both_shapes
def test_a_probability_of_nothing_is_never_and_of_all_is_always(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (
        entry(["ship"], probability=0),
        entry(["ship"], probability=100),
        entry(["ship"], probability=0, useProbability=False),
        entry(["ship"], probability=0, constant=True),
    )
    book = read(tmp_path, *entries)
    for seed in range(50):
        assert told(book, "ship", seed=seed) == [1, 2]


@both_shapes
def test_a_probability_is_drawn_from_the_seed_and_anew_with_every_message(
    read: Any, entry: Any, tmp_path: Path
) -> None:
    book = read(tmp_path, entry(["ship"], probability=30))
    drawn = [bool(told(book, "ship", seed=seed)) for seed in range(1000)]
    assert 250 < sum(drawn) < 350
    assert drawn == [bool(told(book, "ship", seed=seed)) for seed in range(1000)]
    later = [bool(told(book, *["ship"] * messages, seed=1)) for messages in range(1, 101)]
    assert 15 < sum(later) < 45


@both_shapes
def test_of_a_group_one_is_told(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (
        entry(["sky"], group="weather", groupWeight=300),
        entry(["sky"], group="weather, mood", groupWeight=100),
        entry(["sky"]),
    )
    book = read(tmp_path, *entries)
    counts = [0, 0, 0]
    for seed in range(1000):
        for place in told(book, "the sky", seed=seed):
            counts[place] += 1
    assert counts[2] == 1000
    assert counts[0] + counts[1] == 1000
    assert 700 < counts[0] < 800
    assert told(book, "the sky", already=(1,)) == [2]


@both_shapes
def test_the_first_of_those_that_go_before_their_group(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (
        entry(["sky"], group="weather", groupWeight=10_000),
        entry(["sky"], group="weather", groupOverride=True, order=5),
        entry(["sky"], group="weather", groupOverride=True, order=9),
    )
    book = read(tmp_path, *entries)
    assert [told(book, "sky", seed=seed) for seed in range(20)] == [[2]] * 20


@both_shapes
def test_a_delay_waits_for_so_many_messages(read: Any, entry: Any, tmp_path: Path) -> None:
    book = read(tmp_path, entry(["ship"], delay=3), entry(["ship"], delay=3, constant=True))
    assert told(book, "ship", "ship") == []
    assert told(book, "ship", "ship", "ship") == [0, 1]
    assert constant_places(book) == frozenset()


@both_shapes
def test_entries_that_others_call_for_and_those_that_call(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (
        entry(["ship"], "It has a captain."),
        entry(["captain"], "He is old.", excludeRecursion=True),
        entry(["captain", "owner"], "He owns a parrot.", preventRecursion=True),
        entry(["parrot"], "It is green."),
        entry(["captain"], "delayed", delayUntilRecursion=True),
        entry(["captain"], "delayed more", delayUntilRecursion=2),
    )
    book = replace(read(tmp_path, *entries), recursive_scanning=True)
    assert told(book, "the ship") == [0, 2, 4, 5]
    assert told(book, "the captain") == [1, 2, 4, 5]
    # A second level of delay is come to even so; a first one alone never is.
    assert told(replace(book, recursive_scanning=False), "the captain") == [1, 2, 4, 5]
    assert told(replace(book, entries=book.entries[:5], recursive_scanning=False), "the captain") == [1, 2]


@both_shapes
def test_what_ignores_the_budget_is_told_beside_it(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (
        entry(["ship"], "one two three", order=9),
        entry(["ship"], "four five six", order=8),
        entry(["ship"], "seven eight nine", order=1, ignoreBudget=True),
    )
    book = replace(read(tmp_path, *entries), token_budget=3)
    assert told(book, "ship") == [2, 0]
    assert told(book, "ship", already=(2,)) == [0]


@both_shapes
def test_places_before_and_after_the_character(read: Any, entry: Any, tmp_path: Path) -> None:
    book = read(tmp_path, entry(["a"], position=0), entry(["a"], position=1), entry(["a"], position=4))
    assert [one.position for one in book.entries] == ["before_char", "after_char", "after_char"]


@both_shapes
def test_order_and_what_is_switched_off(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (entry(["a"], order=9), entry(["a"], order=2), entry(["a"], disable=True), entry([" a "], order=5))
    assert told(read(tmp_path, *entries), "a") == [1, 3, 0]


@both_shapes
def test_an_entry_for_other_occasions_is_not_told(read: Any, entry: Any, tmp_path: Path) -> None:
    entries = (entry(["a"], triggers=["quiet"]), entry(["a"], triggers=["normal", "swipe"]))
    assert told(read(tmp_path, *entries), "a") == [1]


WISHES: dict[str, Any] = {
    "vectorized": True,
    "useGroupScoring": True,
    "automationId": "quick",
    "matchPersonaDescription": True,
    "matchCharacterDescription": True,
    "matchCharacterPersonality": True,
    "matchCharacterDepthPrompt": True,
    "matchScenario": True,
    "matchCreatorNotes": True,
    "triggers": ["normal"],
    "sticky": 2,
    "cooldown": 3,
}


def notices_of(entry: Any, folder: Path, *entries: Any) -> tuple[str, ...]:
    if entry is card_entry:
        return read_bytes(json.dumps(card(*entries)).encode(), "a.json", usual_name="a").notices
    file = folder / "a.json"
    file.write_text(json.dumps(world(*entries)))
    return read_lorebook(file)[1]


@pytest.mark.parametrize("entry", [world_entry, card_entry])
@pytest.mark.parametrize("key", WISHES)
def test_what_is_not_followed_is_named(entry: Any, key: str, tmp_path: Path) -> None:
    notices = notices_of(entry, tmp_path, entry(["a"], **{key: WISHES[key]}), entry(["b"]))
    assert notices == (f"a.json: its lorebook has what is not followed: {key} in 1 entry",)


@pytest.mark.parametrize("entry", [world_entry, card_entry])
@pytest.mark.parametrize("position", [*range(2, 8), 99])
def test_a_place_that_there_is_not_is_named(entry: Any, position: int, tmp_path: Path) -> None:
    (notice,) = notices_of(entry, tmp_path, entry(["a"], position=position), entry(["b"], position=position))
    assert f"position {position} (" in notice
    assert notice.endswith("in 2 entries")


@pytest.mark.parametrize("entry", [world_entry, card_entry])
@pytest.mark.parametrize("logic", [9, -1, "all"])
def test_a_logic_that_there_is_not_is_named(entry: Any, logic: Any, tmp_path: Path) -> None:
    (notice,) = notices_of(entry, tmp_path, entry(["a"], selectiveLogic=logic))
    assert f"selectiveLogic {logic} (" in notice


@pytest.mark.parametrize("entry", [world_entry, card_entry])
def test_an_entry_that_asks_for_nothing_more_is_silent(entry: Any, tmp_path: Path) -> None:
    assert notices_of(entry, tmp_path, entry(["a"]), entry(["/b/i"], position=1)) == ()


def test_filters_and_keys_that_nobody_knows_are_named(tmp_path: Path) -> None:
    filtered = world_entry(["a"], characterFilter={"isExclude": False, "names": ["Warden"], "tags": []})
    assert "characterFilter in 1 entry" in notices_of(world_entry, tmp_path, filtered)[0]
    assert "moonPhase in 1 entry" in notices_of(world_entry, tmp_path, world_entry(["a"], moonPhase="full"))[0]


def test_patterns_that_are_never_found_are_named(tmp_path: Path) -> None:
    (notice,) = notices_of(card_entry, tmp_path, card_entry(["/\\p{L}/u", "/a/"]), card_entry(["x"]))
    assert notice == "a.json: 1 pattern of its lorebook is never found, as '/\\\\p{L}/u' (\\p{…})"
    (notice,) = notices_of(card_entry, tmp_path, card_entry(["b"], second=("/(?<=a*)b/", "/(?i:a)/")))
    assert notice.startswith("a.json: 2 patterns of its lorebook are never found, as ")


def test_a_world_file_alone_is_no_persona(tmp_path: Path) -> None:
    with pytest.raises(PersonaError) as error:
        read_bytes(json.dumps(world(world_entry(["a"]))).encode(), "world.json", usual_name="world")
    assert "--lorebook world.json" in str(error.value)


def test_a_lorebook_of_an_unknown_form_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "novel.json"
    file.write_text(json.dumps({"entries": [{"text": "It is so.", "keys": ["a"], "displayName": "a"}]}))
    with pytest.raises(PersonaError, match="no entry has a content"):
        read_lorebook(file)


fields = st.sampled_from([*card_entry([]), *card_entry([])["extensions"], *world_entry([])])
anything = json_values | st.integers(-2, 9) | st.lists(st.text(max_size=4) | st.just("/a|b/i"), max_size=3)
entries = st.dictionaries(fields, anything | st.dictionaries(fields, anything, max_size=6), max_size=8)


@given(st.lists(entries | anything, max_size=4), st.booleans())
def test_any_lorebook_is_read_told_and_spoken_of(given_entries: list[Any], numbered: bool) -> None:
    listed = {str(number): one for number, one in enumerate(given_entries)} if numbered else given_entries
    made = card()
    made["data"]["character_book"]["entries"] = listed
    found = read_bytes(json.dumps(made).encode(), "a.json", usual_name="a")
    assert all("\n" not in line and len(line) < 1_000 for line in found.notices)
    assert found.persona.lorebook is not None
    triggered(found.persona.lorebook, ["a", "b"], names=["A", "B"], count_tokens=len)


EDITS: dict[str, Any] = {
    "selective_logic": "not_any",
    "probability": 40.0,
    "match_whole_words": True,
    "case_sensitive": True,
    "position": "after_char",
    "scan_depth": 7,
    "delay": 2,
    "group": "weather",
    "group_override": True,
    "group_weight": 5.0,
    "exclude_recursion": True,
    "prevent_recursion": True,
    "delay_until_recursion": 2,
    "ignore_budget": True,
    "keys": ("new",),
    "enabled": False,
    "insertion_order": 3.0,
}
IN_CARD = {
    "selective_logic": ("extensions", "selectiveLogic", 2),
    "probability": ("extensions", "probability", 40.0),
    "match_whole_words": ("extensions", "match_whole_words", True),
    "scan_depth": ("extensions", "scan_depth", 7),
    "group": ("extensions", "group", "weather"),
    "position": ("extensions", "position", 1),
}


@pytest.mark.parametrize("field", EDITS)
def test_an_edit_of_an_entry_is_one_change_where_silly_tavern_looks_for_it(field: str) -> None:
    before = card(card_entry(["a"], "Text."), card_entry(["b"], "Other."))
    persona = persona_of_card(before, "a")
    assert persona.lorebook is not None
    first, second = persona.lorebook.entries
    changed = replace(first, **{field: EDITS[field]})
    back = card_of_persona(replace(persona, lorebook=replace(persona.lorebook, entries=(changed, second))))
    again = persona_of_card(back, "a").lorebook
    assert again is not None
    assert again.entries == (changed, second)
    entries = back["data"]["character_book"]["entries"]
    assert entries[1] == card_entry(["b"], "Other.")
    if field in IN_CARD:
        holder, key, value = IN_CARD[field]
        assert entries[0][holder][key] == value
    kept = {key: value for key, value in card_entry(["a"], "Text.")["extensions"].items() if key in ("depth", "role")}
    assert kept.items() <= entries[0]["extensions"].items()


def test_patterns_of_the_third_specification_stay_patterns() -> None:
    entry = {"keys": ["drag.n"], "content": "x", "extensions": {}, "enabled": True, "use_regex": True}
    book = persona_of_card(card({**entry, "insertion_order": 0}), "a").lorebook
    assert book is not None
    assert book.entries == (LoreEntry("x", keys=("drag.n",), use_regex=True),)
