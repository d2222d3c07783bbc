"""Two programs on one database: what is shown is what is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.app.chat.elsewhere import Elsewhere
from exlchat.chat.store.conversations import ConversationStore
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

SIZE = (110, 30)


def opened(chat: ChatApp) -> str:
    ident = chat.session.conversation_id
    assert ident is not None
    return ident


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.app.chat.elsewhere.LOOK_SECONDS", 0.05)


async def test_a_message_of_another_window_appears_and_is_in_the_next_prompt(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        other = ConversationStore(chat.session.store.path)
        other.add_message(opened(chat), "user", "from the other window")
        await until(pilot, lambda: "from the other window" in shown(chat))
        assert "1 message came from another program" in told(chat)
        await say(pilot, "and here?")
        await idle(pilot)
        other.close()
    assert "from the other window" in engine.prompts[-1]


async def test_the_list_hears_of_titles_and_new_conversations(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        other = ConversationStore(chat.session.store.path)
        other.rename(opened(chat), "Given elsewhere")
        await until(pilot, lambda: "Given elsewhere" in shown(chat))
        new = other.create_conversation()
        other.add_message(new.id, "user", "a new one elsewhere")
        await until(pilot, lambda: "a new one elsewhere" in shown(chat))
        other.close()


async def test_what_is_sent_onto_a_branch_that_moved_comes_back_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine("one", "two")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        # The look before sending is the only one.
        look = Elsewhere.look
        monkeypatch.setattr(Elsewhere, "follow", lambda _: None)
        monkeypatch.setattr(Elsewhere, "look", lambda _: None)
        other = ConversationStore(chat.session.store.path)
        other.add_message(opened(chat), "user", "meanwhile")
        monkeypatch.setattr(Elsewhere, "look", look)
        chat.chat_screen.send("second?")
        await until(pilot, lambda: chat.chat_screen.composer.text == "second?")
        assert "meanwhile" in shown(chat)
        assert "Not sent yet" in told(chat)
        assert len(engine.prompts) == 1
        await pilot.press("enter")
        await idle(pilot)
        other.close()
    assert "meanwhile" in engine.prompts[-1]
    assert "second?" in engine.prompts[-1]


async def test_a_conversation_deleted_elsewhere_is_said_and_what_is_typed_begins_a_new_one(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        old = opened(chat)
        other = ConversationStore(chat.session.store.path)
        other.delete(old)
        await until(pilot, lambda: "was deleted by another program" in told(chat))
        await say(pilot, "second?")
        await idle(pilot)
        other.close()
        assert opened(chat) != old
        assert [one.text for one in chat.session.branch] == ["second?", "two"]
    assert "first?" not in engine.prompts[-1]


async def test_both_edits_of_a_message_are_kept(tmp_path: Path) -> None:
    engine = ScriptedEngine("one", "two", "three")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        question = chat.session.branch[0]
        await pilot.press("ctrl+up", "up", "e")
        other = ConversationStore(chat.session.store.path)
        other.edit(question.id, "first, changed elsewhere?")
        await until(pilot, lambda: "first, changed elsewhere?" in shown(chat))
        assert "went to another branch" in told(chat)
        chat.chat_screen.composer.set_text("first, changed here?")
        await pilot.press("enter")
        await idle(pilot)
        assert chat.chat_screen.composer.text == ""
        assert [one.text for one in chat.session.branch] == ["first, changed here?", "two"]
        kept = {one.text for one in chat.session.store.alternatives(question.id)}
        other.close()
    assert kept == {"first?", "first, changed elsewhere?", "first, changed here?"}
    assert "first, changed here?" in engine.prompts[-1]


@pytest.mark.parametrize("leaves", ["escape", "ctrl+n"])
async def test_a_change_of_a_message_that_was_deleted_elsewhere_can_be_brought_back(
    tmp_path: Path, leaves: str
) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        await say(pilot, "second?")
        await idle(pilot)
        question = chat.session.branch[2]
        await pilot.press("ctrl+up", "up", "e")
        other = ConversationStore(chat.session.store.path)
        other.delete_from(question.id)
        await until(pilot, lambda: len(chat.session.branch) == 2)
        chat.chat_screen.composer.set_text("second, changed here?")
        await pilot.press("enter")
        await until(pilot, lambda: "has been deleted" in told(chat))
        assert chat.chat_screen.composer.text == "second, changed here?"
        await pilot.press(leaves)
        await until(pilot, lambda: not chat.chat_screen.editing)
        assert chat.chat_screen.composer.text == ""
        other.close()
    assert "second, changed here?" in chat.services.typed.texts()


async def test_a_draft_goes_from_window_to_window_until_it_is_sent(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        other = ConversationStore(chat.session.store.path)
        other.keep_draft(opened(chat), "typed elsewhere")
        await until(pilot, lambda: chat.chat_screen.composer.text == "typed elsewhere")
        # There it is sent, and here it must not be sent again.
        other.keep_draft(opened(chat), "")
        await until(pilot, lambda: chat.chat_screen.composer.text == "")
        other.close()


async def test_a_draft_that_was_typed_elsewhere_is_not_written_over_unseen(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        chat.chat_screen.composer.insert("typed here")
        other = ConversationStore(chat.session.store.path)
        other.keep_draft(opened(chat), "typed elsewhere")
        await until(pilot, lambda: other.draft(opened(chat)) == "typed here")
        # What is being typed is not taken away, and what was typed there is among what was typed before.
        assert chat.chat_screen.composer.text == "typed here"
        assert "typed elsewhere" in chat.services.typed.texts()
        other.close()


async def test_a_draft_of_another_window_waits_behind_a_message_that_is_changed(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one"))
    async with chat.run_test(size=SIZE) as pilot:
        await say(pilot, "first?")
        await idle(pilot)
        await pilot.press("ctrl+up", "up", "e")
        other = ConversationStore(chat.session.store.path)
        other.keep_draft(opened(chat), "typed elsewhere")
        await until(pilot, lambda: chat.chat_screen.composer.typed == "typed elsewhere")
        assert chat.chat_screen.composer.text == "first?"
        await pilot.press("escape")
        await until(pilot, lambda: chat.chat_screen.composer.text == "typed elsewhere")
        other.close()
