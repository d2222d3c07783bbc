"""What the next answers have to be, said in the app and line by line, with the bundled guide as the model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore
from exlchat.engine import LocalEngine, load
from exlchat.llm.constraint import Constraint
from exlchat.paths import bundled_model
from exlchat.ui.tui.screens.probabilities import ProbabilitiesScreen
from exlchat.ui.tui.screens.sampling import SamplingScreen
from tests.ui.app_harness import app, idle, say, shown, told, until
from tests.ui.line.harness import line_mode

SCHEMA = (
    '{"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": false}'
)


@pytest.fixture(scope="module")
def guide() -> LocalEngine:
    return load(bundled_model(), device="cpu", kv_cache="fp32")


async def test_in_lines_an_answer_is_held_to_a_form_until_it_is_off(guide: LocalEngine, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(SCHEMA)
    async with line_mode(tmp_path, load=lambda _: guide) as line:
        await line.idle()
        await line.say(f"/schema {tmp_path / 's.json'}")
        await line.sees("constraint: schema")
        await line.say("hello")
        await line.idle()
        assert json.loads(line.chat.session.branch[-1].text)["a"] in ("x", "y")
        await line.say("/choice no idea, yes indeed :: Is it?")
        await line.idle()
        assert [one.text for one in line.chat.session.branch][-2] == "Is it?"
        assert line.chat.session.branch[-1].text in ("no", "yes", "idea", "indeed")
        # It held for that message alone, and the schema goes on.
        assert line.chat.session.generation.speech.constraint == Constraint("json_schema", SCHEMA)
        await line.say("/schema off")
        await line.sees("constraint: anything")
        assert line.chat.session.generation.speech.constraint is None


async def test_what_the_model_cannot_do_is_refused_and_what_held_goes_on(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide) as line:
        await line.idle()
        await line.say("/regex [a-z]+")
        await line.sees("constraint: regex")
        await line.say("/regex (unclosed")
        await line.sees("not a regex")
        await line.until(lambda: line.chat.session.generation.speech.constraint == Constraint("regex", "[a-z]+"))
        await line.say('/set banned_tokens "no such token at all"')
        await line.until(lambda: "no such token at all" in line.text.rpartition("/set banned_tokens")[2])
        await line.until(lambda: line.chat.session.generation.sampling.banned_tokens == ())
        await line.say("/schema nothing-there.json")
        await line.sees("there is no such file")
        line.type("\x15")
        await line.say("/draft magic")
        await line.sees("must be one of auto, off, ngram, model")


async def test_texts_are_added_one_by_one(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide) as line:
        await line.idle()
        for typed in ("/ban the", '/ban " a"', "/stop END", "/stop END", "/begin Well, ", "/think 40", "/think off"):
            await line.say(typed)
        await line.until(lambda: line.chat.session.generation.speech.think is False)
        speech = line.chat.session.generation.speech
        assert speech.ban == ("the", " a")
        assert speech.stop == ("END",)
        assert speech.begin == "Well,"
        assert speech.thinking_budget == 40
        await line.say("How do I load a model?")
        await line.idle()
        answer = line.chat.session.branch[-1]
        assert answer.text.startswith("Well,")
        assert not re.search(r"the| a", answer.text.lower())
        assert answer.record is not None
        assert answer.record.speech == speech
        for typed in ("/ban off", "/stop off", "/begin off"):
            await line.say(typed)
        await line.until(lambda: line.chat.session.generation.speech.begin == "")
        assert line.chat.session.generation.speech.ban == line.chat.session.generation.speech.stop == ()


async def test_the_app_shows_what_was_kept_and_what_is_asked(guide: LocalEngine, tmp_path: Path) -> None:
    chat = app(tmp_path, load=lambda _: guide)
    async with chat.run_test(size=(100, 60)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/logprobs 2")
        await say(pilot, "/set max_tokens 6")
        await say(pilot, "How do I load a model?")
        await idle(pilot)
        answer = chat.session.branch[-1]
        assert answer.record is not None
        assert answer.record.chances is not None
        await pilot.press("ctrl+up", "i")
        await until(pilot, lambda: isinstance(chat.screen, ProbabilitiesScreen) and bool(chat.screen._offered))
        assert isinstance(chat.screen, ProbabilitiesScreen)
        assert len(chat.screen._offered) == 2
        for _ in range(7):
            await pilot.press("right")
        await pilot.pause()
        assert chat.screen.tokens.place == 6
        assert "behind the last token · what may follow was not kept" in shown(chat)
        await pilot.press("escape")
        await pilot.press("f6")
        await pilot.pause()
        assert isinstance(chat.screen, SamplingScreen)
        assert "logprobs" in shown(chat)
        await pilot.press("escape")
        await say(pilot, "/regex (unclosed")
        await until(pilot, lambda: "not a regex" in told(chat))
        assert chat.session.generation.speech.constraint is None


async def test_an_answer_that_repeats_itself_says_so_and_can_go_on(guide: LocalEngine, tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "conversations.db")
    chat = app(tmp_path, load=lambda _: guide, store=store)
    async with chat.run_test(size=(100, 40)) as pilot:
        await until(pilot, lambda: chat.chat_screen.model.info is not None)
        await say(pilot, "/regex (ab)*c")
        await say(pilot, "/set logit_bias b=100, c=-100")
        await say(pilot, "/set max_tokens 900")
        await say(pilot, "hello")
        await until(pilot, lambda: bool(chat.session.branch) and not chat.session.busy, 60)
        await idle(pilot)
        record = chat.session.branch[-1].record
        assert record is not None
        assert record.finish_reason == "repeating"
        assert "stopped: it said the same over and over · /continue goes on" in shown(chat)
        assert chat.chat_screen.situation().answer_was_cut
