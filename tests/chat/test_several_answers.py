"""Several answers to one message, kept while they grow."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.chat.reproduce import request_again
from exlchat.chat.several_answers import several_answers
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, OneAnswer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.engine import load
from exlchat.llm.events import Finished, PrefillProgress
from exlchat.llm.sampling import SamplingSettings
from exlchat.paths import bundled_model
from tests.chat.scripted_engine import Reply, ScriptedEngine
from tests.chat.templates import CHATML

WARM = TurnOptions(SamplingSettings(temperature=0.8), max_new_tokens=12)


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "conversations.db")


def asked(store: ConversationStore) -> str:
    ident = store.create_conversation().id
    store.add_message(ident, "user", "How do I load a model?")
    return ident


def engine_that_says(*texts: str) -> ScriptedEngine:
    engine = ScriptedEngine(chat_template=CHATML)
    engine.replies = [Reply(engine.encode(text)) for text in texts]
    return engine


def closed(events: list[object]) -> list[AnswerClosed]:
    ends = {one.index: one.event for one in events if isinstance(one, OneAnswer)}
    assert all(isinstance(end, AnswerClosed) for end in ends.values())
    return [end for _, end in sorted(ends.items()) if isinstance(end, AnswerClosed)]


def test_they_are_alternatives_and_the_last_is_the_tip(store: ConversationStore) -> None:
    ident = asked(store)
    engine = engine_that_says("one", "number two", "three")
    events: list[object] = list(several_answers(store, engine, ident, WARM, seeds=[1, 2, 3]))
    assert isinstance(events[0], OneAnswer)
    assert isinstance(events[0].event, AnswerStarted)
    assert any(isinstance(event, PrefillProgress) for event in events)
    branch = store.load(ident).branch
    assert [message.text for message in branch] == ["How do I load a model?", "three"]
    alternatives = store.alternatives(branch[-1].id)
    assert [one.text for one in alternatives] == ["one", "number two", "three"]
    assert [one.status for one in alternatives] == ["complete"] * 3
    assert [one.record.stats.seed for one in alternatives if one.record and one.record.stats] == [1, 2, 3]
    assert [end.message for end in closed(events)] == list(alternatives)


def test_beside_an_answer_that_is_there(store: ConversationStore) -> None:
    ident = asked(store)
    engine = engine_that_says("first", "one", "two")
    list(several_answers(store, engine, ident, WARM, seeds=[None]))
    old = store.load(ident).branch[-1]
    list(several_answers(store, engine, ident, WARM, seeds=[None, None], retry_of=old.id))
    assert [one.text for one in store.alternatives(old.id)] == ["first", "one", "two"]


def test_when_nobody_wants_more_what_there_is_is_kept(store: ConversationStore) -> None:
    ident = asked(store)
    engine = engine_that_says("some long words", "other long words")
    turn = several_answers(store, engine, ident, WARM, seeds=[1, 2])
    texts = 0
    for event in turn:
        texts += isinstance(event, OneAnswer) and not isinstance(event.event, AnswerStarted)
        if texts == 5:
            break
    turn.close()
    branch = store.load(ident).branch
    kept = store.alternatives(branch[-1].id)
    assert [one.status for one in kept] == ["partial", "partial"]
    assert all("long words".startswith(one.text[-2:]) or one.text in "some other" for one in kept)
    assert all(one.text for one in kept)
    assert engine.closed == 2


def test_those_without_a_word_are_gone_and_the_tip_is_where_it_was(store: ConversationStore) -> None:
    ident = asked(store)
    before = store.load(ident).tip_id
    turn = several_answers(store, engine_that_says("a", "b"), ident, WARM, seeds=[1, 2])
    assert isinstance(next(turn), OneAnswer)
    assert isinstance(next(turn), OneAnswer)
    assert len(store.alternatives(store.load(ident).branch[-1].id)) == 2
    turn.close()
    assert store.load(ident).tip_id == before


@pytest.mark.parametrize("texts", [("", "", ""), ("some words", "", ""), ("", "some words", "")])
def test_stopped_in_their_order_the_tip_stays_where_something_is(
    store: ConversationStore, texts: tuple[str, ...]
) -> None:
    ident = asked(store)
    list(several_answers(store, engine_that_says("there before"), ident, WARM, seeds=[1]))
    old = store.load(ident).branch[-1]
    engine = ScriptedEngine(chat_template=CHATML)
    engine.replies = [Reply(engine.encode(text), reason="cancelled") for text in texts]
    events: list[object] = list(several_answers(store, engine, ident, WARM, seeds=[1, 2, 3], retry_of=old.id))
    assert [end.kept for end in closed(events)] == [bool(text) for text in texts]
    assert store.load(ident).branch[-1].text == ("".join(texts) or "there before")
    assert [one.text for one in store.alternatives(old.id)] == ["there before", *filter(None, texts)]


def test_after_a_crash_before_the_first_word_the_old_answer_is_there(tmp_path: Path) -> None:
    store = ConversationStore(tmp_path / "crash.db")
    ident = asked(store)
    list(several_answers(store, engine_that_says("there before"), ident, WARM, seeds=[1]))
    old = store.load(ident).branch[-1]
    turn = several_answers(store, engine_that_says("a", "b", "c"), ident, WARM, seeds=[1, 2, 3], retry_of=old.id)
    for _ in range(3):
        next(turn)
    copy = tmp_path / "copy.db"
    with sqlite3.connect(tmp_path / "crash.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
    turn.close()
    with sqlite3.connect(copy) as database:
        database.execute("UPDATE answer_in_progress SET writer = 'of a process that has died'")
    again = ConversationStore(copy)
    assert again.load(ident).branch[-1].id == old.id


def test_an_engine_that_fails_is_told_behind_what_it_said(store: ConversationStore) -> None:
    ident = asked(store)
    engine = engine_that_says("one", "two")
    engine.replies[1] = Reply(engine.encode("two"), raises=RuntimeError("the card is gone"))
    events: list[object] = []
    with pytest.raises(RuntimeError, match="the card is gone"):
        events.extend(several_answers(store, engine, ident, WARM, seeds=[1, 2]))
    texts = [(one.text, one.status) for one in store.alternatives(store.load(ident).branch[-1].id)]
    assert texts[-1] == ("two", "partial")


def test_a_store_that_cannot_begin_them_all_keeps_none(
    store: ConversationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ident = asked(store)
    begin, calls = store.begin_answer, []

    def second_fails(*args: object, **how: object) -> object:
        calls.append(args)
        if len(calls) == 2:
            raise StoreError("the disk is full")
        return begin(*args, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "begin_answer", second_fails)
    with pytest.raises(StoreError, match="the disk is full"):
        list(several_answers(store, engine_that_says("a", "b"), ident, WARM, seeds=[1, 2]))
    assert [message.text for message in store.load(ident).branch] == ["How do I load a model?"]


def test_each_can_be_given_again_from_its_record(store: ConversationStore) -> None:
    engine = load(bundled_model(), device="cpu")
    ident = asked(store)
    options = replace(WARM, sampling=SamplingSettings(temperature=4.0, top_k=40, top_p=1.0, min_p=0.0))
    ends = closed(list(several_answers(store, engine, ident, options, seeds=[31, 32, 33])))
    assert len({end.message.token_ids for end in ends}) == 3
    for end in ends:
        *_, again = engine.generate(request_again(store, engine, end.message.id))
        assert isinstance(again, Finished)
        assert again.token_ids == end.message.token_ids
    engine.unload()
