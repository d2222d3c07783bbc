"""An answer is given again exactly from its record, by the bundled guide on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.model import Message
from exlchat.chat.reproduce import NotReproducibleError, request_again
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed
from exlchat.chat.turn_plan import TurnOptions
from exlchat.engine import load
from exlchat.llm.events import Finished
from exlchat.llm.port import Engine
from exlchat.llm.sampling import SamplingSettings
from exlchat.paths import bundled_model

# With the whole vocabulary in play, last bits would decide now and then: a prompt that is read again has others.
WARM = SamplingSettings(temperature=4.0, top_k=40, top_p=1.0, min_p=0.0)


@pytest.fixture(scope="module")
def guide() -> Iterator[Engine]:
    engine = load(bundled_model(), device="cpu")
    yield engine
    engine.unload()


def closed(store: ConversationStore, engine: Engine, ident: str, **how: object) -> Message:
    options = TurnOptions(WARM, max_new_tokens=12, speech=AnswerOptions(stop=("zzz",)))
    (last,) = [
        event
        for event in answer(store, engine, ident, replace(options, seed=how.pop("seed", None)), **how)
        if isinstance(event, AnswerClosed)
    ]
    return last.message


def again(engine: Engine, store: ConversationStore, message: Message) -> tuple[int, ...]:
    *_, last = engine.generate(request_again(store, engine, message.id))
    assert isinstance(last, Finished)
    return last.token_ids


def test_answers_are_given_again_from_their_records(guide: Engine) -> None:
    store = ConversationStore(None)
    ident = store.create_conversation().id
    store.add_message(ident, "system", "Be brief.", persona={"name": "Brief"})
    store.add_message(ident, "user", "How do I load a model?")
    first = closed(store, guide, ident, seed=20)
    # Of this seed: not every last token can be drawn anew, as half a character cannot.
    second = closed(store, guide, ident, retry_of=first.id, seed=21)
    third = closed(store, guide, ident, continue_from=second.id, seed=22)
    store.add_message(ident, "user", "And a theme?")
    fourth = closed(store, guide, ident, seed=23)
    assert first.token_ids != second.token_ids, "warm enough that only the seed brings it back"
    assert third.edited_from == second.id
    assert third.record is not None
    # Its last token was taken back and drawn anew: it may have been cut within a word.
    assert third.record.begun_tokens == len(second.token_ids) - 1
    assert third.record.healed == second.token_ids[-1:]
    assert third.text == guide.decode(third.token_ids)
    assert third.text.startswith(second.text)
    assert third.record.persona == "Brief"
    for one in (fourth, first, third, second):
        assert one.record is not None
        assert again(guide, store, one) == one.token_ids[one.record.begun_tokens :]


def test_what_cannot_be_given_again_says_why(guide: Engine) -> None:
    store = ConversationStore(None)
    ident = store.create_conversation().id
    question = store.add_message(ident, "user", "How do I load a model?")
    first = closed(store, guide, ident, seed=3)
    store.edit(question.id, "How do I load a theme?", carry=True)
    copy = store.load(ident).branch[-1]
    assert copy.token_ids == first.token_ids
    with pytest.raises(NotReproducibleError, match="no longer what the model saw"):
        request_again(store, guide, copy.id)
    by_hand = store.edit(first.id, "Like this.")
    with pytest.raises(NotReproducibleError, match="written by hand"):
        request_again(store, guide, by_hand.id)
    assert first.record is not None
    other = store.begin_answer(ident, question.id)
    store.close_answer(other.id, "x", [1], "complete", record=replace(first.record, model="other"))
    with pytest.raises(NotReproducibleError, match="an answer of other"):
        request_again(store, guide, other.id)


def test_an_edited_answer_goes_on(guide: Engine) -> None:
    store = ConversationStore(None)
    ident = store.create_conversation().id
    store.add_message(ident, "user", "How do I load a model?")
    edited = store.edit(closed(store, guide, ident).id, "You load it")
    longer = closed(store, guide, ident, continue_from=edited.id)
    assert longer.text.startswith("You load it")
    assert len(longer.text) > len("You load it")
    assert longer.edited_from == edited.id
    assert [one.text for one in store.alternatives(longer.id)][1:] == ["You load it", longer.text]
    assert again(guide, store, longer) == longer.token_ids[longer.record.begun_tokens :]
