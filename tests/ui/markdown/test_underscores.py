"""Code models write names outside of code: underscores are shown as typed, on the screen and in a web page."""

from __future__ import annotations

import pytest

from exlchat.ui.render.markdown.blocks import Mark, TextSpan
from exlchat.ui.render.markdown.document import Document
from exlchat.ui.render.markdown.inline import parse_inline


@pytest.mark.parametrize("text", ["__all__ = [1]", "call __init__ of my_file_name", "_so_ and __so__", "a*b_c_d"])
def test_underscores_are_text(text: str) -> None:
    assert parse_inline(text) == (TextSpan(text),)


def test_asterisks_mark_what_has_underscores() -> None:
    assert parse_inline("**__init__**") == (TextSpan("__init__", Mark.STRONG),)
    assert parse_inline("**foo, **bar**, baz**") == (TextSpan("foo, bar, baz", Mark.STRONG),)


# What CommonMark says of them: https://spec.commonmark.org/0.31.2/#emphasis-and-strong-emphasis
@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("_foo bar_", (TextSpan("foo bar", Mark.EMPHASIS),)),
        ("__foo bar__", (TextSpan("foo bar", Mark.STRONG),)),
        ("_(bar)_.", (TextSpan("(bar)", Mark.EMPHASIS), TextSpan("."))),
        ("foo_bar_", (TextSpan("foo_bar_"),)),
        ("5_6_78", (TextSpan("5_6_78"),)),
        ("__foo, __bar__, baz__", (TextSpan("foo, bar, baz", Mark.STRONG),)),
    ],
)
def test_around_words_they_are_emphasis_for_whom_wants_that(text: str, spans: tuple[TextSpan, ...]) -> None:
    assert parse_inline(text, "emphasis") == spans


def test_the_choice_reaches_every_block() -> None:
    for text in ("_so_", "# _so_", "> - _so_", "1. _so_", "| _so_ |\n|--|\n| x |", "| x |\n|--|\n| _so_ |"):
        for underscores, shown, marks in (("text", "_so_", Mark.NONE), ("emphasis", "so", Mark.EMPHASIS)):
            document = Document(underscores)
            for character in text:
                document.append(character)
                document.advance()
            document.close()
            document.advance()
            assert repr(TextSpan(shown, marks)) in repr(document.closed), (text, underscores)
