"""The statistics panel in the real app: figures, bars that grow, and what the engine says between answers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat.app.panels.cache import size_text
from exlchat.app.panels.stats import engine_rows
from exlchat.app.runtime.requests import EngineFigures
from exlchat.llm.events import GenerationStats
from exlchat.llm.info import CacheReport, CardMemory, MemoryReport
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.stats import FEWEST_BARS, StatsScreen
from tests.ui.app_harness import app, idle, say, shown, until
from tests.ui.scripted_engine import ScriptedEngine

CACHE = CacheReport("q4", 256, 2**20, 400, 32, 100, (), 7, 10_000, 9_000, None, kept_tokens=30_000, shared=12)
MEMORY = MemoryReport(2**30, 2**29, 2**28, (CardMemory("cuda:0", 10 * 2**30, 40 * 2**30, 32),), 2**28, 8)


class Engine(ScriptedEngine):
    """Counts how often it is asked; its cache has more pages in use each time."""

    asked = 0
    memory = MEMORY

    def cache_report(self) -> CacheReport:
        self.asked += 1
        return dataclasses.replace(CACHE, idle=100 + self.asked)

    def memory_report(self) -> MemoryReport:
        return self.memory


def words(chat: ChatApp) -> str:
    return " ".join(shown(chat).replace("│", " ").split())


def panel(pilot: Pilot[int]) -> StatsScreen:
    assert isinstance(pilot.app.screen, StatsScreen)
    return pilot.app.screen


async def test_the_figures_of_the_last_answer_memory_and_cache_are_shown(tmp_path: Path) -> None:
    chat = app(tmp_path, Engine("Four words it has.", "Two."))
    async with chat.run_test(size=(110, 50)) as pilot:
        await say(pilot, "/set seed 31")
        await say(pilot, "a?")
        await idle(pilot)
        await say(pilot, "b?")
        await idle(pilot)
        await pilot.press("f9")
        await until(pilot, lambda: "VRAM" in shown(chat))
        text = words(chat)
        record = chat.session.branch[-1].record
        assert record is not None
        assert record.stats is not None
        prompt = record.stats.prompt_tokens
        for expected in (
            "Model scripted",
            f"Prompt {prompt} tokens, {prompt // 2} cached, {prompt - prompt // 2} read",
            "0.25 s to the first token",
            f"Reading 0.20 s, {(prompt - prompt // 2) / 0.2:.0f} tok/s",
            "4 tokens in 1.00 s, 3.0 tok/s",
            "temperature 0 · top_k 0 · top_p 1 · min_p 0",
            "Seed 31",
            "Path synchronous",
            "Ended by stop token",
            "2 answers, 3.0 to 17.0 tok/s, the last 3.0",
            "10.0 GiB of 40.0 GiB used by all programs (25%)",
            "weights 1.0 GiB, cache 512.0 MiB",
            "Host 8 layers; 256.0 MiB of the weights",
            "133 used, 12 of them shared, 267 free",
            "30,000 tokens of 102,400",
            "9,000 of 10,000 prompt tokens not read again (90%)",
        ):
            assert expected in text, expected
        assert panel(pilot).rates_bars.values == (17.0, 3.0)
        assert not panel(pilot).rates_bars.display
        assert "as of" not in text
        assert not panel(pilot).now_bars.display


@pytest.mark.parametrize("key", ["escape", "q", "enter", "f9"])
async def test_any_of_its_keys_closes_it(tmp_path: Path, key: str) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        await say(pilot, "/stats")
        await until(pilot, lambda: "none of an answer in this conversation yet" in words(chat))
        await pilot.press(key)
        assert chat.screen is chat.chat_screen


async def test_the_bars_grow_while_an_answer_is_written(tmp_path: Path) -> None:
    engine = Engine("a" * 60)
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 50)) as pilot:
        await say(pilot, "a?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await pilot.press("f9")
        await until(pilot, lambda: "the prompt is being read" in words(chat))
        engine.step(6)
        bars = panel(pilot).now_bars
        await until(pilot, lambda: sum(bars.values) == 12.0)
        await until(pilot, lambda: "6 tokens so far" in words(chat))
        few = shown(chat)
        # A busy machine is late.
        if len(bars.values) < FEWEST_BARS:
            assert "█" not in few
        engine.step(3)
        await until(pilot, lambda: sum(bars.values) == 18.0)
        await until(pilot, lambda: len(bars.values) >= FEWEST_BARS)
        await until(pilot, lambda: "█" in shown(chat))
        engine.release()
        await idle(pilot)
        await until(pilot, lambda: not bars.display)
        assert "1 answer, 59.0 tok/s" in words(chat)


async def test_the_engine_is_asked_while_it_answers_and_once_when_all_has_ended(tmp_path: Path) -> None:
    engine = Engine("One.", "Two.", "Three.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 50)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await pilot.press("f9")
        await until(pilot, lambda: "133 used" in words(chat))
        assert engine.asked == 1
        await pilot.press("escape")
        engine.hold()
        await say(pilot, "b?")
        await until(pilot, lambda: chat.session.being_written is not None)
        assert engine.asked == 1
        await pilot.press("f9")
        await until(pilot, lambda: "135 used" in words(chat))
        engine.release()
        await idle(pilot)
        await until(pilot, lambda: not chat.session.busy and f"{132 + engine.asked} used" in words(chat))
        # What was asked last is shown, and nothing more is asked while nothing is answered.
        await pilot.pause(0.6)
        asked = engine.asked
        await pilot.pause(0.6)
        assert engine.asked == asked
        assert f"{132 + asked} used" in words(chat)
        # Closed, it asks nothing.
        await pilot.press("escape")
        asked = engine.asked
        await say(pilot, "c?")
        await idle(pilot)
        assert engine.asked == asked


async def test_a_title_is_made_while_the_engine_is_asked(tmp_path: Path) -> None:
    engine = Engine("An answer.", "A title of the model")
    engine.hold()
    chat = app(tmp_path, engine, titles=True)
    async with chat.run_test(size=(100, 50)) as pilot:
        await say(pilot, "a?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await pilot.press("f9")
        await pilot.pause(0.3)
        engine.step(len("An answer.") + 1)
        await until(pilot, lambda: not chat.session.busy)
        await pilot.pause(0.8)
        engine.release()
        titles = lambda: [one.title for one in chat.session.store.list_conversations()]  # noqa: E731
        await until(pilot, lambda: titles() == ["A title of the model"])
        assert len(engine.requests) == 2


async def test_an_answer_in_another_conversation_is_named_as_that(tmp_path: Path) -> None:
    engine = Engine("One.")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 50)) as pilot:
        await say(pilot, "a?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await pilot.press("ctrl+n", "f9")
        await until(pilot, lambda: "In another conversation: the prompt is being read" in words(chat))
        # The engine is asked meanwhile.
        await until(pilot, lambda: "used" in words(chat))
        engine.release()
        await idle(pilot)


async def test_without_a_card_the_memory_of_the_program_is_shown(tmp_path: Path) -> None:
    engine = Engine()
    engine.memory = dataclasses.replace(MEMORY, cards=())
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 50)) as pilot:
        await pilot.press("f9")
        await until(pilot, lambda: "256.0 MiB of the machine's memory" in words(chat))
        assert "VRAM" not in shown(chat)


async def test_each_of_several_cards_is_shown_with_its_layers(tmp_path: Path) -> None:
    engine = Engine()
    cards = (CardMemory("cuda:0", 10 * 2**30, 40 * 2**30, 20), CardMemory("cuda:1", 6 * 2**30, 24 * 2**30, 12))
    engine.memory = dataclasses.replace(MEMORY, cards=cards)
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 50)) as pilot:
        await pilot.press("f9")
        await until(pilot, lambda: "cuda:1" in shown(chat))
        assert "20 layers; 10.0 GiB of 40.0 GiB used by all programs (25%)" in words(chat)
        assert "12 layers; 6.0 GiB of 24.0 GiB" in words(chat)


async def test_a_model_that_could_not_be_loaded_is_not_asked(tmp_path: Path) -> None:
    def fail(_: object) -> ScriptedEngine:
        raise RuntimeError("no such model")

    chat = app(tmp_path, load=fail)
    async with chat.run_test(size=(100, 50)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.failure is not None)
        before = len(chat._notifications)
        await pilot.press("f9")
        await pilot.pause(0.6)
        assert "Last answer" in shown(chat)
        assert len(chat._notifications) == before


@pytest.mark.parametrize("size", [(40, 16), (20, 5)])
async def test_in_a_small_terminal_everything_can_be_scrolled_to(tmp_path: Path, size: tuple[int, int]) -> None:
    chat = app(tmp_path, Engine("One."))
    async with chat.run_test(size=size) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await pilot.press("f9")
        await until(pilot, lambda: "Model scripted" in words(chat))
        seen = ""
        for _ in range(60):
            seen += words(chat) + " "
            await pilot.press("down")
            await pilot.pause(0.01)
        for word in ("Sampling", "Seed", "Answers of", "VRAM", "Pages", "Kept", "Saved", "(90%)"):
            assert word in seen, word


def test_a_rate_that_cannot_be_known_is_left_out() -> None:
    stats = GenerationStats(10, 10, 1, 0.1, 0.0, 0.0, 3)
    assert stats.tokens_per_second == 0.0
    rows = dict(engine_rows(EngineFigures(dataclasses.replace(CACHE, shared=0), MEMORY)))
    assert rows["Pages"] == "132 used, 268 free"
    assert rows["Program"] == f"{size_text(2**28)} of the machine's memory"
