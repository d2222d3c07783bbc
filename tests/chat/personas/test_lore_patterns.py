"""Keys that are patterns: which are, what they look through, and that none of a stranger's holds the program up."""

from __future__ import annotations

import pytest

from exlchat.chat.personas import lore_patterns
from exlchat.chat.personas.lore_activation import triggered
from exlchat.chat.personas.lore_patterns import PatternSearch, bare_pattern, pattern_of
from exlchat.chat.personas.lorebook import Lorebook, LoreEntry
from tests.patience import within


def told(entry: LoreEntry, *texts: str, names: tuple[str, ...] = ()) -> bool:
    return bool(triggered(Lorebook((entry,)), texts, names=names))


def entry(*keys: str, **more: object) -> LoreEntry:
    return LoreEntry("content", keys=keys, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key", ["dragon", "/dragon", "dragon/", "//", "/", "/a/b/", "/a/x", "/(/", "/a**/", "/a/gg", r"/a\/", "and/or"]
)
def test_all_but_a_pattern_of_javascript_between_slashes_is_plain_text(key: str) -> None:
    assert pattern_of(key) is None
    assert told(entry(key), f"there is {key} in it")


def test_a_pattern_goes_by_its_own_flags_alone() -> None:
    assert told(entry("/drag(on|oness)s?/i"), "two DRAGONESSES") is True
    assert told(entry("/dragon/"), "DRAGON") is False
    assert told(entry("/dragon/", case_sensitive=False), "DRAGON") is False
    assert told(entry("/rag/", match_whole_words=True), "dragon") is True


def test_every_key_counts_whether_it_is_a_text_or_a_pattern() -> None:
    both = entry("/wyrm/", "castle", r"/\d+ gold/")
    assert [told(both, text) for text in ("a wyrm", "a castle", "30 gold", "nothing")] == [True, True, True, False]


def test_a_pattern_that_cannot_be_followed_is_never_found() -> None:
    assert told(entry(r"/\p{L}/u"), "a") is False


def test_all_keys_of_the_third_specification_are_patterns() -> None:
    assert told(entry("drag.n", "/queen/", use_regex=True), "Dragen") is True
    assert told(entry("drag.n", "/queen/", use_regex=True), "queen") is True
    assert told(entry("drag.n", use_regex=True, case_sensitive=True), "Dragen") is False
    assert told(entry("(", use_regex=True), "(") is False
    assert bare_pattern("(", case_sensitive=False).problem == "broken"


def test_a_pattern_may_ask_for_the_beginning_of_a_message_and_who_said_it() -> None:
    """SillyTavern puts U+0001 and the name before each message that patterns look through."""
    key = r"/\x01Kim: [^\x01]*\bdragon\b/"
    texts = ("A dragon!", "A castle.")
    assert told(entry(key), *texts, names=("Kim", "Ada")) is True
    assert told(entry(key), *texts, names=("Ada", "Kim")) is False


def test_keys_of_decorators_may_be_patterns_too() -> None:
    decorated = LoreEntry("@@additional_keys /b+c/\n@@exclude_keys /x+y/\ncontent", keys=("a",))
    assert [told(decorated, text) for text in ("a", "a bbc", "a bbc xy")] == [False, True, False]


def test_more_than_fifty_entries_have_patterns() -> None:
    book = Lorebook(tuple(entry(f"/word{number}\\b/") for number in range(200)))
    assert [one.index for one in triggered(book, ["word7 word199"])] == [7, 199]


HOSTILE = [
    r"/(a|aa)*b/",
    r"/(.*)(.*)(.*)(.*)\1x/",
    "/(?:a?){2000}b/",
    "/((((a*)*)*)*)*b/",
    "/.*.*.*x/",
    "/" + r"[\u0000-\uffff]" * 100 + "/i",
    "/(?:(?:a{0,60000}){0,60000}){0,60000}b/",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_a_pattern_that_would_run_for_ever_ends_soon_and_finds_nothing(key: str) -> None:
    with within(3):
        assert told(entry(key, "castle"), "a" * 50_000 + " castle") is True
        assert told(entry(key), "a" * 50_000) is False


def test_a_lorebook_of_them_ends_soon_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a turn are bounded together, however many depths and passes ask for them."""
    monkeypatch.setattr(lore_patterns, "TURN_SECONDS", 0.4)
    keys = [f"/(a|aa)*[b{chr(0x3041 + number)}]/" for number in range(150)]
    entries = [entry(key, scan_depth=number % 9) for number, key in enumerate(keys)]
    calling = [entry("a", constant=True, delay_until_recursion=number) for number in range(8)]
    with within(4):
        triggered(Lorebook((*entries, *calling), recursive_scanning=True), ["a" * 5_000] * 9)


def test_the_search_names_what_python_cannot_do() -> None:
    patterns = {key: pattern_of(key) for key in ("/a/", "/(?<=a*)b/")}
    assert all(pattern is not None and pattern.problem is None for pattern in patterns.values())
    unusable = PatternSearch().unusable({pattern.python for pattern in patterns.values() if pattern})
    assert unusable == {pattern.python for key, pattern in patterns.items() if pattern and "<=" in key}
