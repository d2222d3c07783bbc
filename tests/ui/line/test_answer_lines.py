"""An answer as lines: whatever the pieces, the same lines come out, each of them once."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat import paths
from exlchat.config.themes import load_themes
from exlchat.llm.events import TextDelta
from exlchat.ui.line.answer import AnswerLines
from exlchat.ui.line.formatter import Formatter, Fragments, text_of
from exlchat.ui.line.plain_formatter import PlainFormatter
from exlchat.ui.line.styled_formatter import StyledFormatter
from exlchat.ui.line.styles import fragment_style, rich_style, rules_of

THEMES = load_themes(paths.shipped_themes(), paths.shipped_themes() / "none")[0]
LINES = st.sampled_from(
    [
        "# Head",
        "text with **bold** and `code`",
        "",
        "- item",
        "1. one",
        "```python",
        "```",
        "x = 1",
        "> quote",
        "| a | b |",
        "$$",
        "+ $x_i^2$ and [a](https://host.org)",
    ]
)
TEXTS = st.lists(LINES, max_size=14).map("\n".join)


def styled() -> Formatter:
    return StyledFormatter(THEMES["exlchat-dark"], lambda: 60, lambda: "text")


def written(formatter: Formatter, pieces: Sequence[str], room: int) -> list[Fragments]:
    lines = AnswerLines(formatter, "guide")
    out: list[Fragments] = []
    for piece in pieces:
        lines.add(TextDelta(piece))
        out += lines.take(room)[0]
    return out + lines.close()


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    stream = io.StringIO(text)
    pieces = [piece for size in sizes if (piece := stream.read(size))]
    return [*pieces, stream.read()]


@given(text=TEXTS, sizes=st.lists(st.integers(1, 12), max_size=40))
def test_pieces_do_not_matter(text: str, sizes: list[int]) -> None:
    for formatter in (styled(), PlainFormatter()):
        assert text_of(written(formatter, cut(text, sizes), 1000)) == text_of(written(formatter, [text], 1000))


@given(text=TEXTS, sizes=st.lists(st.integers(1, 12), max_size=40))
def test_room_changes_only_when_lines_are_written(text: str, sizes: list[int]) -> None:
    formatter = styled()
    assert text_of(written(formatter, cut(text, sizes), 2)) == text_of(written(formatter, [text], 1000))


def test_plain_text_is_what_the_model_wrote() -> None:
    text = "# Head\n\n- **a**\n\n```py\nx\n```"
    assert text_of(written(PlainFormatter(), cut(text, [3] * 9), 0)) == f"guide says:\n{text}\n"


def test_formulas_are_readable_in_styles_and_as_written_in_plain_words() -> None:
    text = "So $x_i^2 \\le y$."
    assert text_of(written(styled(), [text], 1000)) == "So xᵢ² ≤ y.\n"
    assert text_of(written(PlainFormatter(), [text], 0)) == f"guide says:\n{text}\n"


def test_long_code_leaves_the_open_end_line_by_line() -> None:
    formatter = styled()
    lines = AnswerLines(formatter, "guide")
    lines.add(TextDelta("```python\n" + "".join(f"x = {number}\n" for number in range(50))))
    finished, tail = lines.take(10)
    assert len(tail) <= 10
    assert text_of(finished).startswith("python\nx = 0\n")
    assert len(finished) >= 40
    rest = lines.close()
    assert text_of(finished + rest).count("x = ") == 50


def test_thoughts_and_answer_each_have_their_mark() -> None:
    lines = AnswerLines(styled(), "guide")
    lines.add(TextDelta("I think.\n\n- so", channel="thought"))
    lines.add(TextDelta("I say."))
    assert text_of(lines.close()) == "┊ guide thinks:\n┊ I think.\n┊\n┊ • so\n\nI say.\n"


@pytest.mark.parametrize(
    "rule", ["bold #aabbcc", "underline bg:#010203 #aabbcc", "italic ansired", "", "dim ansidefault"]
)
def test_rules_of_themes_survive_the_renderer(rule: str) -> None:
    assert set(fragment_style(rich_style(rule)).split()) == set(rule.split())


@pytest.mark.parametrize("name", list(THEMES))
def test_every_theme_gives_rules_that_prompt_toolkit_takes(name: str) -> None:
    from prompt_toolkit.styles import Style

    style = Style.from_dict(rules_of(THEMES[name]))
    for part in ("quiet", "notice", "warning", "prompt", "bottom-toolbar"):
        assert style.get_attrs_for_style_str(f"class:{part}").color
    assert style.get_attrs_for_style_str("").color == ""  # the terminal's own
