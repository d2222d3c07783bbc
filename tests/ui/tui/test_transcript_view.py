"""Scrolling, sizes, looks and selection of a transcript."""

import random

import pytest
from rich.cells import cell_len
from textual.geometry import Offset
from textual.selection import Selection

from exlchat.ui.tui.widgets import transcript_messages
from exlchat.ui.tui.widgets.transcript import Role, TranscriptItem
from tests.ui.tui.transcript_app import TranscriptApp, mixed_messages, painted, screen_lines

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "notice")


@pytest.mark.parametrize("seed", range(3))
async def test_scrolling_through_messages_never_seen_moves_by_exactly_the_lines_asked(seed: int) -> None:
    chance = random.Random(seed)
    app = TranscriptApp()
    async with app.run_test(size=(50, 20)) as pilot:
        transcript = app.transcript
        transcript.set_messages(mixed_messages(200, seed))
        await painted(pilot)
        for _ in range(60):
            step = chance.randint(1, 19)
            before, top = screen_lines(transcript), transcript.scroll_offset.y
            transcript.scroll_relative(y=-step, animate=False)
            if top < step:
                break
            assert screen_lines(transcript)[step:] == before[:-step]
        for _ in range(20):
            step = chance.randint(1, 19)
            before = screen_lines(transcript)
            transcript.scroll_relative(y=step, animate=False)
            assert screen_lines(transcript)[:-step] == before[step:]


async def test_every_line_is_met_between_start_and_end() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(50, 20)) as pilot:
        items = mixed_messages(60)
        app.transcript.set_messages(items)
        await pilot.press("ctrl+home")
        await painted(pilot)
        met = screen_lines(app.transcript)
        while not app.transcript.following:
            app.transcript.action_scroll_down()
            met.append(screen_lines(app.transcript)[-1])
        assert [line for line in met if line.startswith("footer")] == [item.footer for item in items if item.footer]
        typed = [line for item in items for line in item.text.split("\n") if item.role == "user" and "|" not in line]
        short = [line.rstrip() for line in typed if line and len(line) < 40]
        assert [line for line in met if line in short] == short


async def test_the_scroll_bar_can_be_dragged_anywhere() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(50, 20)) as pilot:
        transcript = app.transcript
        transcript.set_messages(mixed_messages(500))
        await painted(pilot)
        for share in (0.5, 0.1, 0.9, 0.0, 0.31):
            transcript.scroll_to(y=round(transcript.max_scroll_y * share), animate=False)
            await pilot.pause()
            assert any(screen_lines(transcript))
            assert 0 <= transcript.scroll_y <= transcript.max_scroll_y


async def test_only_what_is_seen_is_laid_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript_messages, "CACHED_LINES", 300)
    laid_out: list[int] = []
    original = transcript_messages.MessageList.lay_out

    def counted(self: transcript_messages.MessageList, index: int) -> tuple[int, int]:
        laid_out.append(index)
        return original(self, index)

    monkeypatch.setattr(transcript_messages.MessageList, "lay_out", counted)
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        transcript = app.transcript
        transcript.set_messages(mixed_messages(20_000))
        await painted(pilot)
        assert len(laid_out) <= 24
        messages = transcript._messages
        for _ in range(60):
            transcript.action_page_up()
        kept = [messages[index] for index in set(laid_out) if messages[index].layout is not None]
        assert sum(message.height(messages.width) for message in kept) < 600


async def test_a_narrower_screen_keeps_the_text_at_its_top() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 20)) as pilot:
        text = " ".join(f"w{number}" for number in range(3000))
        app.transcript.set_messages([*mixed_messages(20), TranscriptItem("long", "assistant", text)])
        for _ in range(5):
            await pilot.press("pageup")
        first_word = screen_lines(app.transcript)[0].split()[0]
        assert first_word.startswith("w")
        for width in (40, 25, 100, 33):
            await pilot.resize_terminal(width, 20)
            await painted(pilot)
            assert first_word in screen_lines(app.transcript)[0].split()


async def test_at_the_end_a_new_size_stays_at_the_end() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 20)) as pilot:
        app.transcript.set_messages([*mixed_messages(50), TranscriptItem("last", "user", "the last line")])
        await painted(pilot)
        for size in ((40, 10), (120, 50), (20, 5)):
            await pilot.resize_terminal(*size)
            await painted(pilot)
            assert screen_lines(app.transcript)[-2:] == ["the last line", ""]


async def test_other_colours_on_another_theme_at_the_same_place() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 15)) as pilot:
        transcript = app.transcript
        transcript.set_messages(
            [*mixed_messages(40), TranscriptItem("k", "assistant", "```python\nif x:\n  pass\n```")]
        )
        await painted(pilot)
        lines, styles = screen_lines(transcript), [list(transcript.render_line(y)) for y in range(15)]
        app.theme = "paper"
        await painted(pilot)
        assert screen_lines(transcript) == lines
        backgrounds = {
            segment.style.bgcolor.name
            for y in range(15)
            for segment in transcript.render_line(y)
            if segment.style and segment.style.bgcolor
        }
        assert backgrounds == {"#ffffff", "#eeeeee"}
        assert [list(transcript.render_line(y)) for y in range(15)] != styles


async def test_another_code_style_colours_code_anew() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 15)) as pilot:
        app.transcript.set_messages([TranscriptItem("k", "assistant", "```python\nif x:\n  pass\n```")])
        await painted(pilot)
        before = list(app.transcript.render_line(1))
        app.transcript.code_style = "monokai"
        await painted(pilot)
        assert list(app.transcript.render_line(1)) != before


