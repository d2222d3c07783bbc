"""A conversation that outgrows the context, as a person meets it in the app."""

from __future__ import annotations

from pathlib import Path

from textual.pilot import Pilot

from exlchat.chat.prompt.summary import SUMMARY_HEAD
from exlchat.ui.tui.app import ChatApp
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

SIZE = (120, 60)
LONG = "word " * 50
"""A character is a token."""


async def talk(pilot: Pilot[int], *prompts: str) -> None:
    for prompt in prompts:
        await say(pilot, prompt)
        await idle(pilot)


def placed(screen: str, *parts: str) -> list[int]:
    """Where these stand on the screen; all of them have to."""
    assert all(part in screen for part in parts), screen
    return [screen.index(part) for part in parts]


def asked(number: int) -> str:
    return f"question {number} {LONG}"


async def test_a_notice_and_a_line_tell_what_is_no_longer_seen_also_after_reopening(tmp_path: Path) -> None:
    engine = ScriptedEngine(max_seq_len=1200)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await talk(pilot, "/set context_policy drop", *map(asked, range(3)))
        assert "no longer sees" not in shown(chat)
        await talk(pilot, asked(3))
        screen = shown(chat)
        parts = ("question 0", "question 1", "— the model no longer sees what is above —", "question 2", "question 3")
        assert placed(screen, *parts) == sorted(placed(screen, *parts))
        assert "4 earlier messages are no longer seen by the model; /pin keeps a message" in screen
        assert screen.count("no longer") == 2
        await talk(pilot, "short")
        # The cut holds: nothing new is said, and the line stays where it was.
        assert shown(chat).count("no longer") == 2
    assert "question 1" not in engine.prompts[3]
    assert engine.prompts[4].startswith(engine.prompts[3])
    again = app(tmp_path, engine, continue_last=True)
    async with again.run_test(size=SIZE):
        screen = shown(again)
        assert placed(screen, "question 1", "— the model no longer sees", "question 2")
        assert screen.index("question 1") < screen.index("— the model no longer sees") < screen.index("question 2")


async def test_stop_says_how_to_go_on_and_gives_the_message_back(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine(max_seq_len=1200))
    async with chat.run_test(size=SIZE) as pilot:
        await talk(pilot, "/set context_policy stop", *map(asked, range(4)))
        assert "/set context_policy drop (or summarise)" in " ".join(shown(chat).replace("·", "").split())
        assert chat.chat_screen.composer.text == asked(3).strip()
        await talk(pilot, "/set context_policy drop")


async def summarised(pilot: Pilot[int], chat: ChatApp) -> None:
    await talk(pilot, "/set context_policy summarise", *map(asked, range(7)))
    await until(pilot, lambda: "a summary of what is above" in shown(chat))


async def test_a_summary_is_marked_shown_by_a_command_and_found_again(tmp_path: Path) -> None:
    engine = ScriptedEngine(*["ok"] * 6, "They spoke of seven words.", "ok", max_seq_len=2400)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await talk(pilot, "/summary")
        assert "no summary" in told(chat)
        await summarised(pilot, chat)
        assert "seen by the model as a summary only; /summary shows it" in shown(chat)
        assert "They spoke of seven words." not in shown(chat)
    again = app(tmp_path, engine, continue_last=True)
    async with again.run_test(size=SIZE) as pilot:
        await until(pilot, lambda: "the model sees a summary of what is above; /summary shows it" in shown(again))
        await talk(pilot, "/summary")
        assert "They spoke of seven words." in shown(again)
    assert f"{SUMMARY_HEAD}\nThey spoke of seven words." in engine.prompts[-1]


async def test_escape_during_the_summary_leaves_the_message_unanswered(tmp_path: Path) -> None:
    engine = ScriptedEngine(*["ok"] * 6, "They spoke of seven words.", max_seq_len=2400)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await talk(pilot, "/set context_policy summarise", *map(asked, range(6)))
        engine.hold()
        await say(pilot, asked(6))
        await until(pilot, lambda: "summarising the earlier conversation…" in shown(chat).splitlines()[-1])
        engine.step(3)
        await pilot.press("escape")
        await idle(pilot)
        screen = shown(chat)
        assert "summarising" not in screen
        assert "Stopped before there was any text." in screen
        assert "a summary of what is above" not in screen
        assert chat.session.branch[-1].text == asked(6).strip()
        engine.release()
        engine.answers = ["They spoke again.", "ok"]
        await pilot.press("ctrl+t")
        await idle(pilot)
        assert "a summary of what is above" in shown(chat)


async def test_pins_are_shown_and_obeyed(tmp_path: Path) -> None:
    engine = ScriptedEngine(max_seq_len=1200)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=SIZE) as pilot:
        await talk(pilot, "/set context_policy drop", "remember 42", asked(1))
        await talk(pilot, "/pin 4")
        lines = shown(chat).splitlines()
        said = next(number for number, line in enumerate(lines) if "▌ remember 42" in line)
        assert "▌ pinned" in lines[said + 1]
        await talk(pilot, *map(asked, range(2, 5)))
        assert "remember 42" in engine.prompts[-1]
        assert "question 1" not in engine.prompts[-1]
        assert "— the model no longer sees what is above but what is pinned —" in shown(chat)
        for line, expected in (("/pin 99", "there is no message 99"), ("/pin x", "'x' is no number")):
            await talk(pilot, line)
            assert expected in told(chat)
            chat.chat_screen.composer.set_text("")
        back = len([one for one in chat.session.branch if one.role != "system"])
        await talk(pilot, f"/unpin {back}", "short")
        assert "remember 42" not in engine.prompts[-1]
        await talk(pilot, "/pin")
        assert chat.session.branch[-1].pinned


async def test_a_notice_tells_once_what_of_a_schema_answers_are_not_held_to(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("one", "two"))
    async with chat.run_test(size=SIZE) as pilot:
        await talk(pilot, '/schema {"type": "string", "format": "path"}', "first", "second")
        await until(pilot, lambda: "answers are not held to the format 'path'" in shown(chat))
        assert shown(chat).count("answers are not held to") == 1
