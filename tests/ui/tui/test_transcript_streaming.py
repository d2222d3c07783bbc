"""Text that arrives: painted seldom, followed at the end, never moving what the user reads further up."""

import asyncio
import time

import pytest
from textual.app import ComposeResult

from exlchat.ui.tui.widgets.transcript import Transcript, TranscriptItem
from exlchat.ui.tui.widgets.transcript_messages import MessageList
from tests.ui.tui.transcript_app import TranscriptApp, mixed_messages, painted, screen_lines

ANSWER = TranscriptItem("a", "assistant", "", status="streaming")


async def test_streamed_text_appears_and_is_rendered_as_markdown() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.set_messages([TranscriptItem("u", "user", "**as typed**"), ANSWER])
        for piece in ("So ", "**bo", "ld** and ", "`co", "de`."):
            app.transcript.append_text("a", piece)
        await painted(pilot)
        assert screen_lines(app.transcript)[:4] == ["**as typed**", "", "So bold and code.", ""]
        app.transcript.close_message("a", footer="stopped", status="partial")
        await painted(pilot)
        assert screen_lines(app.transcript)[2:5] == ["So bold and code.", "stopped", ""]


async def test_the_final_text_takes_the_place_of_what_was_streamed() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.append_message(ANSWER)
        app.transcript.append_text("a", "half a wo")
        await painted(pilot)
        app.transcript.close_message("a", "another text", footer="")
        await painted(pilot)
        assert screen_lines(app.transcript)[0] == "another text"


async def test_text_that_came_before_the_widget_was_shown_is_painted() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        transcript = Transcript()
        transcript.append_message(ANSWER)
        transcript.append_text("a", "early words")
        await app.mount(transcript)
        await painted(pilot)
        assert screen_lines(transcript)[0] == "early words"


async def test_paints_are_at_most_thirty_a_second() -> None:
    class Counted(Transcript):
        paints = 0

        def _paint(self) -> None:
            self.paints += 1
            super()._paint()

    class CountedApp(TranscriptApp):
        def compose(self) -> ComposeResult:
            yield Counted(id="transcript")

    app = CountedApp()
    async with app.run_test(size=(60, 12)) as pilot:
        transcript = app.query_one(Counted)
        transcript.append_message(ANSWER)
        begin = asyncio.get_running_loop().time()
        for number in range(200):
            transcript.append_text("a", f"word{number} ")
            await asyncio.sleep(0.002)
        seconds = asyncio.get_running_loop().time() - begin
        await painted(pilot)
        assert 1 < transcript.paints <= 30 * (seconds + 0.1) + 2
        assert "word199" in " ".join(screen_lines(transcript))


async def test_costly_layouts_leave_most_of_the_time_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begins: list[float] = []
    original = MessageList.lay_out

    def slow(self: MessageList, index: int) -> tuple[int, int]:
        begins.append(time.monotonic())
        time.sleep(0.05)
        return original(self, index)

    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.append_message(ANSWER)
        await painted(pilot)
        monkeypatch.setattr(MessageList, "lay_out", slow)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            app.transcript.append_text("a", "word ")
            await asyncio.sleep(0.01)
        assert 2 <= len(begins) <= 6


async def test_the_end_is_followed_until_the_user_scrolls_up() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        transcript = app.transcript
        transcript.set_messages([*mixed_messages(30), ANSWER])
        for number in range(40):
            transcript.append_text("a", f"line {number}\n")
        await painted(pilot)
        assert screen_lines(transcript)[-2:] == ["line 39", ""]

        await pilot.press("pageup")
        before = screen_lines(transcript)
        for number in range(40, 60):
            transcript.append_text("a", f"line {number}\n")
            await pilot.pause(0.01)
        await painted(pilot)
        assert not transcript.following
        assert screen_lines(transcript)[:-1] == before[:-1]
        assert screen_lines(transcript)[-1].endswith("↓ 20 new lines below")
        assert app.reported[-1] == 20

        await pilot.press("ctrl+end")
        await painted(pilot)
        assert screen_lines(transcript)[-2:] == ["line 59", ""]
        assert app.reported[-1] == 0
        transcript.append_text("a", "line 60\n")
        await painted(pilot)
        assert screen_lines(transcript)[-2:] == ["line 60", ""]


async def test_scrolling_back_to_the_end_follows_again() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.set_messages(mixed_messages(30))
        await pilot.press("pageup", "pageup")
        assert not app.transcript.following
        await pilot.press("pagedown", "pagedown", "pagedown")
        assert app.transcript.following


async def test_a_click_on_the_badge_goes_to_the_end() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        app.transcript.set_messages(mixed_messages(30))
        await pilot.press("pageup")
        app.transcript.append_message(TranscriptItem("new", "notice", "something new"))
        await painted(pilot)
        assert screen_lines(app.transcript)[-1].endswith("↓ 2 new lines below")
        await pilot.click("#transcript", offset=(50, 11))
        await painted(pilot)
        assert screen_lines(app.transcript)[-2:] == ["something new", ""]


async def test_a_message_that_grows_above_the_screen_does_not_move_it() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        transcript = app.transcript
        transcript.set_messages([ANSWER, *mixed_messages(30)])
        await painted(pilot)
        await pilot.press("pageup")
        before = screen_lines(transcript)
        transcript.append_text("a", "more\n" * 50)
        await painted(pilot)
        assert screen_lines(transcript) == before


async def test_messages_can_be_removed_and_cleared() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)) as pilot:
        items = [TranscriptItem(str(number), "user", f"message {number}") for number in range(30)]
        app.transcript.set_messages(items)
        await painted(pilot)
        await pilot.press("pageup")
        await painted(pilot)
        before = screen_lines(app.transcript)
        app.transcript.remove_message("0")
        await painted(pilot)
        assert screen_lines(app.transcript) == before
        app.transcript.remove_message("29")
        app.transcript.scroll_to_end()
        await painted(pilot)
        assert screen_lines(app.transcript)[-2:] == ["message 28", ""]
        app.transcript.set_messages(())
        await painted(pilot)
        assert set(screen_lines(app.transcript)) == {""}


async def test_wrong_keys_are_errors() -> None:
    app = TranscriptApp()
    async with app.run_test(size=(60, 12)):
        app.transcript.append_message(ANSWER)
        with pytest.raises(ValueError, match="already has a message 'a'"):
            app.transcript.append_message(ANSWER)
        with pytest.raises(ValueError, match="same key"):
            app.transcript.set_messages([ANSWER, ANSWER])
        with pytest.raises(KeyError):
            app.transcript.append_text("nobody", "text")
