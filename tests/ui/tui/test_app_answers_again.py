"""What is refused leaves no trace, and what goes on from an answer is no other answer."""

from __future__ import annotations

from pathlib import Path

from exlchat.chat.personas.frozen import FrozenPersona
from exlchat.llm.port import Capabilities
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app_messages import branch, talked


class Repeating(ScriptedEngine):
    """Says of itself that greedy answers are the same."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(draft_model=False, same_when_greedy=True)


async def test_a_refused_prompt_is_no_alternative_of_the_next(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("Yes.", max_seq_len=300))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "too long " * 90)
        await until(pilot, lambda: chat.chat_screen.composer.text.startswith("too long"))
        await idle(pilot)
        assert branch(chat) == []
        assert chat.session.store.list_conversations() == []
        await say(pilot, "Hi")
        await idle(pilot)
        assert branch(chat) == ["Hi", "Yes."]
        assert chat.session.places == {}
        assert [one.title for one in chat.session.store.list_conversations()] == ["Hi"]


async def test_going_on_five_times_is_still_one_answer(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(*["abcdefgh"] * 6, "other"))
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "/set max_tokens 4")
        await talked(pilot, "Go")
        for _ in range(5):
            await say(pilot, "/continue")
            await idle(pilot)
        assert branch(chat) == ["Go", "abcd" * 6]
        assert "‹" not in shown(chat)
        await say(pilot, "/retry")
        await idle(pilot)
        assert branch(chat) == ["Go", "othe"]
        assert "‹2/2›" in shown(chat)
        await pilot.press("ctrl+up", "left")
        await pilot.pause()
        assert branch(chat) == ["Go", "abcd" * 6]
    (tree,) = (chat.session.store.read_tree(one.id) for one in chat.session.store.list_conversations())
    assert sum(one.role == "assistant" for one in tree.messages) == 7


async def test_an_edited_greeting_is_not_gone_on_from(tmp_path: Path) -> None:
    persona = FrozenPersona("Ann", "Ann", "User", 0, system="You are Ann.", greetings=("Hello.",))
    chat = app(tmp_path, ScriptedEngine(), persona=persona)
    async with chat.run_test(size=(100, 30)) as pilot:
        await pilot.press("ctrl+up", "e")
        await pilot.pause()
        chat.chat_screen.composer.set_text("Hello there")
        await pilot.press("enter")
        await pilot.pause()
        assert "edited" in shown(chat)
        assert "/continue goes on" not in shown(chat).replace("kept beside the old one; /continue goes on", "")
        assert not chat.session.can_continue


async def test_the_same_answer_is_not_given_twice_at_temperature_0(tmp_path: Path) -> None:
    chat = app(tmp_path, Repeating("Yes.", "No.", "Maybe."))
    async with chat.run_test(size=(100, 30)) as pilot:
        await talked(pilot, "Well?")
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "the answer would be the same at temperature 0" in shown(chat) + told(chat))
        await idle(pilot)
        assert branch(chat) == ["Well?", "Yes."]
        assert chat.session.places == {}
        await say(pilot, "/set temperature 0.7")
        await pilot.press("ctrl+t")
        await until(pilot, lambda: branch(chat) == ["Well?", "No."])
        await idle(pilot)
