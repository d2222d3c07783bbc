"""The pages about the chat say what the program does."""

from __future__ import annotations

from pathlib import Path

from exlchat.ui.themes import PALETTE_NEEDED, USES
from exlchat.ui.tui.screens.help import help_rows

DOCS = Path(__file__).parents[2] / "docs"


def test_the_chat_page_has_every_key_and_command_of_the_help_screen() -> None:
    page = (DOCS / "chat.md").read_text(encoding="utf-8")
    rows = [row for row in help_rows() if row[1]]
    assert len(rows) > 30
    for left, right in rows:
        keys = f"`{left}`" if left.startswith("/") else ", ".join(f"`{key}`" for key in left.split(", "))
        assert f"| {keys} | {right} |" in page


def test_the_theme_page_names_every_entry() -> None:
    page = (DOCS / "themes.md").read_text(encoding="utf-8")
    for section, keys in {"colors": PALETTE_NEEDED, **USES}.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `[{section}]`"))
        for key in keys:
            assert f"`{key}`" in row
