"""Thoughts over the turns of a conversation."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.prompt.thinking import THINK
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY
from tests.chat import families
from tests.chat.scripted_engine import ScriptedEngine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


def test_thoughts_stay_in_the_conversation_and_are_left_out_of_the_next_prompt() -> None:
    store = ConversationStore(None)
    engine = ScriptedEngine(chat_template=families.source("qwen-3"))
    conversation = store.create_conversation()
    said = "<think>\nwell, well\n</think>\n\nHello there"
    for question in ("Hi", "More", "Enough"):
        store.add_message(conversation.id, "user", question)
        engine.will_say(said)
        list(answer(store, engine, conversation.id, TurnOptions(GREEDY)))
    answers = [one for one in store.load(conversation.id).branch if one.role == "assistant"]
    assert [one.text for one in answers] == [said] * 3
    assert {one.record.thinking for one in answers if one.record} == {THINK}
    prompts = [engine.text_with_special_tokens(list(request.prompt_ids)) for request in engine.requests]
    assert not any("well" in prompt for prompt in prompts)
    opening = "<|im_start|>assistant\n"
    for before, after in pairwise(prompts):
        assert after.startswith(before.removesuffix(opening))
    own = engine.spelled("Hello there")
    first, second, third = (list(request.prompt_ids) for request in engine.requests)
    assert second[len(first) : len(first) + len(own)] == own
    assert third[: len(second)] == second


def test_an_answer_cut_inside_thoughts_that_the_prompt_opened_is_known_for_one() -> None:
    store = ConversationStore(None)
    engine = ScriptedEngine(chat_template=families.source("deepseek-r1"))
    conversation = store.create_conversation()
    store.add_message(conversation.id, "user", "Hi")
    engine.will_say("well, well, who")
    options = TurnOptions(GREEDY, max_new_tokens=6)
    list(answer(store, engine, conversation.id, options))
    cut = store.load(conversation.id).branch[-1]
    assert cut.record is not None
    assert cut.record.thinking == replace(THINK, opened=True)
    engine.will_say("well, well\n</think>Hello")
    list(answer(store, engine, conversation.id, TurnOptions(GREEDY), continue_from=cut.id))
    longer = store.load(conversation.id).branch[-1]
    assert longer.text.startswith(cut.text)
    assert longer.record is not None
    assert longer.record.thinking == cut.record.thinking
    store.add_message(conversation.id, "user", "More")
    engine.will_say("x")
    list(answer(store, engine, conversation.id, TurnOptions(GREEDY)))
    prompt = engine.text_with_special_tokens(list(engine.requests[-1].prompt_ids))
    assert "well" not in prompt
    assert "<｜Assistant｜>Hello<｜end▁of▁sentence｜>" in prompt


def test_thinking_can_be_turned_off_for_a_turn() -> None:
    store = ConversationStore(None)
    engine = ScriptedEngine(chat_template=families.source("qwen-3"))
    conversation = store.create_conversation()
    store.add_message(conversation.id, "user", "Hi")
    for thinking in (None, True, False):
        engine.will_say("Hello")
        tip = store.load(conversation.id).branch[-1]
        retried = tip.id if tip.role == "assistant" else None
        list(
            answer(
                store,
                engine,
                conversation.id,
                TurnOptions(GREEDY, speech=AnswerOptions(think=thinking)),
                retry_of=retried,
            )
        )
    usual, on, off = (engine.decode(list(request.prompt_ids)) for request in engine.requests)
    assert usual == on
    assert off == on + "<think>\n\n</think>\n\n"
    record = store.load(conversation.id).branch[-1].record
    assert record is not None
    assert record.thinking == THINK, "the prompt has closed the thoughts that it opened"
