"""Two programs on one database, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore
from tests.ui.line.harness import line_mode
from tests.ui.scripted_engine import ScriptedEngine


async def test_what_another_program_wrote_is_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.app.chat.elsewhere.LOOK_SECONDS", 0.05)
    engine = ScriptedEngine("one", "two")
    async with line_mode(tmp_path, engine) as line:
        await line.say("first?")
        await line.idle()
        other = ConversationStore(line.chat.session.store.path)
        assert line.chat.session.conversation_id is not None
        other.add_message(line.chat.session.conversation_id, "user", "from the other window")
        await line.sees("from the other window")
        await line.sees("1 message came from another program")
        await line.say("and here?")
        await line.idle()
        other.close()
    assert "from the other window" in engine.prompts[-1]


async def test_what_follows_something_that_nobody_saw_is_not_sent_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exlchat.app.chat.elsewhere.LOOK_SECONDS", 3600.0)
    engine = ScriptedEngine("one", "two")
    async with line_mode(tmp_path, engine) as line:
        await line.say("first?")
        await line.idle()
        other = ConversationStore(line.chat.session.store.path)
        assert line.chat.session.conversation_id is not None
        other.add_message(line.chat.session.conversation_id, "user", "from the other window")
        await line.say("second?")
        await line.sees("Not sent yet")
        assert line.message == "second?"
        assert len(engine.prompts) == 1
        other.close()
