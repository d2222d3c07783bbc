"""The sampling panel: every key, what cannot be, presets, and what is written down."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from exlchat import paths
from exlchat.app.generation_settings import MAIN
from exlchat.app.options import AppOptions
from exlchat.app.services import open_services
from exlchat.chat.presets.overrides import SamplingOverrides
from exlchat.chat.presets.registry import PRESETS
from exlchat.config.files import load_settings
from exlchat.llm.sampling import SamplingSettings
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.line import InputScreen
from exlchat.ui.tui.screens.sampling import SamplingScreen
from exlchat.ui.tui.screens.stats import StatsScreen
from tests.ui.app_harness import app, drawn, idle, say, services, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture
def file(home: Path) -> Path:
    path = home / "config" / "settings.toml"
    path.parent.mkdir(parents=True)
    return path


async def go_to(pilot: Pilot[int], row: str) -> SamplingScreen:
    """Open the panel, if it is not open, and go to a row."""
    if not isinstance(pilot.app.screen, SamplingScreen):
        await pilot.press("f6")
        await pilot.pause()
    found = pilot.app.screen
    assert isinstance(found, SamplingScreen)
    found.rows.highlighted = found.rows.get_option_index(row)
    await pilot.pause()
    return found


def words(chat: ChatApp) -> str:
    return " ".join(shown(chat).replace("│", " ").split())


async def test_every_value_is_shown_with_where_it_comes_from_and_what_it_does(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/set top_k 4")
        await say(pilot, "/sampling")
        await pilot.pause()
        text = words(chat)
        assert "top_k 4 conversation" in text
        assert "top_p 1 default" in text
        assert all(name in text for name in MAIN)
        await go_to(pilot, "value:top_k")
        assert "Draw from so many likeliest tokens; 0 is all. Now: 4 (conversation). At the start: 0." in words(chat)
        await pilot.press("f6")
        assert chat.screen is chat.chat_screen


async def test_what_is_off_is_folded_away_and_what_is_on_stands_above(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("f6")
        await pilot.pause()
        assert "xtc_probability" not in words(chat)
        assert "more… 43 that are off, or as usual" in words(chat)
        assert "order: the likeliest token" in words(chat)
        panel = await go_to(pilot, "value:temperature")
        await pilot.press("1", "enter", "m")
        await go_to(pilot, "value:xtc_probability")
        assert "How often all likely tokens but the least of them are dropped (XTC); 0 is never." in words(chat)
        await pilot.press("right")
        await pilot.pause()
        assert chat.session.generation.sampling.xtc_probability == 0.5
        await go_to(pilot, "value:dry_breakers")
        assert "It changes nothing while dry_multiplier is off." in words(chat)
        await pilot.press("right", "enter")
        assert panel.field.value == '"\\n", ":", "\\"", "*"'
        await pilot.press(*'"x"', "enter")
        assert chat.session.generation.sampling.dry_breakers == ("x",)
        # Folded again, what is on, or not as usual, stays.
        await go_to(pilot, "fold:")
        await pilot.press("enter")
        await pilot.pause()
        assert "top_a" not in words(chat)
        assert "xtc_probability 0.5 conversation" in words(chat)
        assert 'dry_breakers "x" conversation · idle' in words(chat)
        assert "order: xtc → draw" in words(chat)


async def test_what_does_not_go_together_is_said_in_place(tmp_path: Path) -> None:
    folder = paths.folders().presets
    folder.mkdir(parents=True)
    (folder / "lively.toml").write_text("dynatemp_high = 1.5\n")
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await go_to(pilot, "preset:lively")
        assert "It cannot be taken now: temperature 0 takes the likeliest token" in words(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert "preset lively is not taken: temperature 0 takes the likeliest token" in words(chat)
        assert chat.session.generation.sampling.greedy
        await go_to(pilot, "value:temperature")
        await pilot.press("1", "enter")
        await go_to(pilot, "preset:lively")
        await pilot.press("enter")
        assert chat.session.generation.sampling.dynatemp_high == 1.5
        # Back at the start of the guide the temperature would be 0.
        await go_to(pilot, "value:temperature")
        await pilot.press("r")
        await pilot.pause()
        assert "set one of them back" in words(chat)
        assert chat.session.generation.sampling.temperature == 1.0


async def test_a_value_that_the_model_cannot_draw_by_is_refused_wherever_it_is_set(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        chat.session.lacks = {"banned_tokens": "this model bans no tokens; load another"}
        await say(pilot, "/set banned_tokens zz")
        await until(pilot, lambda: "this model bans no tokens" in told(chat))
        await go_to(pilot, "value:temperature")
        await pilot.press("m")
        await go_to(pilot, "value:banned_tokens")
        await pilot.press("enter", *"zz", "enter")
        await pilot.pause()
        assert "this model bans no tokens" in words(chat)
        assert chat.session.generation.sampling.banned_tokens == ()


async def test_keys_step_a_value_set_it_back_and_move(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("f6")
        await pilot.pause()
        sampling = lambda: chat.session.generation.sampling  # noqa: E731
        await pilot.press("right", "right", "plus", "left")
        assert sampling().temperature == 0.2
        await pilot.press("minus")
        assert sampling().temperature == 0.1
        await pilot.pause()
        assert "temperature is 0.1 from the next answer on" in words(chat)
        await pilot.press("r")
        assert sampling().temperature == 0.0
        await pilot.press("down", "right", "right")
        assert sampling().top_k == 60
        await pilot.press("backspace")
        assert sampling().top_k == 0
        assert chat.session.generation.source("top_k") == "default"
        await go_to(pilot, "value:context_policy")
        await pilot.press("right")
        assert chat.session.generation.context_policy == "summarise"
        await pilot.press("enter", "enter")
        assert chat.session.generation.context_policy == "drop"
        # Nothing of it is written anywhere.
        assert not paths.folders().settings_file.exists()


async def test_keys_of_ones_own_open_and_close_both_panels(file: Path) -> None:
    file.write_text('[keys]\nsampling = "f11"\nstats = "f12"\n')
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("f6", "f9")
        assert chat.screen is chat.chat_screen
        for key, panel in (("f11", SamplingScreen), ("f12", StatsScreen)):
            await pilot.press(key)
            assert isinstance(chat.screen, panel)
            await pilot.press(key)
            assert chat.screen is chat.chat_screen


async def test_a_value_is_typed_and_one_that_cannot_be_is_said_in_place(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 40)) as pilot:
        panel = await go_to(pilot, "value:top_p")
        await pilot.press("2")
        await pilot.pause()
        assert panel.field.value == "2"
        assert "top_p is 2.0; it must be a number above 0, up to 1 (1 is off)" in words(chat)
        await pilot.press("enter")
        assert panel.field.display
        assert chat.session.generation.sampling.top_p == 1.0
        await pilot.press("backspace", *"0.5")
        await pilot.pause()
        assert "it must be" not in words(chat)
        await pilot.press("enter")
        assert chat.session.generation.sampling.top_p == 0.5
        assert panel.rows.has_focus
        # Enter shows what is there, to be replaced by what is typed; escape leaves it.
        await pilot.press("enter")
        assert panel.field.value == "0.5"
        await pilot.press(*"0.9", "escape")
        assert chat.session.generation.sampling.top_p == 0.5
        assert isinstance(chat.screen, SamplingScreen)
        await go_to(pilot, "value:seed")
        await pilot.press("enter", *"42", "enter")
        assert chat.session.generation.seed == 42
        await pilot.press("enter", *"none", "enter")
        assert chat.session.generation.seed is None
        await pilot.press("escape")
        assert chat.screen is chat.chat_screen


async def test_a_preset_says_what_it_changes_and_the_next_answer_is_drawn_by_it(tmp_path: Path) -> None:
    folder = paths.folders().presets
    folder.mkdir(parents=True)
    (folder / "theirs.toml").write_text("top_k = 9\n[foreign.webui]\nrepetition_penalty = 1.2\n")
    (folder / "broken.toml").write_text("top_k = -1\n")
    engine = ScriptedEngine("One.", "Two.")
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(110, 40)) as pilot:
        await say(pilot, "a?")
        await idle(pilot)
        await go_to(pilot, "preset:creative")
        assert "broken.toml: top_k is -1" in told(chat)
        assert "Changes temperature 0 → 1.1, min_p 0 → 0.05." in words(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert "preset creative: temperature 0 → 1.1, min_p 0 → 0.05" in words(chat)
        assert "temperature 1.1 preset creative" in words(chat)
        await go_to(pilot, "preset:theirs")
        assert "Not applied: webui repetition_penalty" in words(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert "preset theirs: top_k 0 → 9. Not applied: webui repetition_penalty" in words(chat)
        assert "● theirs" in words(chat)
        await pilot.press("escape")
        await say(pilot, "b?")
        await idle(pilot)
        records = [one.record for one in chat.session.branch if one.role == "assistant"]
    assert [one.sampling for one in records if one][1] == SamplingSettings(1.1, 9, 1.0, 0.05)


async def test_a_change_during_an_answer_holds_from_the_next_one(tmp_path: Path) -> None:
    engine = ScriptedEngine("One.", "Two.")
    engine.hold()
    chat = app(tmp_path, engine)
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "a?")
        await until(pilot, lambda: chat.session.being_written is not None)
        await go_to(pilot, "value:temperature")
        await pilot.press("1", "enter", "escape")
        engine.release()
        await idle(pilot)
        await say(pilot, "b?")
        await idle(pilot)
    assert [one.sampling.temperature for one in engine.requests] == [0.0, 1.0]


async def test_values_are_saved_as_a_preset_that_can_be_taken_again(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await go_to(pilot, "value:temperature")
        await pilot.press("1", "enter", "down", "7", "enter", "s")
        await pilot.pause()
        assert isinstance(chat.screen, InputScreen)
        await pilot.press(*"My own", "enter")
        await pilot.pause()
        assert "Saved as preset my-own" in words(chat)
        assert PRESETS.find("my-own").preset.overrides == SamplingOverrides(temperature=1.0, top_k=7, others_off=True)
        # It stands in the list, and the chosen row is still the one that was chosen.
        assert "● my-own" in words(chat)
        await pilot.press("right")
        assert chat.session.generation.sampling.top_k == 10
        await go_to(pilot, "preset:my-own")
        await pilot.press("enter")
        assert chat.session.generation.sampling.top_k == 7


async def test_a_preset_that_is_there_is_replaced_only_when_its_name_is_given_again(tmp_path: Path) -> None:
    folder = paths.folders().presets
    folder.mkdir(parents=True)
    (folder / "mine.toml").write_text("top_k = 3\n")
    chat = app(tmp_path)
    async with chat.run_test(size=(110, 40)) as pilot:
        await go_to(pilot, "value:top_k")
        await pilot.press("8", "enter", "s", *"mine", "enter")
        await until(pilot, lambda: "mine is there already" in shown(chat))
        await pilot.press("escape")
        await pilot.pause()
        assert (folder / "mine.toml").read_text() == "top_k = 3\n"
        await pilot.press("s", *"mine", "enter")
        await until(pilot, lambda: "mine is there already" in shown(chat))
        await pilot.press(*"other", "enter")
        await pilot.pause()
        assert (folder / "mine.toml").read_text() == "top_k = 3\n"
        assert PRESETS.find("other").preset.overrides.top_k == 8
        await pilot.press("s", *"mine", "enter")
        await until(pilot, lambda: "mine is there already" in shown(chat))
        await pilot.press("enter")
        await pilot.pause()
        assert PRESETS.find("mine").preset.overrides.top_k == 8


async def test_what_differs_is_kept_as_default_and_holds_at_the_next_start(file: Path) -> None:
    file.write_text("# mine\nmax_tokens = 50\ntop_p = 0.9\n")
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        await go_to(pilot, "value:temperature")
        await pilot.press("1", "enter")
        await go_to(pilot, "value:max_tokens")
        await pilot.press("enter", *"none", "enter")
        await go_to(pilot, "value:seed")
        await pilot.press("5", "enter", "k")
        await pilot.pause()
        said = "Written into settings.toml: temperature 1, max_tokens until the context is full; the seed belongs to"
        assert said in words(chat)
        assert tomllib.loads(file.read_text()) == {"temperature": 1.0, "top_p": 0.9}
        assert file.read_text().startswith("# mine\n")
        assert "temperature 1 settings" in words(chat)
        # What is kept is what the start would be from now on.
        await go_to(pilot, "value:temperature")
        await pilot.press("right", "r")
        assert chat.session.generation.sampling.temperature == 1.0
        await pilot.press("k")
        await pilot.pause()
        assert "settings.toml says all of this already" in words(chat)
    assert load_settings(file).temperature == 1.0
    assert drawn(open_services(AppOptions(None))).sampling.temperature == 1.0


async def test_controls_without_a_key_of_their_own_are_kept_in_the_table(file: Path) -> None:
    file.write_text("# mine\n[sampling]\nskew = 0.2\ndynatemp_high = 1.5\n")
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        await say(pilot, "/set skew off")
        await say(pilot, "/set dynatemp_high 3")
        await say(pilot, "/set dynatemp_low 2")
        await say(pilot, '/set logit_bias " the"=-2, 5=1')
        await pilot.press("f6", "k")
        await pilot.pause()
        assert "Written into settings.toml: " in words(chat)
        assert tomllib.loads(file.read_text()) == {
            "sampling": {"dynatemp_low": 2.0, "dynatemp_high": 3.0, "logit_bias": [[" the", -2.0], [5, 1.0]]}
        }
        assert file.read_text().startswith("# mine\n")
        await pilot.press("k")
        await pilot.pause()
        assert "settings.toml says all of this already" in words(chat)
        held = chat.session.generation.sampling
    assert drawn(open_services(AppOptions(None))).sampling == held


async def test_a_table_that_is_edited_while_the_app_runs_holds_from_then_on(file: Path) -> None:
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        file.write_text("temperature = 1\n[sampling]\ndynatemp_low = 1\ndynatemp_high = 2\n")
        await say(pilot, "/settings temperature")
        assert chat.session.generation.sampling.dynatemp_low == 1.0
        await say(pilot, "/set dynatemp_high 1.5")
        # It would be below what the file wants for the low one now.
        file.write_text("[sampling]\ndynatemp_low = 1.8\ndynatemp_high = 2\n")
        await say(pilot, "/settings temperature")
        assert "dynatemp_low is 1.8 and dynatemp_high 1.5" in told(chat)
        assert chat.session.generation.sampling.dynatemp_low == 1.0


async def test_what_the_environment_beats_is_said_when_it_is_kept(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_TOP_K", "4")
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        await go_to(pilot, "value:top_k")
        assert "Now: 4 (environment)." in words(chat)
        await pilot.press("9", "enter", "k")
        await pilot.pause()
        assert "Written into settings.toml: top_k 9; the environment (EXLCHAT_TOP_K) beats the file" in words(chat)
        assert tomllib.loads(file.read_text()) == {"top_k": 9}
        # What was typed goes on holding in this run.
        assert chat.session.generation.sampling.top_k == 9


async def test_a_broken_file_is_not_written(file: Path) -> None:
    file.write_text("top_k = -3\n")
    chat = ChatApp(open_services(AppOptions(None)))
    async with chat.run_test(size=(100, 40)) as pilot:
        await go_to(pilot, "value:temperature")
        await pilot.press("1", "enter", "k")
        await pilot.pause()
        assert "top_k is -3" in words(chat)
        assert file.read_text() == "top_k = -3\n"


async def test_a_session_that_is_not_kept_writes_nothing_and_says_so(tmp_path: Path, home: Path) -> None:
    chat = ChatApp(replace(services(tmp_path), kept=False))
    async with chat.run_test(size=(100, 40)) as pilot:
        await pilot.press("f6")
        await pilot.pause()
        assert "Nothing of this session is saved" in words(chat)
        await pilot.press("1", "enter")
        assert chat.session.generation.sampling.temperature == 1.0
        for key in ("k", "s"):
            await pilot.press(key)
            await pilot.pause()
            assert isinstance(chat.screen, SamplingScreen)
            assert "Nothing of this session is saved" in words(chat)
        assert not (home / "config").exists() or not list((home / "config").rglob("*.toml"))


@pytest.mark.parametrize("size", [(40, 16), (40, 12), (20, 5)])
async def test_in_a_small_terminal_the_chosen_row_stays_in_sight(tmp_path: Path, size: tuple[int, int]) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=size) as pilot:
        await pilot.press("f6")
        await pilot.pause()
        for name in MAIN:
            await pilot.pause()
            assert name in shown(chat), name
            await pilot.press("down")
        await go_to(pilot, "preset:wild")
        await pilot.press("enter")
        await pilot.pause(0.1)
        assert "● wild" in words(chat)
        await go_to(pilot, "value:top_k")
        await pilot.press("4")
        await pilot.pause(0.1)
        assert "top_k" in shown(chat)
        await pilot.press("enter")
        await pilot.pause()
        assert chat.session.generation.sampling.top_k == 4
