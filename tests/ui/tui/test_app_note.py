"""The author's note in the app: typed, shown, moved, taken away, taken back; it comes back with the conversation."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.app.chat.own_settings import OwnSettings
from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.chat.prompt.note import LONGEST, Note
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, chat_app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

ADA = FrozenPersona("Ada Lovelace", "Ada", "Bo", 0, system="You are Ada.")


def screen(chat: ChatApp) -> str:
    return " ".join(shown(chat).replace("│", " ").split())


async def test_it_is_in_every_prompt_until_it_is_taken_away(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.", "Four.")
    chat = app(tmp_path, engine, persona=ADA)
    async with chat.run_test(size=(110, 34)) as pilot:
        await say(pilot, "/note {{char}} is tired of {{user}}.")
        assert "The author's note stands 4 messages before the end now, in every prompt" in told(chat)
        await say(pilot, "a?")
        await idle(pilot)
        assert "Ada is tired of Bo.\n\na?" in engine.prompts[-1]
        await say(pilot, "/note depth 1")
        assert "The author's note stands 1 message before the end now" in told(chat)
        await say(pilot, "b?")
        await idle(pilot)
        assert "Ada is tired of Bo.\n\nb?" in engine.prompts[-1]
        assert engine.prompts[-1].count("tired") == 1
        await say(pilot, "/note depth 0")
        await say(pilot, "/note It rains.")
        await say(pilot, "c?")
        await idle(pilot)
        # Another text stays where the one before it stood.
        assert "c?\n\nIt rains." in engine.prompts[-1]
        await say(pilot, "/note -")
        assert "The author's note is taken away" in told(chat)
        await say(pilot, "d?")
        await idle(pilot)
        assert "rain" not in engine.prompts[-1]


async def test_it_is_told_by_the_command_the_panel_the_status_line_and_the_prompt(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(130, 40)) as pilot:
        await say(pilot, "/note")
        assert "There is no author's note" in told(chat)
        await say(pilot, "a?")
        await idle(pilot)
        await say(pilot, "/note It rains in {{char}}.")
        await say(pilot, "/note")
        # As it was typed; the prompt has the names.
        line = "The author's note stands 4 messages before the end: It rains in {{char}}."
        await until(pilot, lambda: line in screen(chat))
        assert "author's note" in chat.chat_screen.status.who.own
        await pilot.press("f6")
        await pilot.pause()
        assert "author's note 4 back: It rains in {{char}}. conversation" in screen(chat)
        await pilot.press("escape")
        await say(pilot, "/prompt")
        await until(pilot, lambda: type(chat.screen).__name__ == "PromptScreen")
        await until(pilot, lambda: "It rains in Assistant." in screen(chat))


async def test_an_undo_takes_it_back_and_every_branch_has_its_own(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.", "Three.", "Four.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 34)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await say(pilot, "b?")
        await idle(pilot)
        await say(pilot, "/note It rains.")
        await say(pilot, "/undo")
        assert chat.session.spoken.own.note is None
        await say(pilot, "/redo")
        assert chat.session.spoken.own.note == Note("It rains.")
        await say(pilot, "/retry")
        await idle(pilot)
        assert engine.prompts[-1].count("It rains.") == 1
        await say(pilot, "/note -")
        # What holds now goes on in an edit, though the message that is edited stood where there was a note.
        await say(pilot, "/note Snow.")
        await say(pilot, "c?")
        await idle(pilot)
        await say(pilot, "/note -")
        await say(pilot, "/edit 2")
        await say(pilot, "d?")
        await idle(pilot)
        assert "Snow." not in engine.prompts[-1]
        assert chat.session.spoken.own.note is None
        # The branch before has its own.
        await say(pilot, "/alternative 1 2")
        await pilot.pause()
        assert chat.session.branch[-2].text == "c?"


async def test_it_is_there_after_a_restart_and_in_no_other_conversation(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(110, 34)) as pilot:
        await say(pilot, "/note It rains.")
        await say(pilot, "/note depth 2")
        await say(pilot, "a?")
        await idle(pilot)
        ident = chat_app(pilot).session.conversation_id
        assert ident is not None
        await pilot.press("ctrl+n")
        assert chat.session.spoken.own.note is None
    engine = ScriptedEngine("Two.")
    again = app(tmp_path, engine)
    async with again.run_test(size=(110, 34)) as pilot:
        await pilot.pause()
        again.chat_screen.open_conversation(ident)
        assert again.session.spoken.own.note == Note("It rains.", 2)
        await say(pilot, "b?")
        await idle(pilot)
        assert "a?\n\nIt rains." in engine.prompts[-1]


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("/note depth 2", "there is no author's note; /note TEXT puts one into every prompt"),
        ("/note -", "there is no author's note; /note TEXT puts one into every prompt"),
        ("/note depth", "/note depth N says how many messages stand behind the note, 0 to 10000"),
        (f"/note {'x' * (LONGEST + 1)}", "an author's note has at most 20,000 characters, and this has 20,001"),
    ],
)
async def test_what_cannot_be_is_one_line(tmp_path: Path, typed: str, line: str) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(110, 34)) as pilot:
        await say(pilot, typed)
        assert line in told(chat)
        assert chat.session.spoken.own == OwnSettings()


@pytest.mark.parametrize("depth", ["-1", "99999", "999999999"])
async def test_a_depth_that_cannot_be_leaves_the_note_as_it_is(tmp_path: Path, depth: str) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(110, 34)) as pilot:
        await say(pilot, "/note It rains.")
        await say(pilot, f"/note depth {depth}")
        assert "the depth of an author's note is 0 to 10,000 messages before the end" in told(chat)
        assert chat.session.spoken.own.note == Note("It rains.")


async def test_a_text_that_begins_like_a_depth_is_a_text_and_control_characters_do_not_reach_the_screen(
    tmp_path: Path,
) -> None:
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(110, 34)) as pilot:
        await say(pilot, "/note depth of the sea")
        assert chat.session.spoken.own.note == Note("depth of the sea")
        chat.session.take_note(Note("a\x1b[31mred\x1b]0;title\x07"))
        await say(pilot, "/note")
        await pilot.pause()
        assert "\x1b" not in shown(chat)
        await pilot.press("f6")
        await pilot.pause()
        assert "\x1b" not in shown(chat)


def test_it_comes_out_of_the_file_as_it_went_in() -> None:
    own = OwnSettings({"top_k": 3}, {"top_k": "preset x"}, Note("It rains.", 2, "Bo"))
    assert OwnSettings.from_json(own.as_json()) == own
    assert OwnSettings.from_json({"values": {}, "note": {"text": "x", "depth": -3}}) == OwnSettings()
