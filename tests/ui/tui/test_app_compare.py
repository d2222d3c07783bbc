"""Several answers side by side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from textual.pilot import Pilot

from exlchat.llm.sampling import SamplingSettings
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.compare import CompareScreen
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine
from tests.ui.tui.test_app_messages import branch, talked


def lively(chat: ChatApp, *, seed: int | None = None) -> None:
    chat.session.draw_by(replace(chat.session.generation, sampling=SamplingSettings(0.7), seed=seed))


@asynccontextmanager
async def talking(tmp_path: Path) -> AsyncIterator[tuple[ChatApp, ScriptedEngine, Pilot[int]]]:
    """A conversation with a first answer; two more are written."""
    engine = ScriptedEngine("first", "second answer", "third answer")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 30)) as pilot:
        lively(chat)
        await talked(pilot, "1?")
        yield chat, engine, pilot


async def test_answers_stand_side_by_side_and_one_is_kept(tmp_path: Path) -> None:
    engine = ScriptedEngine("first", "second", "third")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 30)) as pilot:
        lively(chat)
        await talked(pilot, "1?")
        await say(pilot, "/compare 3")
        await until(pilot, lambda: "third" in shown(chat))
        await until(pilot, lambda: not chat.session.busy)
        (line,) = (line for line in shown(chat).splitlines() if "first" in line)
        assert "second" in line
        assert "third" in line
        assert len(set(engine.prompts)) == 1
        await pilot.press("right", "enter")
        await pilot.pause()
        assert branch(chat) == ["1?", "second"]
        assert "‹2/3›" in shown(chat)
    store = chat.session.store
    assert [one.text for one in store.alternatives(chat.session.branch[-1].id)] == ["first", "second", "third"]


async def test_one_may_be_kept_before_the_others_are_there(tmp_path: Path) -> None:
    async with talking(tmp_path) as (chat, engine, pilot):
        engine.hold()
        await say(pilot, "/compare 3")
        await until(pilot, lambda: chat.session.being_written is not None)
        engine.step(12)
        await until(pilot, lambda: "second" in shown(chat) and "third" in shown(chat))
        await pilot.press("4")
        await pilot.pause()
        assert isinstance(chat.screen, CompareScreen)
        await pilot.press("2")
        await until(pilot, lambda: not chat.session.busy)
        engine.release()
        await idle(pilot)
        assert branch(chat) == ["1?", "second"]
        texts = [one.text for one in chat.session.store.alternatives(chat.session.branch[-1].id)]
        assert texts == ["first", "second", "third "]


async def test_one_that_came_to_nothing_is_none_of_them(tmp_path: Path) -> None:
    async with talking(tmp_path) as (chat, engine, pilot):
        engine.hold()
        await say(pilot, "/compare 3")
        engine.step(1)
        await until(pilot, lambda: bool(chat.session.answering and chat.session.answering.several.get(0)))
        await until(pilot, lambda: "s" in chat.session.answering.several[0].answer)  # type: ignore[union-attr]
        await pilot.press("escape")
        await idle(pilot)
        assert branch(chat) == ["1?", "first"]
        assert "None was chosen: the answer of before is shown" in told(chat)
        assert [one.text for one in chat.session.store.alternatives(chat.session.branch[-1].id)] == ["first", "s"]


async def test_a_model_that_fails_leaves_what_there_is(tmp_path: Path) -> None:
    async with talking(tmp_path) as (chat, engine, pilot):
        engine.fail_after = 3
        await say(pilot, "/compare 3")
        await until(pilot, lambda: "the script says: fail" in told(chat))
        await pilot.press("escape")
        await idle(pilot)
        texts = [one.text for one in chat.session.store.alternatives(chat.session.branch[-1].id)]
        assert texts == ["first", "sec", "thi"]


async def test_a_prompt_without_an_answer_gets_them_all_and_each_has_a_seed_of_its_own(tmp_path: Path) -> None:
    engine = ScriptedEngine("first", "second")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(60, 30)) as pilot:
        chat.session.conversation = chat.session.store.create_conversation()
        chat.session.store.add_message(chat.session.conversation.id, "user", "1?")
        chat.session.reload()
        lively(chat, seed=7)
        chat.chat_screen.show_messages()
        await say(pilot, "/compare")
        await until(pilot, lambda: "second" in shown(chat))
        await until(pilot, lambda: not chat.session.busy)
        assert "Esc takes none" in shown(chat)
        assert "tokens/s" in shown(chat)
        await pilot.press("escape")
        await pilot.pause()
        assert branch(chat) == ["1?"]
        assert "None of 2 was chosen; /tree has them" in told(chat)
        assert [request.seed for request in engine.requests] == [7, 8]


async def test_what_cannot_be_compared_is_said(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("first"))
    async with chat.run_test(size=(110, 30)) as pilot:
        await talked(pilot, "1?")
        for command, line in (
            ("/compare 3", "all answers would be the same at temperature 0"),
            ("/compare 20", "give a number from 2 to 8"),
            ("/compare two", "is no number of answers"),
        ):
            await say(pilot, command)
            await pilot.pause()
            assert line in told(chat)
        assert chat.screen is chat.chat_screen


async def test_answers_are_shown_as_in_the_conversation_and_scrolled_by_keys(tmp_path: Path) -> None:
    long = "\n\n".join(f"Part **{number}**." for number in range(40))
    engine = ScriptedEngine("first", long, "Take `sorted`:\n\n```python\nwords = 1\n```\n")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 30)) as pilot:
        lively(chat)
        await talked(pilot, "1?")
        await say(pilot, "/compare 3")
        await until(pilot, lambda: "Part 39." in shown(chat) and "words = 1" in shown(chat))
        await until(pilot, lambda: not chat.session.busy)
        assert "Take sorted:" in shown(chat)
        assert "```" not in shown(chat)
        await pilot.press("right", "home")
        await until(pilot, lambda: "Part 0." in shown(chat))
        assert "Part 39." not in shown(chat)
        await pilot.press("pagedown", "pagedown", "end")
        await until(pilot, lambda: "Part 39." in shown(chat))
        assert isinstance(chat.screen, CompareScreen)


async def test_where_there_is_no_room_for_all_one_is_shown_at_a_time(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("first", "second", "third"))
    async with chat.run_test(size=(40, 12)) as pilot:
        lively(chat)
        await talked(pilot, "1?")
        await say(pilot, "/compare 3")
        await until(pilot, lambda: isinstance(chat.screen, CompareScreen) and "first" in shown(chat))
        await until(pilot, lambda: not chat.session.busy)
        assert "second" not in shown(chat)
        await pilot.press("right")
        await until(pilot, lambda: "second" in shown(chat))
        assert "first" not in shown(chat)
        await pilot.press("right", "enter")
        await until(pilot, lambda: branch(chat) == ["1?", "third"])
