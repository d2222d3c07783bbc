"""The panel of the cache and what things cost, in the real app."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat.app.commands.cache import cache_told
from exlchat.app.panels.cache import cache_rows, cost_line
from exlchat.chat.prompt.cost import PromptCost
from exlchat.chat.store.conversations import ConversationStore
from exlchat.llm.info import CacheReport, DiskReport
from exlchat.ui.tui.screens.rows import RowsScreen
from tests.ui.app_harness import app, idle, said, say, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine

REPORT = CacheReport(
    kind="q4",
    page_tokens=256,
    page_bytes=9 * 2**20,
    pages=400,
    running=32,
    idle=100,
    owners=(("known", 30), ("gone", 1)),
    evictions=7,
    prompt_tokens=10_000,
    found_tokens=9_000,
    disk=DiskReport(12, 3 * 2**30, 4 * 2**30, 12, 5_000, 2, "the disk is full; free space", 17),
)


class Engine(ScriptedEngine):
    """Reports a cache whose pages the newest conversation uses."""

    owner = ""
    reports = 0

    def cache_report(self) -> CacheReport:
        self.reports += 1
        return dataclasses.replace(REPORT, owners=((self.owner, 30), ("gone", 1)))


async def test_the_panel_shows_pages_owners_and_savings(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    engine = Engine("an answer")
    chat = app(tmp_path, engine, store=store)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "What is a page?")
        await until(pilot, lambda: "an answer" in shown(chat))
        engine.owner = store.list_conversations()[0].id
        await say(pilot, "/cache")
        await until(pilot, lambda: "Esc closes" in shown(chat))
        text = shown(chat)
        for words in (
            "132 of 400 taken, 32 of them",
            "9,000 of 10,000 prompt tokens (90%)",
            "7 pages made room",
            "What is a page?",
            "30 pages",
            "not listed any more",
            "3.0 GiB of 4.0 GiB",
            "12 written, 5,000 tokens came back",
            "2 damaged files",
            "17 pages not written",
            "the disk is full; free space",
        ):
            assert words in text, words
        await pilot.press("escape")
        await until(pilot, lambda: "Esc closes" not in shown(chat))


async def test_the_panel_opens_before_anything_was_said(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/cache")
        await until(pilot, lambda: "Esc closes" in shown(chat))
        assert "is kept for later starts" in shown(chat)


def coming(engine: Engine) -> tuple[Callable[[object], Engine], threading.Event]:
    """What loads it once the event is set."""
    may_come = threading.Event()

    def load(_: object) -> Engine:
        may_come.wait(60)
        return engine

    return load, may_come


async def ask_during_an_answer(pilot: Pilot[int], engine: Engine, *lines: str) -> None:
    engine.hold()
    await say(pilot, "Hello")
    await until(pilot, lambda: bool(engine.requests))
    await ask(pilot, *lines)


async def ask(pilot: Pilot[int], *lines: str) -> None:
    for line in lines:
        await say(pilot, line)
        await pilot.pause()


async def test_the_cache_is_shown_during_an_answer(tmp_path: Path) -> None:
    engine = Engine("an answer")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        engine.hold()
        await say(pilot, "Hello")
        await until(pilot, lambda: bool(engine.requests))
        await say(pilot, "/cache")
        await until(pilot, lambda: "Esc closes" in shown(chat))
        assert chat.session.busy
        engine.release()
        await idle(pilot)


async def test_asked_twice_before_the_model_is_there_the_panel_is_promised_and_opens_once(tmp_path: Path) -> None:
    engine = Engine("an answer")
    load, may_come = coming(engine)
    chat = app(tmp_path, load=load)
    async with chat.run_test(size=(100, 40)) as pilot:
        await ask(pilot, "/cache", "/cache")
        assert told(chat).count("The cache is shown when the model is loaded") == 1
        assert sum("The cache is shown when the model is loaded" in line for line in said(chat)) == 2
        may_come.set()
        await until(pilot, lambda: "Esc closes" in shown(chat))
        await idle(pilot)
        assert [type(one) for one in chat.screen_stack].count(RowsScreen) == 1
        assert engine.reports == 1
        await pilot.press("escape")
        await say(pilot, "/cache")
        await until(pilot, lambda: "Esc closes" in shown(chat))
        assert engine.reports == 2


@pytest.mark.parametrize("gone_on_to", ["typing", "help"])
async def test_who_has_gone_on_is_told_in_a_line(tmp_path: Path, gone_on_to: str) -> None:
    load, may_come = coming(Engine("an answer"))
    chat = app(tmp_path, load=load)
    async with chat.run_test(size=(100, 40)) as pilot:
        await ask(pilot, "/cache")
        if gone_on_to == "typing":
            chat.chat_screen.composer.set_text("I am typ")
        else:
            await pilot.press("f1")
        may_come.set()
        line = "Cache: 132 of 400 pages taken, 9,000 of 10,000 prompt tokens reused (90%); /cache shows more"
        await until(pilot, lambda: line in told(chat))
        assert not any(isinstance(one, RowsScreen) for one in chat.screen_stack)
        if gone_on_to == "typing":
            await pilot.press("q")
            assert chat.chat_screen.composer.text.count("q") == 1


async def test_a_second_report_takes_the_place_of_the_first(tmp_path: Path) -> None:
    engine = Engine()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/cache")
        await until(pilot, lambda: "7 pages made room" in shown(chat))
        cache_told(chat.chat_screen, dataclasses.replace(REPORT, evictions=8), late=True)
        await until(pilot, lambda: "8 pages made room" in shown(chat))
        assert len(chat.screen_stack) == 2


async def test_in_forty_columns_headings_and_words_are_whole(tmp_path: Path) -> None:
    engine = Engine()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(40, 60)) as pilot:
        await say(pilot, "/cache")
        await until(pilot, lambda: "Esc closes" in shown(chat))
        for words in ("In memory", "Used by", "On disk", "Evicted", "This run", "Dropped", "Trouble"):
            assert words in shown(chat), shown(chat)


async def test_a_cost_is_that_of_the_conversation_when_the_engine_comes_to_it(tmp_path: Path) -> None:
    engine = Engine("an answer", max_seq_len=4096)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await ask_during_an_answer(pilot, engine, "/cost")
        engine.release()
        # A character is a token, and the template of the test opens an answer in any case.
        whole = f"{engine.prompts[0]}an answer<|im_end|>\n<|im_start|>assistant"
        await until(pilot, lambda: f"This conversation has {len(whole)} tokens" in told(chat))


async def test_a_cost_names_a_conversation_that_is_no_longer_open(tmp_path: Path) -> None:
    engine = Engine("an answer")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await ask_during_an_answer(pilot, engine, "/cost", "/cost You are a pirate.")
        await pilot.press("ctrl+n")
        engine.release()
        await until(pilot, lambda: "With that system prompt “Hello” has" in told(chat))
        assert "“Hello” has" in told(chat).replace("prompt “Hello” has", "")
        assert "his conversation" not in told(chat)


async def test_costs_are_told_before_and_when_a_persona_changes(tmp_path: Path) -> None:
    engine = ScriptedEngine("an answer", chat_template=None)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "Hello")
        await until(pilot, lambda: "an answer" in shown(chat))
        await say(pilot, "/cost")
        await until(pilot, lambda: "would be read anew" in told(chat))
        assert "This conversation has" in told(chat)
        await say(pilot, "/cost You are a pirate.")
        await until(pilot, lambda: "With that system prompt this conversation has" in told(chat))
        assert chat.session.system_prompt is None
        await say(pilot, "/system You are a pirate.")
        await until(pilot, lambda: "With it this conversation has" in told(chat))


async def test_a_model_that_could_not_be_loaded_has_no_cache_to_show(tmp_path: Path) -> None:
    def fail(_: object) -> ScriptedEngine:
        raise RuntimeError("no such model")

    chat = app(tmp_path, load=fail)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/cache")
        await until(pilot, lambda: "no such model" in told(chat))


def test_rows_name_what_is_there() -> None:
    rows = dict(cache_rows(REPORT, {"known": "A title\x1b[2J"}))
    assert rows["Memory"] == "3.5 GiB, q4, 9.0 MiB a page"
    assert "A title" in " ".join(rows)
    assert "\x1b" not in "".join(rows)
    assert dict(cache_rows(dataclasses.replace(REPORT, disk=None), {}))["Nothing"].startswith("is kept")


def test_cost_lines() -> None:
    assert cost_line(PromptCost(0, 0), "This") == "This has nothing to read yet"
    assert cost_line(PromptCost(1_500, 400), "This") == (
        "This has 1,500 tokens: 400 are cached, 1,100 would be read anew"
    )
