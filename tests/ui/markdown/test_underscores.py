"""Code models write names outside of code: underscores are shown as typed, on the screen and in a web page."""

from __future__ import annotations

import pytest

from exlchat.ui.render.markdown.blocks import Mark, TextSpan
from exlchat.ui.render.markdown.inline import parse_inline


@pytest.mark.parametrize("text", ["__all__ = [1]", "call __init__ of my_file_name", "_so_ and __so__", "a*b_c_d"])
def test_underscores_are_text(text: str) -> None:
    assert parse_inline(text) == (TextSpan(text),)


def test_asterisks_mark_what_has_underscores() -> None:
    assert parse_inline("**__init__**") == (TextSpan("__init__", Mark.STRONG),)
