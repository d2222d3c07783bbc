"""Plain lines: nothing is painted twice, nothing but text comes out, and words say who speaks."""

from __future__ import annotations

import io
import os
import termios
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ui.line.harness import plain_mode, until
from tests.ui.scripted_engine import ScriptedEngine


async def test_a_conversation_in_words(tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}{# <think> </think> #}"
    engine = ScriptedEngine("<think>Hm.</think>It is **five**.\n\n```\n5\n```", chat_template=template)
    async with plain_mode(tmp_path, engine) as plain:
        await plain.sees("Note: scripted is loaded.\nYou: ")
        begun = len(plain.text)
        plain.type("2 + 3?\n")
        await plain.sees("```\nYou: ")
        # The terminal has shown what was typed, and the end of its line.
        assert plain.text[begun:] == ("scripted thinks:\nHm.\nscripted says:\nIt is **five**.\n\n```\n5\n```\nYou: ")


async def test_only_whole_lines_are_written_while_an_answer_grows(tmp_path: Path) -> None:
    engine = ScriptedEngine("one line\nand another")
    engine.hold()
    async with plain_mode(tmp_path, engine) as plain:
        plain.type("go\n")
        engine.step(len("one line\nand an"))
        await plain.sees("scripted says:\none line\n")
        assert plain.text.endswith("one line\n")
        engine.release()
        await plain.sees("and another\nYou: ")
        assert plain.text.count("one line") == 1


async def test_a_message_during_an_answer_waits_and_is_said_when_its_turn_comes(tmp_path: Path) -> None:
    engine = ScriptedEngine("first answer", "second answer")
    engine.hold()
    async with plain_mode(tmp_path, engine) as plain:
        plain.type("one\n")
        await until(lambda: plain.chat.session.being_written is not None)
        plain.type("two\n")
        await plain.sees("Note: Your message waits for the present answer.\n")
        engine.release()
        await plain.sees("first answer\nYou said: two\nscripted says:\nsecond answer\nYou: ")


async def test_lines_that_come_at_once_are_one_message(tmp_path: Path) -> None:
    async with plain_mode(tmp_path) as plain:
        plain.type("pasted\nin three\nlines\n")
        await until(lambda: len(plain.chat.session.branch) > 0)
        assert plain.chat.session.branch[0].text == "pasted\nin three\nlines"


async def test_a_backslash_and_an_open_fence_go_on_with_the_next_line(tmp_path: Path) -> None:
    async with plain_mode(tmp_path) as plain:
        plain.type("look:\\\n")
        await until(lambda: plain.chat.console.typed() == "look:")
        plain.type("```\n")
        await until(lambda: plain.chat.console.typed() == "look:\n```")
        plain.type("code\n```\n")
        await until(lambda: len(plain.chat.session.branch) > 0)
        assert plain.chat.session.branch[0].text == "look:\n```\ncode\n```"


async def test_the_end_of_input_quits_and_keeps_what_was_not_sent(tmp_path: Path) -> None:
    async with plain_mode(tmp_path) as plain:
        plain.type("```\nhalf\n")
        await until(lambda: plain.chat.console.typed() == "```\nhalf")
        os.close(plain.keyboard)
        await until(plain.task.done)
    async with plain_mode(tmp_path) as plain:
        await plain.sees("Note: typed before and not sent: ```\nhalf\n")
        plain.chat.leave()
    async with plain_mode(tmp_path) as plain:
        await plain.sees("not sent: ```\nhalf\n")


async def test_commands_say_the_same_as_in_the_app(tmp_path: Path) -> None:
    async with plain_mode(tmp_path) as plain:
        await plain.idle()
        for typed, said in (
            ("/continue\n", "Warning: the last answer was not cut; there is nothing to continue\n"),
            ("/sidebar\n", "Warning: there is no conversation yet\n"),
            ("/set temperature warm\n", "Warning: temperature"),
            ("/quti\n", "did you mean /quit?"),
            ("/help\n", "ctrl+c: Stop the answer and keep its text; twice in a row quits.\n"),
        ):
            plain.type(typed)
            await plain.sees(said)


async def test_stopping_is_told_in_words_and_going_on_repeats_the_last_line(tmp_path: Path) -> None:
    engine = ScriptedEngine("one\ntwo three", " four")
    engine.hold()
    async with plain_mode(tmp_path, engine) as plain:
        plain.type("go\n")
        engine.step(len("one\ntwo"))
        await plain.sees("says:\none\n")
        await until(lambda: plain.chat.session.being_written is not None)
        plain.chat.commands.run("copy-or-stop")
        await plain.sees("two\n(stopped · /continue goes on)\n")
        engine.release()
        begun = len(plain.text)
        plain.type("/continue\n")
        await plain.sees("two four\n")
        await plain.idle()
        assert "scripted says:\ntwo four\n" in plain.text[begun:]
        assert "one\n" not in plain.text[begun:]


HOSTILE = st.text(
    st.one_of(
        st.sampled_from("\x1b\x07\x9b\x9d\x90\u202e\u2066\x00\r\x08\x7f\u2028\ufeff[]52;c`\n\t 日"), st.characters()
    ),
    max_size=60,
)


@given(text=HOSTILE, asked=HOSTILE)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_nothing_but_text_comes_out(tmp_path_factory: pytest.TempPathFactory, text: str, asked: str) -> None:
    engine = ScriptedEngine(text + "\x1b]52;c;AAAA\x07\x9b31m\u202e")
    async with plain_mode(tmp_path_factory.mktemp("hostile"), engine) as plain:
        plain.chat.submit(f"q {asked}")
        await until(lambda: plain.chat.session.last_answer is not None)
        await plain.idle()
        plain.chat.submit(f"/rename t {asked}")
        plain.chat.submit("/open")
        plain.chat.submit("/open 1")
        for command in ("/messages", "/tree", "/search q", "/find q", "/source 2", "/prompt", "/compare", "/settings"):
            plain.chat.submit(command)
        await plain.idle()
    controls = {one for one in plain.text if ord(one) < 32 or 0x7F <= ord(one) < 0xA0}
    assert controls == {"\n"}
    assert not set(plain.text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff")


async def test_the_tokens_that_the_model_was_not_sure_of_are_lines(tmp_path: Path) -> None:
    engine = ScriptedEngine("so One \x1b2", "all of it", "A" * 100)
    async with plain_mode(tmp_path, engine) as plain:
        plain.type("go\n")
        await plain.sees("so One")
        await plain.idle()
        plain.type("/probabilities\n")
        await plain.sees("else 1: X 60.0 % · 2: Y 20.0 % · 3: ␀ (ends the answer) 5.0 %")
        assert "temperature 1" in plain.text
        assert "In this answer 2 of 9 tokens had less than 50 %." in plain.text
        assert "    4  so␣>O · 10.0 % · rank 3 · else 1: X 60.0 % · 2: Y" in plain.text
        assert "    9  ne␣␛>2 · 0.01 % · rank 100 · else 1: X 60.0 %" in plain.text
        assert "\x1b" not in plain.text
        plain.type("again\n")
        await plain.sees("all of it")
        await plain.idle()
        plain.type("/probabilities 1\n")
        await plain.sees("In this answer no token had less than 50 %.")
        plain.type("/probabilities 2\n")
        await plain.sees("only answers have probabilities")
        plain.type("more\n")
        await plain.sees("AAAA")
        await plain.idle()
        begun = len(plain.text)
        plain.type("/probabilities\n")
        await plain.sees("and 64 more; exlchat without --line shows every token")
        assert plain.text[begun:].count("\n") <= 40


async def test_another_token_is_taken_by_numbers(tmp_path: Path) -> None:
    engine = ScriptedEngine("so One two", " more", "never said")
    async with plain_mode(tmp_path, engine) as plain:
        plain.type("go\n")
        await plain.sees("so One two")
        await plain.idle()
        for typed, line in (
            ("1 2", "takes the number N of a message, or N PLACE RANK"),
            ("1 12 1", "there is no place 12; there are 11"),
            ("1 4 0", "there is no token of rank 0"),
            ("1 4 11", "there is no token of rank 11 to be taken; there are 1 to 10"),
        ):
            plain.type(f"/probabilities {typed}\n")
            await plain.sees(line)
        begun = len(plain.text)
        plain.type("/probabilities 1 4 2\n")
        await plain.sees("so Y more")
        await plain.idle()
        # All of it: what is on the console is another answer.
        assert plain.text[begun:].count("scripted says:\nso Y more") == 1
        plain.type("/probabilities 1 3 4\n")
        await until(lambda: [one.text for one in plain.chat.session.branch] == ["go", "so"])
        await plain.idle()
        assert plain.chat.session.branch[-1].status == "complete"
        plain.type("/undo\n")
        await plain.sees("Undone: another token")
        assert plain.chat.session.branch[-1].text == "so Y more"


async def test_what_of_a_schema_answers_are_not_held_to_is_said_once(tmp_path: Path) -> None:
    async with plain_mode(tmp_path, ScriptedEngine("one", "two")) as plain:
        plain.type('/schema {"type": "string", "format": "path"}\n')
        await plain.sees("constraint: schema")
        plain.type("first\n")
        await plain.sees("one\nYou: ")
        plain.type("second\n")
        await plain.sees("two\nYou: ")
        said = "Note: the JSON schema: answers are not held to the format 'path' (the whole)"
        assert plain.text.lower().count(said.lower()) == 1


class Narrow(io.StringIO):
    """A terminal of 30 columns."""

    def fileno(self) -> int:
        _, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (24, 30))
        return theirs


async def test_a_long_line_is_parted_between_words(tmp_path: Path) -> None:
    words = "  the lighthouse keeper's daughter 日本語日本語日本語 " + "x" * 40 + " end"
    async with plain_mode(tmp_path, ScriptedEngine(words), out=Narrow()) as plain:
        plain.type("tell me\n")
        await plain.sees("  the lighthouse keeper's\ndaughter 日本語日本語日本語\n" + "x" * 40 + "\nend\n")
