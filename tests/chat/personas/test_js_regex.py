"""JavaScript's patterns in Python: the answers are those of a JavaScript engine (Node.js 20), asked once."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.personas.js_regex import BrokenRegexError, ForeignRegexError, python_pattern


@pytest.mark.parametrize(
    ("source", "flags", "text", "found"),
    [
        ("dragons?", "i", "two DRAGONS", True),
        ("\\bcat\\b", "", "concatenate", False),
        ("\\bcat\\b", "", "a cat.", True),
        ("dragon.*queen", "s", "the dragon\nand the queen", True),
        ("dragon.*queen", "", "the dragon\nand the queen", False),
        ("^B", "m", "A\nB", True),
        ("^B", "", "A\nB", False),
        ("a$", "", "a\n", False),
        ("a$", "m", "a\nb", True),
        ("\\d+ gold", "", "\u0663 gold", False),
        ("\\d+ gold", "", "30 gold", True),
        ("\\bété\\b", "", "l'\xe9t\xe9 l\xe0", False),
        ("\\w+é$", "", "\xe9\xe9\xe9", False),
        ("a\\sb", "", "a\ufeffb", True),
        ("a\\sb", "", "a\x1cb", False),
        ("(?<who>elf|elves) and \\k<who>", "", "elf and elf", True),
        ("(?<who>elf|elves) and \\k<who>", "", "elf and elves", False),
        ("(?<=not )dragon", "", "not dragon", True),
        ("(?<!no |not )dragon", "", "not dragon", False),
        ("(?<!no |not )dragon", "", "a dragon", True),
        ("\\u{1F409}", "u", "\U0001f409", True),
        ("\\u{2}", "", "uu", True),
        ("\\uD83D\\uDC09", "", "\U0001f409", True),
        ("[^\\W\\d]", "", "12 _", True),
        ("[^]", "", "x", True),
        ("[]", "", "x", False),
        ("(a)?b\\1", "", "b", True),
        ("\\1(a)", "", "a", True),
        ("x{,3}", "", "x{,3}", True),
        ("x{,3}", "", "xxx", False),
        ("[\\b]", "", "\x08", True),
        ("\\cA", "", "\x01", True),
        ("\\x41\\u0042", "", "AB", True),
        ("a\\/b", "", "a/b", True),
        ("dragon", "y", "the dragon", False),
        ("dragon", "y", "dragon", True),
        ("dragon", "g", "the dragon", True),
        ("(?:red|blue)-(?:dragon|wyrm)s?\\b", "i", "BLUE-WYRMS!", True),
        ("(?=.*gold)(?=.*ring)", "", "a ring of gold", True),
        ("\\b(?:a+)+$", "", "aaaa", True),
        ("[a-z]{2,4}\\.", "", "abc.", True),
        ("\\B", "", "", True),
        ("a|", "", "zzz", True),
        ("\\0", "", "\x00", True),
        ("\\8", "", "8", True),
        ("\\101", "", "A", True),
    ],
)
def test_a_pattern_finds_what_it_finds_in_javascript(source: str, flags: str, text: str, found: bool) -> None:
    assert bool(re.search(python_pattern(source, flags), text)) is found


@pytest.mark.parametrize(
    ("source", "flags"),
    [
        *((one, "") for one in ["(", ")", "a**", "*a", "{2}", "a{2,1}", "[b-a]", "^*", "(?<=a)+", "(?z)", "\\"]),
        ("(?<n>a)(?<n>b)", ""),
        *((one, "u") for one in [r"\-", "{", "]", r"\u{110000}", r"\1"]),
        ("a", "gg"),
    ],
)
def test_what_javascript_refuses_is_refused(source: str, flags: str) -> None:
    with pytest.raises(BrokenRegexError):
        python_pattern(source, flags)


@pytest.mark.parametrize(
    ("source", "flags", "why"),
    [
        (r"\p{L}+", "u", r"\p{…}"),
        (r"\uD83D", "", "halves of characters"),
        ("(?i:a)", "", "flags of a part"),
        (r"(a)(?<=\1b)", "", "a reference to a group inside a look behind"),
        ("(" * 60 + "a" + ")" * 60, "", "groups more than 40 deep"),
        ("a" * 3_000, "", "more than 2,000 characters"),
    ],
)
def test_what_python_has_no_words_for_is_named(source: str, flags: str, why: str) -> None:
    with pytest.raises(ForeignRegexError) as error:
        python_pattern(source, flags)
    assert why in str(error.value)


@given(st.text(st.sampled_from("ab.*+?|()[]{}\\^$-,12<>=!:ukpxcnd/ \n\u2028") | st.characters(), max_size=30))
def test_any_text_is_a_pattern_or_refused(source: str) -> None:
    for flags in ("", "i", "u", "msy"):
        # Behind a look behind of many widths, Python may still refuse what comes out.
        with contextlib.suppress(BrokenRegexError, ForeignRegexError, re.error):
            re.search(python_pattern(source, flags), "")
