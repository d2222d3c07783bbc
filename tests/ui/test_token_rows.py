"""Tokens in rows: all of them are there, in order, within the width, and can be reached."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from exlchat.app.panels.token_words import percent, token_name
from exlchat.ui.render.token_rows import TokenRows

PIECES = st.lists(st.text(st.sampled_from("ab \n\t漢\x1b\u200b\u0301🙂"), max_size=9), min_size=1, max_size=30)


def texts(rows: TokenRows) -> list[str]:
    return ["".join(part.text for part in row) for row in rows.rows]


@given(pieces=PIECES, width=st.integers(2, 20))
def test_every_token_is_seen_once_and_in_order(pieces: list[str], width: int) -> None:
    rows = TokenRows(pieces, width)
    order = [part.token for row in rows.rows for part in row]
    assert order == sorted(order)
    assert set(order) == set(range(len(pieces)))
    for row in rows.rows:
        column = 0
        for part in row:
            assert part.column == column
            assert part.text.isprintable()
            column += cell_len(part.text)
        assert column <= width
    for token in range(len(pieces)):
        row = rows.row_of(token)
        part = next(one for one in rows.rows[row] if one.token == token)
        assert rows.at(row, part.column) == token
        for by in (-1, 1):
            other = rows.beside(token, by)
            assert other == token or (rows.row_of(other) - row) * by >= 0


def test_rows_are_broken_before_words() -> None:
    rows = TokenRows(["The", " mil", "ler", " count", "s", ".\n\n", "Next"], 12)
    assert texts(rows) == ["The miller", " counts.⏎", "⏎", "Next"]
    assert rows.beside(1, 1) == 3
    assert rows.beside(4, 1) == 5
    assert rows.beside(6, -1) == 5
    assert rows.beside(0, -1) == 0


def test_what_is_longer_than_a_row_is_broken_anywhere() -> None:
    assert texts(TokenRows(["abcdefgh", "ij"], 3)) == ["abc", "def", "gh", "ij"]
    assert texts(TokenRows(["", "é"], 3)) == ["◌é"]


def test_words_for_tokens_and_probabilities() -> None:
    assert token_name(" a\n\t\r") == "␣a⏎⇥␍"
    assert token_name("\x1b\u200b") == "␛U+200B"
    assert token_name("") == "(no text)"
    assert [percent(one) for one in (1.0, 0.4321, 0.01, 0.00123, 0.00001)] == [
        "100.0 %",
        "43.2 %",
        "1.0 %",
        "0.12 %",
        "< 0.01 %",
    ]
