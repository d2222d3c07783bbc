"""Lorebooks: what calls for an entry, and that telling one never changes what stands before it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.model import Message
from exlchat.chat.personas.decorators import Decorators, split_decorators
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.personas.lore_activation import triggered
from exlchat.chat.personas.lore_of_turn import lore_note, lore_to_tell
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry, text_for_model, told_text
from exlchat.chat.personas.opening import opening_tree, takes_over
from tests.patience import within

WORDS = ["dragon", "castle", "map", "queen", "rain", "Dragon", "old"]


def words(text: str) -> int:
    return len(text.split())


def places(lorebook: Lorebook, *texts: str, already: Sequence[int] = (), **more: int | None) -> list[int]:
    found = triggered(
        lorebook, texts, already, count_tokens=words, answers=more.get("answers"), greeting=more.get("greeting")
    )
    return [one.index for one in found]


def book(*entries: LoreEntry, **more: object) -> Lorebook:
    return Lorebook(entries, **more)  # type: ignore[arg-type]


def entry(key: str, content: str = "content", **more: object) -> LoreEntry:
    return LoreEntry(content, keys=(key,), **more)  # type: ignore[arg-type]


def test_a_key_in_the_last_messages_calls_for_an_entry() -> None:
    lore = book(entry("dragon"), entry("castle"))
    assert places(lore, "A DRAGON!") == [0]
    assert places(lore, "castle", "1", "2", "3", "4") == []
    assert places(lore, "castle", "1", "2", "3") == [1]
    assert places(book(entry("dragon"), scan_depth=1), "dragon", "no") == []
    assert places(book(entry("dragon"), scan_depth=0), "dragon") == []


def test_case_counts_where_it_is_asked_for() -> None:
    lore = book(entry("Dragon", case_sensitive=True))
    assert places(lore, "a dragon") == []
    assert places(lore, "the Dragon") == [0]


def test_a_selective_entry_needs_a_second_key() -> None:
    lore = book(entry("dragon", selective=True, secondary_keys=("queen", "map")))
    assert places(lore, "dragon") == []
    assert places(lore, "dragon map") == [0]
    assert places(book(entry("dragon", secondary_keys=("queen",))), "dragon") == [0]


def test_disabled_and_empty_entries_are_never_told() -> None:
    assert places(book(entry("a", enabled=False), entry("a", ""), LoreEntry("x", keys=("", " "))), "a  ") == []


def test_entries_come_in_their_order_and_only_once() -> None:
    lore = book(entry("a", "one", insertion_order=9), entry("a", "two", insertion_order=-1), entry("a", "three"))
    assert places(lore, "a") == [1, 2, 0]
    assert places(lore, "a", already=[2]) == [1, 0]


def test_a_budget_leaves_out_what_matters_least() -> None:
    lore = book(
        entry("a", "one two", priority=5),
        entry("a", "three four", priority=9),
        entry("a", "five", priority=1),
        token_budget=3,
    )
    assert places(lore, "a") == [1, 2]
    assert places(lore, "a", already=[1]) == [2]
    with pytest.raises(ValueError, match="count tokens"):
        triggered(lore, ["a"])


def test_one_entry_calls_for_another_where_that_is_wanted() -> None:
    entries = (entry("dragon", "It guards the castle."), entry("castle", "It has a map."), entry("map", "old"))
    assert places(book(*entries), "dragon") == [0]
    assert places(book(*entries, recursive_scanning=True), "dragon") == [0, 1, 2]
    hidden = LoreEntry("It sleeps.", keys=("dragon",), hidden_keys=("map",))
    assert places(book(hidden, *entries[1:], recursive_scanning=True), "dragon") == [0, 2]


@pytest.mark.parametrize(
    ("content", "text", "more", "told"),
    [
        ("@@dont_activate\nx", "a", {}, False),
        ("@@dont_activate\n@@activate\nx", "no key", {}, True),
        ("@@activate_only_after 2\nx", "a", {"answers": 1}, False),
        ("@@activate_only_after 2\nx", "a", {"answers": 2}, True),
        ("@@activate_only_after 2\nx", "a", {}, True),
        ("@@activate_only_every 3\nx", "a", {"answers": 4}, False),
        ("@@activate_only_every 3\nx", "a", {"answers": 6}, True),
        ("@@activate_only_every 0\nx", "a", {"answers": 6}, True),
        ("@@is_greeting 1\nx", "a", {"greeting": 0}, False),
        ("@@is_greeting 1\nx", "a", {"greeting": 1}, True),
        ("@@additional_keys b, c\nx", "a", {}, False),
        ("@@additional_keys b, c\nx", "a c", {}, True),
        ("@@additional_keys b\n@@additional_keys c\nx", "a c", {}, False),
        ("@@exclude_keys b\nx", "a b", {}, False),
        ("@@exclude_keys b\nx", "a", {}, True),
        ("@@scan_depth 0\nx", "a", {}, False),
        ("@@unknown 3\n@@@dont_activate\nx", "a", {}, False),
        ("@@unknown 3\n@@@unknown_too\n@@@dont_activate\nx", "a", {}, False),
        ("@@scan_depth 4\n@@@dont_activate\nx", "a", {}, True),
        ("@@depth 2\n@@role system\n\nx", "a", {}, True),
    ],
)
def test_decorators(content: str, text: str, more: dict[str, int], told: bool) -> None:
    lore = book(entry("a", content))
    assert places(lore, text, **more) == ([0] if told else [])
    assert split_decorators(content)[1] == "x"


def test_decorators_about_what_was_told_before() -> None:
    lore = book(entry("a", "@@keep_activate_after_match\nx"), entry("a", "@@dont_activate_after_match\ny"))
    assert [one.index for one in triggered(lore, ["nothing"], told_before=[0, 1])] == [0]
    assert [one.index for one in triggered(lore, ["a"], told_before=[1])] == [0]
    assert [one.index for one in triggered(lore, ["a"])] == [0, 1]


@given(st.text(st.sampled_from("@ab \n1,_"), max_size=80))
def test_any_content_is_split(content: str) -> None:
    decorators, text = split_decorators(content)
    assert not text.startswith("@@")
    assert text in content
    if "@@" not in content:
        assert decorators == Decorators()


lore_entries = st.builds(
    LoreEntry,
    content=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    keys=st.lists(st.sampled_from(WORDS), max_size=2).map(tuple),
    constant=st.booleans(),
    insertion_order=st.integers(-3, 3),
)
lore_books = st.builds(
    Lorebook,
    st.lists(lore_entries, max_size=6).map(tuple),
    scan_depth=st.none() | st.integers(0, 4),
    token_budget=st.none() | st.integers(0, 12),
    recursive_scanning=st.booleans(),
)


def seen(lorebook: Lorebook, texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """What the model sees of a conversation of user messages that was held from its beginning, and what it was told."""
    prompt: list[str] = []
    told: list[int] = []
    for number, text in enumerate(texts, 1):
        lore = triggered(lorebook, texts[:number], told, count_tokens=words)
        told += [one.index for one in lore]
        prompt.append(told_text(text, lore))
    return prompt, told


@given(lore_books, st.lists(st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join), min_size=1, max_size=8))
def test_what_stands_before_never_changes(lorebook: Lorebook, texts: list[str]) -> None:
    whole, told = seen(lorebook, texts)
    assert len(told) == len(set(told))
    for number in range(len(texts)):
        assert seen(lorebook, texts[:number])[0] == whole[:number]
    if lorebook.token_budget is not None:
        assert sum(words(lorebook.entries[place].content) for place in told) <= lorebook.token_budget
    assert all(shown.endswith(text) for shown, text in zip(whole, texts, strict=True))


def spoken(lorebook: Lorebook, told: Sequence[int] = ()) -> FrozenPersona:
    return FrozenPersona(
        "Ada", "Ada", "Kim", 0, greetings=("Hello dragon.", "Hi."), lorebook=lorebook, told=tuple(told)
    )


def said(branch: list[Message], role: str, text: str) -> list[Message]:
    """The branch with one message more, and what is told with it, as a turn does it."""
    message = Message(str(len(branch)), branch[-1].id, role, text, 0.0)  # type: ignore[arg-type]
    if role == "user":
        lore = lore_to_tell([*branch, message], count_tokens=words)
        message = dataclasses.replace(message, persona=lore_note(lore))
    return [*branch, message]


@given(lore_books, st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.sampled_from(WORDS)), max_size=10))
def test_a_branch_only_ever_grows_at_its_end(lorebook: Lorebook, turns: list[tuple[str, str]]) -> None:
    begun = opening_tree(spoken(lorebook), now=0.0)
    branch = list(begun.messages[:2])
    for role, text in turns:
        longer = said(branch, role, text)
        assert [text_for_model(one) for one in longer[:-1]] == [text_for_model(one) for one in branch]
        branch = longer
    told = [entry["text"] for one in branch if one.role == "user" and one.persona for entry in one.persona["lore"]]
    assert len(told) <= len(lorebook.entries)


def test_lore_of_a_branch_knows_greeting_answers_and_what_the_model_no_longer_sees() -> None:
    lore = book(
        entry("dragon", "It sleeps."),
        entry("rain", "@@is_greeting 1\nwrong greeting"),
        entry("rain", "@@activate_only_after 2\nlater"),
        LoreEntry("from the start", constant=True),
    )
    begun = opening_tree(spoken(lore, told=[3]), now=0.0)
    branch = said(list(begun.messages[:2]), "user", "rain")
    assert text_for_model(branch[-1]) == "It sleeps.\n\nrain"
    branch = said(said(branch, "assistant", "Yes."), "user", "dragon rain")
    assert text_for_model(branch[-1]) == "later\n\ndragon rain"
    last = Message("last", branch[-1].id, "user", "dragon", 0.0)
    assert lore_to_tell([*branch, last], count_tokens=words) == ()
    forgotten = lore_to_tell([*branch, last], count_tokens=words, seen={branch[-1].id})
    assert [one.text for one in forgotten] == ["It sleeps."]


def test_another_persona_tells_its_own_lore() -> None:
    first, second = book(entry("dragon", "one")), book(entry("dragon", "two"))
    branch = said(list(opening_tree(spoken(first), now=0.0).messages[:2]), "user", "hm")
    branch = [*branch, takes_over(spoken(second), parent_id=branch[-1].id, now=1.0)]
    assert text_for_model(said(branch, "user", "dragon")[-1]) == "two\n\ndragon"
    assert lore_to_tell(branch[:0], count_tokens=words) == ()


def test_a_large_lorebook_takes_no_time() -> None:
    chain = Lorebook(tuple(entry(f"key{n}.", f"so key{n + 1}.") for n in range(10_000)), recursive_scanning=True)
    with within(3):
        told = triggered(chain, ["word " * 10_000 + "key0."] * 4)
    assert [one.index for one in told] == list(range(8))
