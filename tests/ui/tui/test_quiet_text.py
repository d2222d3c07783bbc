"""Quiet text is told from other text also in themes without a colour for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.segment import Segment
from textual.widgets import OptionList

from exlchat.ui.tui.screens.pick import PickScreen
from tests.ui.app_harness import app, idle, say


def segment_with(strips: list[list[Segment]], text: str) -> Segment:
    return next(segment for strip in strips for segment in strip if text in segment.text)


@pytest.mark.parametrize(("theme", "is_dim"), [("ansi", True), ("mono", True), ("exlchat-dark", False)])
async def test_quiet_text_within_other_text_is_dim_or_has_its_colour(tmp_path: Path, theme: str, is_dim: bool) -> None:
    chat = app(tmp_path, theme=theme)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "1?")
        await idle(pilot)
        status = [list(chat.chat_screen.status.render_line(0))]
        await say(pilot, "/preset")
        await pilot.pause()
        assert isinstance(chat.screen, PickScreen)
        rows = chat.screen.query_one(OptionList)
        strips = [list(rows.render_line(y)) for y in range(1, rows.size.height)]
        loud, *_, quiet = (segment for segment in strips[0] if segment.text.strip())
        for segment in (quiet, segment_with(status, "/")):
            assert segment.style is not None
            assert bool(segment.style.dim) is is_dim
            if not is_dim:
                assert segment.style.color is not None
                assert segment.style.color.name == chat.theme_variables["quiet"]
        assert loud.style is not None
        assert not loud.style.dim
