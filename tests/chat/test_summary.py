"""Summaries: how thoughts are told from them, where formats show them, and that none is made twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.chat.model import Message
from exlchat.chat.prompt.ids import PromptMessage
from exlchat.chat.prompt.summary import SUMMARY_HEAD, summarise, summary_possible, with_summary
from exlchat.chat.prompt_format import PromptFormat
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerStarted, Summarising
from exlchat.llm.port import Cancellation
from tests.chat import templates
from tests.chat.scripted_engine import ScriptedEngine
from tests.chat.talk import ANSWER, QUESTION, Talk, options, started

LIMIT = 1024
MESSAGE = "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
OPENING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKING = f"{{% for message in messages %}}{MESSAGE}{{% endfor %}}{OPENING}".replace(
    "assistant\n", "assistant\n<think>\n"
)
IGNORING = f"{{% for message in messages if message.role != 'system' %}}{MESSAGE}{{% endfor %}}{OPENING}"
SHOWING_LAST_PARAGRAPHS = IGNORING.replace("message.content", "message.content.split('\\n\\n')[-1]")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


def talk_with(template: str, *, max_seq_len: int = LIMIT, path: Path | None = None, system: str | None = None) -> Talk:
    engine = ScriptedEngine(chat_template=template, max_seq_len=max_seq_len)
    return Talk(ConversationStore(path), engine, system=system)


def summary_of(template: str, said: str) -> str | None:
    engine = ScriptedEngine(chat_template=template, max_seq_len=LIMIT)
    engine.will_say(said)
    work = summarise(
        engine, PromptFormat("model", template), [Message("a", None, "user", "Hello", 0.0)], "", Cancellation()
    )
    while True:
        try:
            next(work)
        except StopIteration as end:
            return str(end.value)


@pytest.mark.parametrize(
    ("template", "said", "summary"),
    [
        (THINKING, "Okay, the user wants", ""),
        (THINKING, "Okay, the user wants</think>\n\nA greeting.", "A greeting."),
        (THINKING, "Okay</think>\n<think>once more", ""),
        (templates.CHATML, "<think>Okay, the user wants", ""),
        (templates.CHATML, "<think>Okay</think>A greeting.", "A greeting."),
        (templates.CHATML, "A greeting.", "A greeting."),
        # The whole of a template is text of its author: one that opens and closes thoughts leaves none open.
        (THINKING.replace("<think>\n", "<think>\n\n</think>\n\n"), "A greeting.", "A greeting."),
    ],
)
def test_thoughts_are_no_summary(template: str, said: str, summary: str) -> None:
    assert summary_of(template, said) == summary


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_format_that_ignores_system_messages_gets_the_summary_in_the_first_message(system: str | None) -> None:
    talk = talk_with(IGNORING, system=system)
    events = talk.until_cut("summarise")
    assert talk.prompt.startswith(f"<|im_start|>user\n{SUMMARY_HEAD}\nSummary number 1.\n\n{QUESTION}")
    assert "as a summary only" in str(started(events).context_notice)


def test_where_no_summary_can_be_shown_none_is_made_and_none_is_claimed() -> None:
    talk = talk_with(SHOWING_LAST_PARAGRAPHS)
    form = PromptFormat("model", SHOWING_LAST_PARAGRAPHS)
    assert with_summary(talk.engine, [PromptMessage("user", "Hello")], "Said before.", form) is None
    events = talk.until_cut("summarise")
    assert not any(isinstance(event, Summarising) for event in events)
    assert "no longer seen" in str(started(events).context_notice)
    assert not talk.record.summary


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_summary_outlives_an_answer_that_came_to_nothing_and_a_restart(tmp_path: Path, how: str) -> None:
    talk = talk_with(templates.CHATML, path=tmp_path / "conversations.db", system="Be brief.")
    talk.until_cut("drop")
    talk.store.add_message(talk.id, "user", "And then?")
    talk.engine.replies.clear()
    talk.engine.will_say("Said before.")
    talk.engine.will_say("", raises=RuntimeError("no memory"))
    turn = answer(talk.store, talk.engine, talk.id, options("summarise"))
    if how == "stopped":
        assert any(isinstance(event, AnswerStarted) for event in turn)
        turn.close()
    else:
        with pytest.raises(RuntimeError, match="no memory"):
            list(turn)
    assert talk.said[-1].text == "And then?"
    talk.store.close()
    talk.store = ConversationStore(tmp_path / "conversations.db")
    events = talk.answer("summarise")
    assert not any(isinstance(event, Summarising) for event in events)
    assert f"{SUMMARY_HEAD}\nSaid before." in talk.prompt
    assert talk.record.summary == "Said before."
    talk.store.close()


def test_the_next_summary_takes_in_one_that_no_answer_has_seen() -> None:
    talk = talk_with(templates.CHATML, system="Be brief.")
    talk.until_cut("drop")
    talk.store.keep_summary(str(talk.record.seen_from), "Kept.")
    talk.until_cut("drop")
    talk.ask("summarise")
    asked = talk.engine.text_with_special_tokens(list(talk.engine.requests[-2].prompt_ids))
    assert "Kept." in asked
    assert "fox 0?" not in asked


def test_in_a_context_too_small_for_a_summary_no_room_is_kept_for_one() -> None:
    kept: dict[str, list[tuple[int, int]]] = {}
    for policy in ("drop", "summarise"):
        talk = talk_with(templates.CHATML, max_seq_len=240)
        assert not summary_possible(talk.engine, PromptFormat("model", templates.CHATML))
        kept[policy] = [
            (len(talk.engine.requests[-1].prompt_ids), len(talk.said))
            for _ in range(8)
            if talk.ask(policy)  # type: ignore[arg-type]
        ]
        assert ANSWER.strip() in talk.prompt
    assert kept["summarise"] == kept["drop"]
