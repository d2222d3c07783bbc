"""Code keeps its text, whatever a lexer makes of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.style import Style as PygmentsStyle
from pygments.token import Keyword

from exlchat.ui.render.markdown.highlight import LINE_LIMIT, highlight_line, highlight_lines, lexer_for, token_style

CODE = st.lists(st.text(alphabet="def x()'\"#{}\t 1é<&;/*\\", max_size=20), max_size=8)


@given(CODE, st.sampled_from(["python", "c++", "html", "json", "pycon", "no-such-language", "", "{.rust}", "ps1con"]))
def test_all_characters_stay(lines: list[str], info: str) -> None:
    for result in (
        highlight_lines(lines, info, "default"),
        [highlight_line(line, info, "default") for line in lines],
    ):
        assert ["".join(text for text, _ in line) for line in result] == lines


def test_a_kind_of_token_that_no_style_lists_is_coloured_as_its_parent() -> None:
    invented = Keyword.OfThisLexerOnly
    assert token_style("default", invented) == token_style("default", Keyword)
    text = "(venv) PS C:\\> dir"
    assert "".join(piece for piece, _ in highlight_line(text, "ps1con", "default")) == text


def test_keywords_are_coloured_by_the_style() -> None:
    class Loud(PygmentsStyle):
        styles = {Keyword: "bold #ff0000"}  # noqa: RUF012 - Pygments' form

    text, style = highlight_line("def f(): pass", "python", Loud)[0]
    assert text == "def"
    assert style.bold
    assert style.color is not None
    assert style.color.triplet is not None
    assert style.color.triplet.hex == "#ff0000"


@pytest.mark.parametrize("info", ["python", "Python title=x", "{.python}", "python,linenos", "py"])
def test_info_strings_name_their_language(info: str) -> None:
    lexer = lexer_for(info)
    assert lexer is not None
    assert lexer.name == "Python"


def test_an_unknown_language_and_a_huge_line_stay_plain() -> None:
    assert len(highlight_line("def f(): pass", "klingon", "default")) == 1
    assert len(highlight_line("x = " + "1 + " * LINE_LIMIT, "python", "default")) == 1
