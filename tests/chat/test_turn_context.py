"""Turns of conversations that outgrow the context: what the model gets to see, what is stored, what is said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.chat.prompt.context import ContextFull
from exlchat.chat.prompt.context_policy import ContextPolicy
from exlchat.chat.prompt.summary import SUMMARY_HEAD
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, Summarising, TurnEvent
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.port import Cancellation
from exlchat.llm.sampling import SamplingSettings
from tests.chat import templates
from tests.chat.scripted_engine import ScriptedEngine
from tests.chat.talk import ANSWER, LIMIT, QUESTION, Talk, options, started


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(chat_template=templates.CHATML, max_seq_len=LIMIT)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    opened = ConversationStore(path)
    yield opened
    opened.close()


@pytest.fixture
def talk(store: ConversationStore, engine: ScriptedEngine) -> Talk:
    return Talk(store, engine)


@pytest.mark.parametrize("policy", ["drop", "summarise", "stop"])
def test_what_can_never_fit_is_refused_before_it_is_encoded(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, policy: ContextPolicy
) -> None:
    talk.ask(policy)
    encoded: list[int] = []
    encode = talk.engine.encode
    monkeypatch.setattr(talk.engine, "encode", lambda text, **how: (encoded.append(len(text)), encode(text, **how))[1])
    talk.store.add_message(talk.id, "user", "a file of many words " * 100_000)
    with pytest.raises(ContextFull):
        talk.answer(policy)
    assert max(encoded, default=0) < 100_000


def test_stop_is_the_default_sees_everything_and_names_the_way_out(talk: Talk) -> None:
    assert TurnOptions(SamplingSettings()).context_policy == "stop"
    with pytest.raises(ContextFull, match="/set context_policy drop") as caught:
        talk.until_cut("stop")
    assert f"{QUESTION} 0?" in talk.prompt
    assert all(one.record is None or one.record.seen_from is None for one in talk.said)
    assert caught.value.prompt_tokens + 32 > LIMIT
    assert talk.said[-1].role == "user"


def test_drop_says_what_is_left_out_and_records_where_the_seen_part_begins(talk: Talk) -> None:
    events = talk.until_cut("drop")
    first = next(place for place, one in enumerate(talk.said) if one.id == talk.record.seen_from)
    assert talk.said[first].role == "user"
    assert started(events).context_notice == (
        f"{first} earlier messages are no longer seen by the model; /pin keeps a message, a larger --context holds more"
    )
    assert started(events).prompt_tokens <= 0.7 * LIMIT
    assert talk.prompt.startswith(
        f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{QUESTION} {first // 2}?<|im_end|>\n"
    )
    assert started(events).message.record == replace(talk.record, stats=None, finish_reason=None)


def test_the_cut_and_the_beginning_of_the_prompt_stay_over_several_turns(talk: Talk) -> None:
    talk.until_cut("drop")
    cut, turns = talk.record.seen_from, 0
    while True:
        before = talk.engine.requests[-1].prompt_ids, talk.said[-1].token_ids
        events = talk.ask("drop")
        if talk.record.seen_from != cut:
            break
        turns += 1
        assert started(events).context_notice is None
        known = (*before[0], *before[1])
        assert talk.engine.requests[-1].prompt_ids[: len(known)] == known
    assert turns >= 2
    assert started(events).context_notice is not None


def test_reopening_gives_the_same_prompt(talk: Talk, path: Path, engine: ScriptedEngine) -> None:
    talk.until_cut("summarise")
    talk.store.close()
    talk.store = ConversationStore(path)
    before = (*engine.requests[-1].prompt_ids, *talk.said[-1].token_ids)
    record = talk.record
    events = talk.ask("summarise")
    assert engine.requests[-1].prompt_ids[: len(before)] == before
    assert (talk.record.seen_from, talk.record.summary) == (record.seen_from, "Summary number 1.")
    assert not any(isinstance(event, Summarising) for event in events)
    talk.store.close()


def test_pinned_turns_stay_in_their_order(talk: Talk) -> None:
    talk.ask("drop")
    talk.ask("drop")
    talk.store.pin(talk.said[3].id, True)
    talk.until_cut("drop")
    assert "fox 0?" not in talk.prompt
    assert talk.prompt.index("fox 1?") < talk.prompt.index(f"fox {talk.asked - 1}?")
    assert talk.prompt.startswith(
        f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{QUESTION} 1?<|im_end|>\n<|im_start|>assistant\n"
    )
    # Without the pin it is among what is left out.
    talk.store.pin(talk.said[3].id, False)
    talk.ask("drop")
    assert "fox 1?" not in talk.prompt


def test_when_nothing_helps_the_context_is_full(talk: Talk) -> None:
    for policy in ("drop", "summarise"):
        talk.store.add_message(talk.id, "user", "word " * LIMIT)
        before = talk.store.load(talk.id)
        with pytest.raises(ContextFull) as caught:
            talk.answer(policy)
        assert "context_policy" not in str(caught.value)
        assert talk.store.load(talk.id) == before


def test_what_cannot_fit_is_refused_before_it_is_encoded(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    talk.store.add_message(talk.id, "user", "ab " * 400_000)
    original = talk.engine.encode

    def encode(text: str, *, special: bool = True) -> list[int]:
        assert "ab ab" not in text, "it was encoded"
        return original(text, special=special)

    monkeypatch.setattr(talk.engine, "encode", encode)
    with pytest.raises(ContextFull):
        talk.answer("stop")


def test_stop_after_drop_sees_everything_or_says_that_it_does_not_fit(talk: Talk) -> None:
    talk.until_cut("drop")
    talk.store.add_message(talk.id, "user", "More?")
    with pytest.raises(ContextFull):
        talk.answer("stop")


def test_retry_begins_from_the_cut_before_the_old_answer(talk: Talk, engine: ScriptedEngine) -> None:
    talk.until_cut("summarise")
    old, record = talk.said[-1], talk.record
    assert talk.summaries == 1
    events = talk.answer("summarise", retry_of=old.id)
    # The old answer has the summary already.
    assert (talk.summaries, talk.record.seen_from, talk.record.summary) == (1, record.seen_from, record.summary)
    assert engine.requests[-1].prompt_ids == engine.requests[-2].prompt_ids
    assert started(events).context_notice is not None


@pytest.mark.parametrize("policy", ["drop", "summarise"])
def test_a_cut_answer_goes_on_from_its_own_prompt(talk: Talk, engine: ScriptedEngine, policy: ContextPolicy) -> None:
    talk.until_cut(policy)
    prompt, whole = engine.requests[-1].prompt_ids, talk.said[-1]
    events = talk.answer(policy, continue_from=whole.id)
    assert engine.requests[-1].prompt_ids == (*prompt, *whole.token_ids)
    assert talk.said[-1].text == ANSWER * 2
    assert started(events).context_notice is None


def test_summarise_asks_the_model_for_a_summary_and_puts_it_behind_the_system_prompt(
    talk: Talk, engine: ScriptedEngine
) -> None:
    events = talk.until_cut("summarise")
    assert talk.record.summary == "Summary number 1."
    assert talk.prompt.startswith(
        f"<|im_start|>system\nBe brief.\n\n{SUMMARY_HEAD}\nSummary number 1.<|im_end|>\n<|im_start|>user\n"
    )
    kinds = [type(event) for event in events]
    assert kinds.index(Summarising) < kinds.index(AnswerStarted)
    assert "seen by the model as a summary only; /summary shows it" in str(started(events).context_notice)
    request = engine.requests[-2]
    assert request.sampling.greedy
    assert request.max_new_tokens == LIMIT // 8
    asked = engine.text_with_special_tokens(list(request.prompt_ids))
    first = next(place for place, one in enumerate(talk.said) if one.id == talk.record.seen_from)
    for number in range(first // 2):
        assert f"User: {QUESTION} {number}?" in asked
    assert f"fox {first // 2}?" not in asked
    assert asked.count("<|im_start|>") == 2


def test_the_next_summary_takes_in_the_one_before_it_and_only_what_it_did_not_cover(
    talk: Talk, engine: ScriptedEngine
) -> None:
    talk.until_cut("summarise")
    first = next(place for place, one in enumerate(talk.said) if one.id == talk.record.seen_from)
    talk.until_cut("summarise")
    assert talk.record.summary == "Summary number 2."
    asked = engine.text_with_special_tokens(list(engine.requests[-2].prompt_ids))
    assert "Summary number 1." in asked
    assert f"fox {first // 2 - 1}?" not in asked
    assert f"fox {first // 2}?" in asked


def test_a_change_from_drop_to_summarise_summarises_what_was_dropped(talk: Talk) -> None:
    talk.until_cut("drop")
    events = talk.ask("summarise")
    assert talk.record.summary == "Summary number 1."
    assert started(events).context_notice is not None
    talk.ask("drop")
    assert talk.record.summary is None
    assert SUMMARY_HEAD not in talk.prompt


def test_what_is_too_long_for_one_summary_is_summarised_in_parts(
    store: ConversationStore, engine: ScriptedEngine
) -> None:
    talk = Talk(store, engine)
    for _ in range(20):
        # Written with a larger context, as if with another model.
        engine.with_info(max_seq_len=LIMIT * 8)
        talk.ask("stop")
    engine.with_info(max_seq_len=LIMIT)
    count = len(engine.requests)
    talk.store.add_message(talk.id, "user", "And now?")
    for number in range(1, 30):
        engine.will_say(f"Part {number}.")
    events = list(answer(store, engine, talk.id, options("summarise")))
    parts = [engine.text_with_special_tokens(list(one.prompt_ids)) for one in engine.requests[count:-1]]
    assert len(parts) > 1
    assert all(len(one.prompt_ids) + LIMIT // 8 <= LIMIT for one in engine.requests[count:-1])
    assert "Part 1." in parts[1]
    dropped = next(place for place, one in enumerate(talk.said) if one.id == talk.record.seen_from) // 2
    for number in range(dropped):
        assert any(f"fox {number}?" in part for part in parts)
    assert talk.record.summary == f"Part {len(parts)}."
    assert isinstance(events[-1], AnswerClosed)


def test_a_format_without_system_messages_gets_the_summary_in_the_first_message(store: ConversationStore) -> None:
    engine = ScriptedEngine(chat_template=templates.GEMMA, max_seq_len=LIMIT)
    talk = Talk(store, engine, system=None)
    talk.until_cut("summarise")
    assert talk.prompt.startswith(f"<s><start_of_turn>user\n{SUMMARY_HEAD}\nSummary number 1.\n\n{QUESTION}")


def test_without_a_system_prompt_the_summary_is_the_system_message(
    store: ConversationStore, engine: ScriptedEngine
) -> None:
    talk = Talk(store, engine, system=None)
    talk.until_cut("summarise")
    assert talk.prompt.startswith(f"<|im_start|>system\n{SUMMARY_HEAD}\nSummary number 1.<|im_end|>\n")


def test_a_cancel_during_the_summary_ends_the_turn_and_leaves_everything_as_it_was(
    talk: Talk, engine: ScriptedEngine
) -> None:
    talk.until_cut("drop")
    talk.store.add_message(talk.id, "user", "And then?")
    before = talk.store.load(talk.id)
    engine.replies.clear()
    engine.will_say("Never finished")
    events: list[TurnEvent] = []
    cancellation = Cancellation()
    for event in answer(talk.store, engine, talk.id, options("summarise"), cancellation=cancellation):
        events.append(event)
        if len(events) == 4:
            cancellation.cancel()
    assert all(isinstance(event, Summarising) for event in events[:-1])
    end = events[-1]
    assert isinstance(end, AnswerClosed)
    assert not end.kept
    assert end.finished is not None
    assert (end.finished.reason, end.finished.text) == ("cancelled", "")
    assert talk.store.load(talk.id) == before
    # And the turn can be had after all.
    talk.answer("summarise")
    assert talk.record.summary == "Summary number 1."


def test_a_reader_that_leaves_during_the_summary_stops_the_engine(talk: Talk, engine: ScriptedEngine) -> None:
    talk.until_cut("drop")
    talk.store.add_message(talk.id, "user", "And then?")
    engine.replies.clear()
    engine.will_say("Never finished")
    turn = answer(talk.store, engine, talk.id, options("summarise"))
    for _ in range(3):
        next(turn)
    turn.close()
    assert engine.closed == 1


@pytest.mark.parametrize("said", ["", "<think>about it"])
def test_a_model_without_a_summary_is_not_asked_again_for_the_same_cut(
    talk: Talk, engine: ScriptedEngine, said: str
) -> None:
    talk.until_cut("drop")
    talk.store.add_message(talk.id, "user", "And then?")
    engine.replies.clear()
    engine.will_say(said)
    engine.will_say(ANSWER)
    list(answer(talk.store, engine, talk.id, options("summarise")))
    assert talk.record.summary == ""
    assert SUMMARY_HEAD not in talk.prompt
    events = talk.ask("summarise")
    assert not any(isinstance(event, Summarising) for event in events)


def test_a_context_too_small_for_a_summary_only_leaves_out(store: ConversationStore) -> None:
    engine = ScriptedEngine(chat_template=templates.CHATML, max_seq_len=240)
    talk = Talk(store, engine)
    events = talk.until_cut("summarise")
    assert not any(isinstance(event, Summarising) for event in events)
    assert "no longer seen" in str(started(events).context_notice)
    assert talk.record.summary is None
