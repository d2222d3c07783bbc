"""/preset in the app."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat import paths
from exlchat.llm.sampling import GREEDY, SamplingSettings
from tests.ui.app_harness import app, idle, say, shown, told
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(paths.HOME_VARIABLE, str(tmp_path / "home"))
    folder = paths.folders().presets
    folder.mkdir(parents=True)
    (folder / "short.toml").write_text('description = "For lists"\ntop_k = 4\nmax_tokens = 11\n')
    return folder


async def test_a_preset_holds_for_the_answers_from_here_on(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("One.", "Two.", "Three."))
    async with chat.run_test(size=(120, 30)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await say(pilot, "/preset creative")
        await pilot.pause()
        assert "Preset creative: temperature 1.1 · top_k 0 · top_p 1 · min_p 0.05" in shown(chat)
        await say(pilot, "b?")
        await idle(pilot)
        # What a preset leaves out stays as it is.
        await say(pilot, "/preset short")
        await say(pilot, "c?")
        await idle(pilot)
        assert chat.session.generation.max_tokens == 11
        records = [one.record for one in chat.session.branch if one.role == "assistant"]
    creative = SamplingSettings(1.1, 0, 1.0, 0.05)
    assert [one.sampling for one in records if one] == [GREEDY, creative, SamplingSettings(1.1, 4, 1.0, 0.05)]


async def test_without_a_name_they_are_there_to_choose_from(tmp_path: Path, presets: Path) -> None:
    (presets / "broken.toml").write_text("top_k = -1\n")
    chat = app(tmp_path, ScriptedEngine("One."))
    async with chat.run_test(size=(120, 40)) as pilot:
        await say(pilot, "/preset")
        await pilot.pause()
        assert "broken.toml: top_k is -1" in told(chat)
        text = shown(chat)
        assert "For lists" in text
        assert "deterministic" in text
        await pilot.press(*"short")
        await pilot.pause()
        assert "max_tokens" in shown(chat)
        await pilot.press("escape")


async def test_one_that_is_not_there_changes_nothing(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(120, 30)) as pilot:
        before = chat.session.generation
        await say(pilot, "/preset creativ")
        await pilot.pause()
        assert "did you mean creative?" in told(chat)
        assert chat.session.generation == before
