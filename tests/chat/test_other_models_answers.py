"""A conversation that changed its model: ids of the one before mean something else to the next, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.chat.model import AnswerRecord, Message
from exlchat.chat.prompt.answer_ids import with_own_ids
from exlchat.chat.prompt.cost import prompt_cost
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.sampling import GREEDY
from tests.chat import templates
from tests.chat.scripted_engine import Reply, ScriptedEngine, space_prefixing_tokenizer

OPTIONS = TurnOptions(sampling=GREEDY)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def first() -> ScriptedEngine:
    return ScriptedEngine(chat_template=templates.CHATML)


def other(**changes: object) -> ScriptedEngine:
    engine = ScriptedEngine(space_prefixing_tokenizer(), chat_template=templates.CHATML)
    engine.with_info(name="other", **changes)
    return engine


def told(engine: ScriptedEngine) -> str:
    """The first prompt without spaces, which this tokenizer moves about."""
    return engine.text_with_special_tokens(list(engine.requests[0].prompt_ids)).replace(" ", "")


def test_answers_of_another_model_are_encoded_like_any_text() -> None:
    store = ConversationStore(None)
    conversation = store.create_conversation().id
    asked = store.add_message(conversation, "user", "Hello?")
    second = other()
    # To the model that wrote it, 2 was a word; to this one it is <|im_start|>, which decodes to nothing.
    ids = (2, *second.encode("Hi there", special=False))
    record = AnswerRecord("first", "model", GREEDY, None, "stop_token")
    written = store.begin_answer(conversation, asked.id, token_ids=ids, record=record)
    store.close_answer(written.id, "Hi there", ids, "complete", record=record)
    store.add_message(conversation, "user", "And you?")
    second.will_say("Well")
    list(answer(store, second, conversation, OPTIONS))
    text = "<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\nHithere<|im_end|>\n"
    assert told(second).startswith(text)
    cost = prompt_cost(second, store.load(conversation).branch[:-1])
    assert cost.prompt_tokens == len(second.requests[0].prompt_ids)


def test_ids_beyond_the_vocabulary_are_left_out(first: ScriptedEngine) -> None:
    """As when a folder of the same name now holds another model."""
    message = Message("a", None, "assistant", "Hi there", 0.0, token_ids=(5, 399))
    first.with_info(vocab_size=400)
    assert with_own_ids(message, first.info) == message
    first.with_info(vocab_size=399)
    assert with_own_ids(message, first.info).token_ids == ()


def test_a_cut_answer_goes_on_with_another_model(first: ScriptedEngine) -> None:
    store = ConversationStore(None)
    conversation = store.create_conversation().id
    store.add_message(conversation, "user", "Hello?")
    first.replies.append(Reply(first.encode("Hi there, how"), reason="max_new_tokens"))
    closed = list(answer(store, first, conversation, OPTIONS))[-1]
    assert isinstance(closed, AnswerClosed)
    second = other()
    second.will_say("are you")
    list(answer(store, second, conversation, OPTIONS, continue_from=closed.message.id))
    assert told(second).endswith("Hithere,how")
    assert store.load(conversation).branch[-1].text.startswith("Hi there, how")
