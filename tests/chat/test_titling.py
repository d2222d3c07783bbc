"""A title that the model makes: from its answer into the database."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.titling import make_title
from exlchat.chat.turn_events import TitleMade
from tests.ui.scripted_engine import CHATML, ScriptedEngine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path))


def asked(store: ConversationStore, *said: str) -> str:
    conversation_id = store.create_conversation().id
    store.add_message(conversation_id, "system", "Be brief.")
    for number, text in enumerate(said):
        store.add_message(conversation_id, "assistant" if number % 2 else "user", text)
    return conversation_id


def titled(answer: str, *, chat_template: str = CHATML) -> str:
    store = ConversationStore(None)
    conversation_id = asked(store, "How do I bake bread?\nWith rye.", "With flour.")
    list(make_title(store, ScriptedEngine(answer, chat_template=chat_template), conversation_id, template=None))
    return store.load(conversation_id).title


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ("Baking rye bread", "Baking rye bread"),
        ('"Baking Bread."', "Baking Bread"),
        ("**Title: Bread**\nThis title says …", "Bread"),
        ("\n\n# Brot backen\n", "Brot backen"),
        ("Bread\x1b[2J \u202eevil", "Bread [2J evil"),
    ],
)
def test_the_answers_first_line_is_the_title(answer: str, title: str) -> None:
    assert titled(answer) == title


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n ",
        '""',
        "Certainly, I would be glad to think about a title for this conversation",
        "<think>The user wants a title for it, so I",
        "。i。\ufffd。\nand more",
        "-- *** --",
    ],
)
def test_what_is_no_title_leaves_the_first_line(answer: str) -> None:
    assert titled(answer) == "How do I bake bread?"


def test_a_model_that_was_told_not_to_think_and_does_is_not_asked() -> None:
    template = CHATML + "<think>\n{# ends with </think> #}"
    assert titled("Bread", chat_template=template) == "How do I bake bread?"
    quiet = CHATML + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
    assert titled("Bread", chat_template=quiet) == "Bread"


def test_what_is_asked_is_the_first_exchange_without_thoughts_and_greedily() -> None:
    store, engine = ConversationStore(None), ScriptedEngine("Bread")
    conversation_id = asked(store, "Bread?", "<think>Hm.</think>Flour.", "And then?", "Water.")
    assert list(make_title(store, engine, conversation_id, template=None))[-1] == TitleMade("Bread")
    (prompt,) = engine.prompts
    assert "User: Bread?\n\nAssistant: Flour.<|im_end|>" in prompt
    assert "Be brief" not in prompt
    assert engine.requests[0].sampling.greedy


def test_a_users_title_stays_and_nothing_is_asked_for_it() -> None:
    store, engine = ConversationStore(None), ScriptedEngine("Bread")
    conversation_id = asked(store, "Bread?", "Flour.")
    store.rename(conversation_id, "Mine")
    assert list(make_title(store, engine, conversation_id, template=None)) == [TitleMade(None)]
    assert (store.load(conversation_id).title, engine.prompts) == ("Mine", [])


def test_a_title_given_while_the_model_thinks_about_one_stays() -> None:
    store = ConversationStore(None)
    conversation_id = asked(store, "Bread?", "Flour.")
    steps = make_title(store, ScriptedEngine("Bread"), conversation_id, template=None)
    next(steps)
    store.rename(conversation_id, "Mine")
    assert list(steps)[-1] == TitleMade(None)
    assert store.load(conversation_id).title == "Mine"


def test_nothing_is_asked_before_there_is_an_exchange_or_without_room() -> None:
    for said, room in ((("Bread?",), 4096), (("Bread?", "Flour."), 64)):
        store, engine = ConversationStore(None), ScriptedEngine("Bread", max_seq_len=room)
        assert list(make_title(store, engine, asked(store, *said), template=None)) == [TitleMade(None)]
        assert engine.prompts == []
