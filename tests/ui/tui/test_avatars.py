"""Pictures of characters as half blocks, in the list of personas."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image
from textual.color import Color

from exlchat import paths
from exlchat.ui.render.avatar import COLUMNS, ROWS, AvatarError, avatar
from tests.ui.app_harness import app, idle, say

BLACK = Color(0, 0, 0)


def save(file: Path, size: tuple[int, int], top: str, bottom: str) -> Path:
    picture = Image.new("RGBA", size, top)
    picture.paste(Image.new("RGBA", (size[0], size[1] // 2), bottom), (0, size[1] // 2))
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file)
    return file


@pytest.mark.parametrize("size", [(400, 400), (100, 300), (300, 100), (1, 1), (3, 2)])
def test_two_pixels_stand_in_a_cell(tmp_path: Path, size: tuple[int, int]) -> None:
    shown = avatar(save(tmp_path / "a.png", size, "#ff0000", "#0000ff"), BLACK)
    lines = shown.plain.split("\n")
    assert len(lines) <= ROWS
    assert {len(line) for line in lines} == {len(lines[0])}
    assert len(lines[0]) <= COLUMNS
    assert set("".join(lines)) == {"▀"}


def test_colours_are_those_of_the_picture_over_the_background(tmp_path: Path) -> None:
    styles = [span.style for span in avatar(save(tmp_path / "a.png", (20, 20), "#ff0000", "#0000ff"), BLACK).spans]
    assert styles[0].foreground == styles[0].background == Color(255, 0, 0)
    assert styles[-1].foreground == Color(0, 0, 255)
    clear = avatar(save(tmp_path / "b.png", (20, 20), "#ff000000", "#0000ff"), Color(1, 2, 3)).spans[0].style
    assert clear.foreground == Color(1, 2, 3)


def test_what_is_no_picture_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")
    with pytest.raises(AvatarError, match="its picture cannot be read"):
        avatar(tmp_path / "a.png", BLACK)
    whole = save(tmp_path / "b.png", (400, 400), "#ff0000", "#0000ff")
    whole.write_bytes(whole.read_bytes()[:200])
    with pytest.raises(AvatarError, match="its picture cannot be read"):
        avatar(whole, BLACK)
    # Forty million pixels and a row, of which the file says nothing but that.
    Image.new("1", (8000, 5001)).save(tmp_path / "c.png")
    with pytest.raises(AvatarError, match="8000 x 5001 pixels, too many"):
        avatar(tmp_path / "c.png", BLACK)


@pytest.mark.parametrize(("terminal", "seen"), [("xterm-256color", True), ("vt100", False)])
async def test_the_list_of_personas_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: str, seen: bool
) -> None:
    monkeypatch.setenv("TERM", terminal)
    monkeypatch.delenv("COLORTERM", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    folder = paths.folders().personas
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zoe.toml").write_text('name = "Zoe"\nsystem = "You are Zoe."\n')
    save(folder / "zoe.png", (200, 200), "#ff0000", "#0000ff")
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/persona")
        await idle(pilot)
        await pilot.press(*"zoe")
        await idle(pilot)
        more = str(chat.screen.query_one("#pick-more").render())
        assert ("▀" in more) == seen
        assert "You are Zoe." in more