async def test_a_mouse_selection_copies_what_is_seen() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 15)) as pilot:
        app.transcript.set_messages(
            [
                TranscriptItem("u", "user", "the question"),
                TranscriptItem("a", "assistant", "an **important** answer\n\n- one\n- two"),
            ]
        )
        await painted(pilot)
        await pilot.mouse_down("#transcript", offset=(5, 2))
        await pilot.hover("#transcript", offset=(5, 5))
        await pilot.mouse_up("#transcript", offset=(5, 5))
        assert app.screen.get_selected_text() == "important answer\n\n• one\n• tw"
        selected = "".join(
            s.text for s in app.transcript.render_line(2) if s.style and s.style.bgcolor == selection_background(app)
        )
        assert selected.rstrip() == "important answer"


def selection_background(app: TranscriptApp) -> object:
    return app.screen.get_component_rich_style("screen--selection").bgcolor


async def test_a_selection_stays_on_its_text_while_more_arrives() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 8)) as pilot:
        app.transcript.set_messages(
            [
                TranscriptItem("u", "user", "question"),
                TranscriptItem("a", "assistant", "first line", status="streaming"),
            ]
        )
        await painted(pilot)
        await pilot.mouse_down("#transcript", offset=(2, 2))
        await pilot.hover("#transcript", offset=(6, 2))
        await pilot.mouse_up("#transcript", offset=(6, 2))
        assert app.screen.get_selected_text() == "first"
        app.transcript.append_text("a", "\nmore" * 30)
        await painted(pilot)
        assert app.screen.get_selected_text() == "first"


async def test_all_text_of_a_long_conversation_can_be_selected() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 8)) as pilot:
        app.transcript.set_messages(
            [TranscriptItem(str(number), "user", f"message {number}") for number in range(3000)]
        )
        await painted(pilot)
        selection = app.transcript.get_selection(Selection(None, None))
        assert selection is not None
        assert selection[0].split("\n")[::2] == [f"message {number}" for number in range(3000)]
        assert app.transcript.get_selection(Selection(Offset(3, 0), Offset(5, 0))) is not None


async def test_untrusted_text_steers_nothing() -> None:
    nasty = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u200b\r\nnext\x00 \x1b[31m[bold]markup[/bold]"
    app = TranscriptApp()
    async with app.run_test(size=(60, 30)) as pilot:
        app.transcript.set_messages([TranscriptItem(role, role, nasty, footer=nasty) for role in ROLES])
        app.transcript.append_text("assistant", "\n```py\n" + nasty)
        await painted(pilot)
        strips = [app.transcript.render_line(y) for y in range(30)]
        text = "".join(strip.text for strip in strips)
        assert not [c for c in text if ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u200b"]
        assert text.count("[bold]markup[/bold]") == 9
        for strip in strips:
            assert all(segment.control is None for segment in strip)


@pytest.mark.parametrize("size", [(20, 5), (8, 3), (3, 2), (1, 1), (300, 100)])
async def test_every_size_of_screen(size: tuple[int, int]) -> None:
    app = TranscriptApp()
    async with app.run_test(size=size) as pilot:
        app.transcript.set_messages(
            [*mixed_messages(40), TranscriptItem("s", "assistant", "> - 1. deep\n", status="streaming")]
        )
        for piece in ("```python\n", "def f(): pass\n", "```\n", "| a | b |\n|--|--|\n", "| 1 | 2 |\n", "日本語" * 30):
            app.transcript.append_text("s", piece)
            await painted(pilot)
        await pilot.press("pageup", "pageup", "ctrl+home", "pagedown", "ctrl+end")
        width = app.transcript.window.width
        assert all(cell_len(app.transcript.render_line(y).text) == width for y in range(app.transcript.window.height))


async def test_one_line_of_200_kilobytes() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(80, 24)) as pilot:
        line = " ".join(f"w{number}" for number in range(32_000))
        app.transcript.set_messages([TranscriptItem("u", "user", line), TranscriptItem("a", "assistant", line)])
        await painted(pilot)
        assert screen_lines(app.transcript)[-2].endswith("w31999")
        await pilot.press("ctrl+home")
        assert screen_lines(app.transcript)[0].startswith("w0 w1 ")


async def test_an_empty_transcript_and_empty_messages() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(40, 6)) as pilot:
        await pilot.press("pageup", "pagedown", "ctrl+home", "ctrl+end")
        assert set(screen_lines(app.transcript)) == {""}
        app.transcript.set_messages([TranscriptItem("a", "assistant", ""), TranscriptItem("b", "user", "")])
        await painted(pilot)
        assert [app.transcript.render_line(y).text[0] for y in range(4)] == ["│", " ", "▌", " "]


async def test_padding_around_the_window_hides_nothing() -> None:
    class Padded(TranscriptApp):
        CSS = "Transcript { padding: 1 2; }"

    app = Padded()
    async with app.run_test(size=(50, 12)) as pilot:
        app.transcript.set_messages([*mixed_messages(20), TranscriptItem("last", "assistant", "", status="streaming")])
        await painted(pilot)
        app.transcript.append_text("last", "one ")
        await painted(pilot)
        app.transcript.append_text("last", "two")
        await painted(pilot)
        shown = [line.text.rstrip() for line in app.screen._compositor.render_strips(app.size)]
        assert shown[9:12] == ["  │ one two", "", ""]
        await pilot.press("pageup")
        app.transcript.append_text("last", "\nthree")
        await painted(pilot)
        await pilot.click("#transcript", offset=(40, 10))
        assert app.transcript.following
