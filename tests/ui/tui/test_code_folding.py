"""Long code of a message folded to its first lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.ui.tui.widgets.transcript import TranscriptItem
from tests.ui.app_harness import app, idle, say, shown, told
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.transcript_app import TranscriptApp, painted, screen_lines


def code(name: str, lines: int) -> str:
    return "```python\n" + "".join(f"{name}{number} = {number}\n" for number in range(lines)) + "```\n"


NESTED = code("c", 20).replace("\n", "\n   ")
TEXT = f"Before.\n\n{code('a', 40)}\nBetween.\n\n{code('b', 12)}\n1. item\n   {NESTED}\nEnd."


async def test_the_key_folds_long_code_and_unfolds_it(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(TEXT, "no code"))
    async with chat.run_test(size=(100, 60)) as pilot:
        await say(pilot, "code?")
        await idle(pilot)
        await pilot.press("ctrl+up", "z")
        await pilot.pause(0.1)
        lines = screen_lines(chat.chat_screen.transcript)
        assert "a4 = 4" in lines
        assert "a5 = 5" not in lines
        assert "… 35 more lines · z unfolds" in lines
        assert "b11 = 11" in lines
        assert "   … 15 more lines · z unfolds" in lines
        assert "End." in lines
        await pilot.press("c")
        assert chat.clipboard.strip() == TEXT.strip()
        await pilot.press("z")
        assert "more lines" not in shown(chat)
        assert "a39 = 39" in shown(chat)
        await pilot.press("escape")
        await say(pilot, "none?")
        await idle(pilot)
        await pilot.press("ctrl+up", "end", "z")
        await pilot.pause()
        assert "no code of this message is long enough" in told(chat)


async def test_a_click_unfolds_one_block_in_its_place() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 40)) as pilot:
        transcript = app.transcript
        transcript.set_messages([TranscriptItem("m", "assistant", TEXT), TranscriptItem("u", "user", "after")])
        await painted(pilot)
        total = transcript._messages.heights.total
        assert transcript.fold_code("m")
        await painted(pilot)
        assert transcript._messages.heights.total == total - 34 - 14
        before = screen_lines(transcript)
        line = before.index("… 35 more lines · z unfolds")
        await pilot.click("#transcript", offset=(6, line))
        await painted(pilot)
        after = screen_lines(transcript)
        assert after[:line] == before[:line]
        assert after[line] == "a5 = 5"
        assert transcript._messages.heights.total == total - 14
        transcript.scroll_to_end()
        assert any("15 more lines" in text for text in screen_lines(transcript))


async def test_every_line_is_met_while_code_is_folded_at_any_width() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        items = [TranscriptItem(f"m{number}", "assistant", f"{TEXT}\n\nlast {number}") for number in range(4)]
        app.transcript.set_messages(items)
        await painted(pilot)
        for item in items:
            app.transcript.fold_code(item.key)
        await pilot.resize_terminal(40, 12)
        await pilot.press("ctrl+home")
        await painted(pilot)
        met = screen_lines(app.transcript)
        while not app.transcript.following:
            app.transcript.action_scroll_down()
            met.append(screen_lines(app.transcript)[-1])
        assert met.count("… 35 more lines · z unfolds") == 4
        assert [line for line in met if line.startswith("last")] == [f"last {number}" for number in range(4)]


@pytest.mark.parametrize("folded_at", [0, 20, 60])
async def test_code_that_is_being_written_stays_folded_and_counts_on(folded_at: int) -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 30)) as pilot:
        app.transcript.append_message(TranscriptItem("m", "assistant", "", status="streaming"))
        pieces = [*"Code:\n\n```python\n", *(f"x{number} = {number}\n" for number in range(30)), *"```\n\nThat is all."]
        for number, piece in enumerate(pieces):
            app.transcript.append_text("m", piece)
            if number == folded_at:
                app.transcript._messages[0].fold_code(True)
        await painted(pilot)
        app.transcript.close_message("m")
        await painted(pilot)
        lines = screen_lines(app.transcript)
        assert "… 25 more lines · z unfolds" in lines
        assert "That is all." in lines
        assert app.transcript._messages.heights.total == lines.index("That is all.") + 2


async def test_what_is_found_in_folded_code_is_unfolded() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.set_messages([TranscriptItem("m", "assistant", TEXT)])
        await painted(pilot)
        app.transcript.fold_code("m")
        app.transcript.look_for("a30")
        app.transcript.go_to_found(1)
        await painted(pilot)
        assert "a30 = 30" in screen_lines(app.transcript)


async def test_the_key_that_is_named_is_the_one_that_holds() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 20)) as pilot:
        app.transcript.set_messages([TranscriptItem("m", "assistant", code("a", 30))])
        await painted(pilot)
        app.transcript.fold_code("m")
        app.transcript.fold_key = "x"
        await painted(pilot)
        assert "… 25 more lines · x unfolds" in screen_lines(app.transcript)
