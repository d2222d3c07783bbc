"""What `exlchat ask` writes of an answer with thoughts."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from exlchat.app.library.memory import ModelMemory
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY
from exlchat.ui.headless.answer import AnswerTelling
from exlchat.ui.headless.output import AnswerOutput, JsonLinesOutput, TextOutput
from exlchat.ui.terminal.exit_codes import ExitCode
from exlchat.ui.terminal.standard_streams import ErrorLines
from tests.ui.scripted_engine import CHATML, ScriptedEngine

THINKING = CHATML + "{# thoughts: <think> </think> #}"
SAID = "<think>\nTwo\nwords?\n</think>\n\n**Yes.** <b>"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(
    output: AnswerOutput, said: str, *, out: io.StringIO, err: io.StringIO, limit: int | None = None
) -> tuple[ExitCode, str]:
    """What the program's exit code is, and what is kept."""
    store = ConversationStore(None)
    conversation_id = store.create_conversation().id
    store.add_message(conversation_id, "user", "Well?")
    engine = ScriptedEngine(said, chat_template=THINKING)
    code = ExitCode.ERROR
    with redirect_stdout(out), redirect_stderr(err):
        telling = AnswerTelling(output, ErrorLines(), engine=engine, memory=ModelMemory(None), kept=None)
        for event in answer(store, engine, conversation_id, TurnOptions(GREEDY, max_new_tokens=limit)):
            code = telling.show(event)
    return code, store.load(conversation_id).branch[-1].text


def test_standard_output_gets_the_answer_alone_and_the_thoughts_are_kept() -> None:
    out, err = io.StringIO(), io.StringIO()
    assert told(TextOutput(), SAID, out=out, err=err) == (ExitCode.OK, SAID)
    assert out.getvalue() == "**Yes.** <b>\n"
    assert err.getvalue() == ""


def test_a_terminal_shows_that_it_thinks_and_then_the_answer() -> None:
    out, err = Terminal(), Terminal()
    told(TextOutput(), SAID, out=out, err=err)
    assert out.getvalue() == "**Yes.** <b>\n"
    assert "thinking: 2 words so far" in err.getvalue()
    assert err.getvalue().endswith("\r\x1b[2K")


def test_json_lines_tell_the_two_apart() -> None:
    out = io.StringIO()
    told(JsonLinesOutput(), SAID, out=out, err=io.StringIO())
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    for kind, text in (("thinking", "Two\nwords?"), ("text", "**Yes.** <b>")):
        assert "".join(one["text"] for one in events if one["type"] == kind) == text
    assert (events[-1]["type"], events[-1]["text"]) == ("finished", SAID)


@pytest.mark.parametrize(("said", "shown"), [("<think>\nHm, and then", ""), ("<thi", "<thi\n"), ("Yes.\n", "Yes.\n")])
def test_what_is_held_back_comes_out_at_the_end(said: str, shown: str) -> None:
    out = io.StringIO()
    assert told(TextOutput(), said, out=out, err=io.StringIO())[1] == said
    assert out.getvalue() == shown


def test_an_answer_that_was_cut_among_its_thoughts_goes_on_with_them() -> None:
    store = ConversationStore(None)
    conversation_id = store.create_conversation().id
    store.add_message(conversation_id, "user", "Well?")
    options = TurnOptions(GREEDY)
    for _ in answer(store, ScriptedEngine("<think>\nTwo ", chat_template=THINKING), conversation_id, options):
        pass
    cut = store.load(conversation_id).branch[-1].id
    out = io.StringIO()
    engine = ScriptedEngine("words?\n</think>\n\nYes.", chat_template=THINKING)
    with redirect_stdout(out):
        telling = AnswerTelling(TextOutput(), ErrorLines(), engine=engine, memory=ModelMemory(None), kept=None)
        for event in answer(store, engine, conversation_id, options, continue_from=cut):
            telling.show(event)
    assert store.load(conversation_id).branch[-1].text == "<think>\nTwo words?\n</think>\n\nYes."
    assert out.getvalue() == "Yes.\n"
