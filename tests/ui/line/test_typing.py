"""What helps with typing in the line mode: files, counted tokens, vi's keys, what was typed before."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from exlchat.config.schema import Settings
from exlchat.ui.line.mentions import MentionCompleter
from tests.ui.line.harness import line_mode
from tests.ui.scripted_engine import ScriptedEngine


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "my notes.txt").write_text("twelve chars")
    (folder / "odd").write_bytes(b"\xff")
    monkeypatch.chdir(folder)
    return folder


def test_names_of_files_are_offered_with_their_tokens(work: Path) -> None:
    completer = MentionCompleter(len)
    (one,) = completer.get_completions(Document("say\nsee @note"), CompleteEvent())
    assert (one.text, one.start_position, one.display_meta_text) == ('@"my notes.txt" ', -5, "12 tokens")
    (odd,) = completer.get_completions(Document("@od"), CompleteEvent())
    assert "not text" in odd.display_meta_text
    assert list(completer.get_completions(Document("@odd"), CompleteEvent())) == []
    assert list(completer.get_completions(Document("me@od"), CompleteEvent())) == []


async def test_a_file_goes_with_the_message_and_is_counted_before(tmp_path: Path, work: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("Read.")) as line:
        await line.idle()
        line.type('see @"my notes.txt"')
        await line.until(lambda: line.screen._below().startswith("with my notes.txt · "))
        line.type("\r")
        await line.idle()
        assert line.chat.session.branch[0].text.endswith("my notes.txt:\n\n```txt\ntwelve chars\n```")
        await line.say("and @odd")
        await line.sees("Not sent: odd: not text in UTF-8")
        await line.until(lambda: line.message == "and @odd")


async def test_vi_keys_where_they_are_wanted(tmp_path: Path) -> None:
    settings = Settings(temperature=0.0, editing="vi")
    async with line_mode(tmp_path, ScriptedEngine("One."), settings=settings) as line:
        await line.idle()
        line.type("hello brave world")
        await line.until(lambda: line.message == "hello brave world")
        line.type("\x1b")
        await line.until(lambda: line.screen.app.vi_state.input_mode.name == "NAVIGATION")
        assert line.screen._below().startswith("NORMAL · ")
        line.type("bdb")
        await line.until(lambda: line.message == "hello world")


async def test_what_was_typed_before_is_listed_by_a_part_of_it(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("a", "b")) as line:
        for text in ("the first", "a second"):
            line.chat.services.typed.add(text)
        await line.say("/history FIRST")
        await line.sees("the first")
        assert "a second" not in line.text
        await line.say("/history zzz")
        await line.sees("nothing that was typed before has that in it")


async def test_a_first_message_is_sent_as_if_it_were_typed(tmp_path: Path) -> None:
    async with line_mode(tmp_path, ScriptedEngine("A quantization."), first_message="What is EXL2?") as line:
        await line.sees("A quantization.")
        assert line.message == ""


async def test_a_refused_command_is_replaced_by_what_is_typed_next_and_is_in_the_history(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        await line.say("/retyr now")
        await line.until(lambda: line.message == "/retyr now")
        line.type("hello")
        await line.until(lambda: line.message == "hello")
        line.type("\x03")
        await line.until(lambda: line.message == "")
        line.type("\x1b[A")
        await line.until(lambda: line.message == "hello")
        line.type("\x1b[A")
        await line.until(lambda: line.message == "/retyr now")


async def test_ctrl_c_clears_the_line_and_quits_only_from_an_empty_one(tmp_path: Path) -> None:
    async with line_mode(tmp_path) as line:
        await line.idle()
        for typed in ("one", "two"):
            line.type(typed)
            await line.until(lambda typed=typed: line.message == typed)
            line.type("\x03")
            await line.until(lambda: line.message == "")
        assert not line.chat.leaving
        line.type("\x03\x03")
        await line.until(lambda: line.chat.leaving)
