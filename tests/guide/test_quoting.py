"""In the chat the guide quotes a fact, or says that it knows none: the real model, held to the text."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.app.guide.facts import load_facts
from exlchat.app.guide.quoting import UNKNOWN, Quoting, quoted
from exlchat.app.options import AppOptions
from exlchat.app.services import open_services
from exlchat.engine import LocalEngine, load
from exlchat.paths import bundled_model
from tests.ui.app_harness import app, idle, say
from tests.ui.line.harness import Line, line_mode


@pytest.fixture(scope="module")
def guide() -> LocalEngine:
    return load(bundled_model(), device="cpu", kv_cache="fp32")


def last(line: Line) -> str:
    return line.chat.session.branch[-1].text


async def test_it_quotes_the_fact_with_its_page(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide, quoting=Quoting()) as line:
        await line.idle()
        await line.say("can you do GGUF?")
        await line.idle()
        assert last(line) == quoted(load_facts()["gguf"])
        assert "more in docs/models.md" in last(line)
        record = line.chat.session.branch[-1].record
        assert record is not None
        assert record.finish_reason == "stop_token"
        # What it was held to is the answer's alone.
        assert line.chat.session.generation.speech.constraint is None
        await line.say("thx")
        await line.idle()
        assert last(line) == load_facts()["thanks"].answers[0]


async def test_it_says_that_it_does_not_know(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide, quoting=Quoting()) as line:
        await line.idle()
        await line.say("zxcvb mnbvc")
        await line.idle()
        assert last(line) == quoted(load_facts()[UNKNOWN])


async def test_where_words_leave_several_facts_the_model_says_which(guide: LocalEngine, tmp_path: Path) -> None:
    question = "where on the internet would I find models for this"
    texts = Quoting().answers(question)
    assert len(texts) > 1
    async with line_mode(tmp_path, load=lambda _: guide, quoting=Quoting()) as line:
        await line.idle()
        await line.say(question)
        await line.idle()
        assert last(line) in texts
        assert last(line) == quoted(load_facts()["where-models"])


async def test_another_answer_is_another_fact_until_there_is_none(guide: LocalEngine, tmp_path: Path) -> None:
    chat = app(tmp_path, load=lambda _: guide, quoting=Quoting())
    async with chat.run_test(size=(100, 40)) as pilot:
        await idle(pilot)
        await say(pilot, "how do i swipe")
        await idle(pilot)
        given = [chat.session.branch[-1].text]
        while wanted := Quoting().answers("how do i swipe", given):
            await say(pilot, "/retry")
            await idle(pilot)
            given.append(chat.session.branch[-1].text)
            assert given[-1] in wanted
        assert len(set(given)) == len(given) > 1
        await say(pilot, "/retry")
        await idle(pilot)
        assert len(chat.session.store.alternatives(chat.session.branch[-1].id)) == len(given)


async def test_a_cut_quotation_goes_on_with_its_rest(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide, quoting=Quoting()) as line:
        await line.idle()
        await line.say("/set max_tokens 9")
        await line.say("what is a token")
        await line.idle()
        cut, whole = last(line), quoted(load_facts()["token"])
        assert whole.startswith(cut)
        assert cut != whole
        await line.say("/set max_tokens none")
        await line.say("/continue")
        await line.idle()
        assert last(line) == whole


async def test_a_form_that_was_asked_for_goes_before_quoting(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide, quoting=Quoting()) as line:
        await line.idle()
        await line.say("/choice yes, no :: can you do GGUF?")
        await line.idle()
        assert last(line) in ("yes", "no")


async def test_a_persona_speaks_for_itself(guide: LocalEngine, tmp_path: Path) -> None:
    async with line_mode(tmp_path, load=lambda _: guide, quoting=Quoting()) as line:
        await line.idle()
        await line.say("/persona narrator")
        await line.sees("speaks")
        await line.say("/set max_tokens 5")
        await line.say("can you do GGUF?")
        await line.idle()
        record = line.chat.session.branch[-1].record
        assert record is not None
        assert record.speech.constraint is None


async def test_other_models_answer_themselves(tmp_path: Path) -> None:
    async with line_mode(tmp_path, quoting=Quoting()) as line:
        await line.idle()
        await line.say("can you do GGUF?")
        await line.idle()
        assert last(line) not in Quoting().answers("can you do GGUF?")


def test_every_start_of_the_chat_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))
    services = open_services(AppOptions(bundled_model()))
    assert services.quoting is not None
    services.close()
