"""What helps with typing: what was typed before, the user's editor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.app.composer.history import TypedHistory
from exlchat.ui.tui.app import ChatApp
from exlchat.ui.tui.screens.pick import PickScreen
from tests.ui.app_harness import app, idle, say, services, shown, told, until
from tests.ui.scripted_engine import ScriptedEngine


def remembering(folder: Path, *answers: str) -> ChatApp:
    made = services(folder, ScriptedEngine(*answers))
    return ChatApp(replace(made, typed=TypedHistory(folder / "typed")))


async def test_what_was_typed_in_an_earlier_run_comes_back(tmp_path: Path) -> None:
    chat = remembering(tmp_path, "A.", "B.")
    async with chat.run_test(size=(100, 30)) as pilot:
        for text in ("the first question", "and a second", "/set top_k 3"):
            await say(pilot, text)
            await idle(pilot)
    chat = remembering(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        await pilot.press("up")
        assert composer.text == "and a second"
        await pilot.press("home", "up")
        assert composer.text == "the first question"


async def test_it_is_found_by_a_part_and_undo_takes_it_back(tmp_path: Path) -> None:
    kept = TypedHistory(tmp_path / "typed")
    for text in ("the first question", "/set top_k 3", "the last\nquestion"):
        kept.add(text)
    chat = remembering(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        await pilot.press(*"quest", "ctrl+r")
        picker = chat.screen
        assert isinstance(picker, PickScreen)
        assert picker.field.value == "quest"
        assert picker.options.option_count == 2
        await pilot.press("escape")
        assert composer.text == "quest"
        await pilot.press("ctrl+r", *" first", "enter")
        await until(pilot, lambda: composer.text == "the first question")
        await pilot.press("ctrl+z")
        assert composer.text == "quest"
        await say(pilot, "/history top")
        await until(pilot, lambda: isinstance(chat.screen, PickScreen))
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: composer.text.startswith("/"))


async def test_where_no_editor_can_be_had_the_text_stays_and_a_line_says_so(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await pilot.press(*"half", "ctrl+o")
        assert chat.chat_screen.composer.text == "half"
        assert "cannot be given to an editor" in told(chat)


async def test_a_file_is_offered_counted_and_goes_with_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "work" / "deep" / "notes.txt").write_text("twelve chars")
    (tmp_path / "work" / "other.bin").write_bytes(b"\xff\0")
    monkeypatch.chdir(tmp_path / "work")
    chat = app(tmp_path, ScriptedEngine("Read."))
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        await pilot.press(*"see @")
        await until(pilot, lambda: "12 tokens" in shown(chat))
        assert "not text in UTF-8" in shown(chat)
        await pilot.press(*"nt", "tab")
        await until(pilot, lambda: composer.text == "see @deep/notes.txt ")
        assert not chat.chat_screen.prompt.offering
        await until(pilot, lambda: "with deep/notes.txt · " in shown(chat))
        await pilot.press("enter")
        await idle(pilot)
        assert chat.session.branch[0].text == "see @deep/notes.txt\n\ndeep/notes.txt:\n\n```txt\ntwelve chars\n```"


async def test_a_file_that_cannot_be_read_keeps_the_message_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd").write_bytes(b"\xff")
    monkeypatch.chdir(tmp_path)
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30), notifications=True) as pilot:
        await say(pilot, "see @odd please")
        assert chat.chat_screen.composer.text == "see @odd please"
        assert "odd: not text in UTF-8" in told(chat)
        assert chat.session.branch == ()


async def test_the_tokens_of_what_is_typed_are_counted_and_too_many_are_told(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("ok", max_seq_len=400))
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        await pilot.press(*"four")
        await until(pilot, lambda: " 4 tokens" in shown(chat))
        composer.set_text("x" * 500)
        await until(pilot, lambda: "500 tokens, 100 too many" in shown(chat))
        composer.set_text("/set")
        await until(pilot, lambda: "too many" not in shown(chat))


async def test_a_first_message_is_sent_as_if_it_were_typed(tmp_path: Path) -> None:
    chat = app(tmp_path, ScriptedEngine("A quantization."), first_message="What is EXL2?")
    async with chat.run_test(size=(100, 30)) as pilot:
        await until(pilot, lambda: "A quantization." in shown(chat))
        await idle(pilot)
        assert [message.text for message in chat.session.branch] == ["What is EXL2?", "A quantization."]
        assert chat.chat_screen.composer.text == ""


async def test_one_setting_is_told_with_what_is_near_and_a_change_with_what_was_before(tmp_path: Path) -> None:
    chat = app(tmp_path)
    async with chat.run_test(size=(100, 30)) as pilot:
        for typed, said in (
            ("/set temperature", "temperature 0 (default): How freely"),
            ("/set dry", "dry_base 1.75 (default): "),
            ("/set temprature", "did you mean temperature?"),
            ("/set parameter top_k 4", "top_k 4; before, 0"),
            ("/set system You are a pirate", "there is no setting system; here: /system TEXT"),
        ):
            await say(pilot, typed)
            await until(pilot, lambda said=said: said in told(chat))
        assert "top_p" not in told(chat)


async def test_what_follows_a_command_is_offered_and_tab_takes_it(tmp_path: Path) -> None:
    model = tmp_path / "models" / "small"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    chat = app(tmp_path, ScriptedEngine("Yes."))
    async with chat.run_test(size=(100, 30)) as pilot:
        composer, menu = chat.chat_screen.composer, chat.chat_screen.prompt.menu
        for typed, taken in (
            ("/persona narr", "/persona narrator"),
            ("/preset ste", "/preset steady"),
            ("/group narrator tea", "/group narrator teacher"),
            ("/group by ch", "/group by choice"),
            ("/note dep", "/note depth 4"),
            ("/set tempe", "/set temperature"),
            ("/set context_policy su", "/set context_policy summarise"),
            ("/settings title_by fi", "/settings title_by first line"),
            ("/theme rim", "/theme rime"),
            ("/title_by", "/title_by"),
            (f"/load {tmp_path}/mod", f"/load {tmp_path}/models/"),
            (f"/model {tmp_path}/models/", f"/model {tmp_path}/models/small/"),
            (f"/export {tmp_path}/mo", f"/export {tmp_path}/models/"),
        ):
            composer.set_text(typed)
            if typed != taken:
                await until(pilot, lambda taken=taken: menu.chosen_id == taken)
                await pilot.press("tab")
            await until(pilot, lambda taken=taken: composer.text == taken)
        composer.set_text("/set top_k 4")
        await until(pilot, lambda: menu.chosen_id == "/set top_k 40")
        await pilot.press("enter")
        await until(pilot, lambda: chat.session.generation.sampling.top_k == 4)
        composer.set_text("/set top_k 4")
        await until(pilot, lambda: menu.chosen_id == "/set top_k 40")
        await pilot.press("down", "up", "enter")
        await until(pilot, lambda: composer.text == "/set top_k 40")


async def test_a_refused_command_is_replaced_by_what_is_typed_next_and_is_in_the_history(tmp_path: Path) -> None:
    chat = remembering(tmp_path, "Yes.")
    async with chat.run_test(size=(100, 30)) as pilot:
        composer = chat.chat_screen.composer
        for refused in ("/retyr now", "/model no-such-model", "/tag mine"):
            await say(pilot, refused)
            await until(pilot, lambda refused=refused: composer.text == refused)
            await pilot.press(*"hello")
            assert composer.text == "hello"
            await pilot.press("ctrl+r", *refused, "enter")
            await until(pilot, lambda refused=refused: composer.text == refused)
            composer.set_text("")
        await say(pilot, "/retyr now")
        await until(pilot, lambda: composer.text == "/retyr now")
        await pilot.press("left", "end", "!")
        assert composer.text == "/retyr now!"
