"""Nothing that steers a terminal or hides from the eye passes."""

import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.untrusted.sanitize import PRINTABLE_LINE, normalize_newlines, printable, stray_joiners


@given(st.text(alphabet=st.characters(codec=None)))
def test_no_control_bidi_or_surrogate_character_passes(text: str) -> None:
    for character in printable(text):
        if character in "\n\r\t":
            continue
        assert unicodedata.category(character) not in ("Cc", "Cs", "Zl", "Zp")
        assert unicodedata.bidirectional(character) not in (
            "LRE",
            "RLE",
            "LRO",
            "RLO",
            "PDF",
            "LRI",
            "RLI",
            "FSI",
            "PDI",
        )


def test_a_printable_line_is_what_printable_leaves_alone_less_tabs_and_line_ends() -> None:
    pattern = re.compile(PRINTABLE_LINE)
    for character in map(chr, range(sys.maxunicode + 1)):
        left_alone = printable(character) == character and character not in "\t\n\r"
        assert (pattern.fullmatch(character) is not None) == left_alone, hex(ord(character))


@given(st.text(), st.integers(0, 20))
def test_pieces_clean_like_the_whole(text: str, cut: int) -> None:
    assert printable(text[:cut]) + printable(text[cut:]) == printable(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "␛[31mred␛[0m"),
        ("bell\x07 null\x00", "bell␇ null␀"),
        ("\x7f", "␡"),
        ("\x9b31m", "\ufffd31m"),
        ("abc\u202etxt.exe", "abc\ufffdtxt.exe"),
        ("zero\u200bwidth\ufeff", "zerowidth"),
        ("hid\U000e0041den", "hidden"),
        ("one\u2028two", "one\ntwo"),
        ("\ud800", "\ufffd"),
        ("plain ünïcode 日本\t\n", "plain ünïcode 日本\t\n"),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645"),
    ],
)
def test_what_is_seen(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_joiners_stay_only_between_emoji() -> None:
    assert stray_joiners("👩\u200d👧 a\u200db") == [5]
    assert stray_joiners("❤\ufe0f\u200d🔥") == []


def test_line_ends_become_one_kind() -> None:
    assert normalize_newlines("a\r\nb\rc\nd") == "a\nb\nc\nd"
