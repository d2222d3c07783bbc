"""Lines of a given width, measured in cells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.style import Style

from exlchat.ui.render.markdown.table import fit_columns
from exlchat.ui.render.markdown.wrap import wrap

PLAIN = Style.null()


def lines(text: str, width: int, *, words: bool = True) -> list[str]:
    return ["".join(segment.text for segment in line) for line in wrap([(text, PLAIN)], width, words=words)]


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("", 10, [""]),
        ("one two three", 7, ["one two", "three"]),
        ("one  two", 4, ["one", "two"]),
        ("  keeps indent", 20, ["  keeps indent"]),
        ("abcdefghij", 4, ["abcd", "efgh", "ij"]),
        ("ab abcdefghij k", 4, ["ab", "abcd", "efgh", "ij k"]),
        ("日本語です", 4, ["日本", "語で", "す"]),
        ("日本、語", 4, ["日", "本、", "語"]),
        ("a\tb", 10, ["a   b"]),
        ("a\n\nb", 10, ["a", "", "b"]),
        ("👩‍👧👩‍👧👩‍👧", 4, ["👩‍👧👩‍👧", "👩‍👧"]),
    ],
)
def test_words_wrap(text: str, width: int, expected: list[str]) -> None:
    assert lines(text, width) == expected


def test_code_wraps_between_characters_and_keeps_its_blanks() -> None:
    assert lines("ab   cd", 4, words=False) == ["ab  ", " cd"]


@given(st.text(alphabet="ab 日é👩\u200d\ufe0f\t\n\u0301", max_size=60), st.integers(2, 20))
def test_no_line_is_wider_and_no_character_is_lost(text: str, width: int) -> None:
    wrapped = lines(text, width)
    assert all(cell_len(line) <= width for line in wrapped)
    seen = [c for c in "".join(wrapped) if not c.isspace() and c != "\u200d"]
    assert seen == [c for c in text if not c.isspace() and c != "\u200d"]


def test_styles_follow_their_characters() -> None:
    bold = Style(bold=True)
    wrapped = wrap([("one ", PLAIN), ("two three", bold), (" four", PLAIN)], 9)
    assert [[(segment.text, segment.style) for segment in line] for line in wrapped] == [
        [("one ", PLAIN), ("two", bold)],
        [("three", bold)],
        [("four", PLAIN)],
    ]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=8), st.integers(0, 100))
def test_columns_share_the_room(natural: list[int], spare: int) -> None:
    room = len(natural) + spare
    widths = fit_columns(natural, room)
    assert sum(widths) <= room
    assert all(1 <= width <= max(wish, 1) for width, wish in zip(widths, natural, strict=True))
    if sum(max(wish, 1) for wish in natural) <= room:
        assert widths == [max(wish, 1) for wish in natural]
