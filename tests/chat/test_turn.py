from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.model import Message
from exlchat.chat.prompt.context import ContextFull
from exlchat.chat.prompt.errors import PromptError
from exlchat.chat.speaking import TurnError
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.titling import make_title
from exlchat.chat.turn import answer
from exlchat.chat.turn_events import AnswerClosed, AnswerStarted, TurnEvent
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import PrefillProgress, TextDelta
from exlchat.llm.port import Cancellation
from exlchat.llm.request import RequestError
from exlchat.llm.sampling import SamplingSettings
from tests.chat import templates
from tests.chat.scripted_engine import Reply, ScriptedEngine

OPTIONS = TurnOptions(sampling=SamplingSettings(temperature=0.7, min_p=0.05), seed=42)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine(chat_template=templates.CHATML)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def store(path: Path) -> Iterator[ConversationStore]:
    opened = ConversationStore(path)
    yield opened
    opened.close()


@pytest.fixture
def asked(store: ConversationStore) -> str:
    conversation = store.create_conversation()
    store.add_message(conversation.id, "user", "Hello?")
    return conversation.id


def closed(events: list[TurnEvent]) -> AnswerClosed:
    assert isinstance(events[-1], AnswerClosed)
    return events[-1]


def on_disk(store: ConversationStore, conversation_id: str) -> list[tuple[str, str, str]]:
    return [(m.role, m.text, m.status) for m in store.load(conversation_id).branch]


def ask(store: ConversationStore, engine: ScriptedEngine, conversation_id: str, text: str, reply: str) -> Message:
    store.add_message(conversation_id, "user", text)
    engine.will_say(reply)
    return closed(list(answer(store, engine, conversation_id, OPTIONS))).message


def test_a_turn_streams_and_is_stored_with_its_statistics(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    reply = engine.will_say("Hi, ä😀!")
    events = list(answer(store, engine, asked, OPTIONS))
    assert isinstance(events[0], AnswerStarted)
    assert events[0].message.status == "streaming"
    assert events[0].prompt_tokens == len(engine.requests[0].prompt_ids)
    assert any(isinstance(event, PrefillProgress) for event in events)
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == "Hi, ä😀!"
    end = closed(events)
    assert end.kept
    assert end.error is None
    assert end.finished is not None
    message = store.load(asked).branch[-1]
    assert message == end.message
    assert (message.text, message.token_ids, message.status) == ("Hi, ä😀!", tuple(reply.ids), "complete")
    assert message.record is not None
    assert message.record.model == "scripted"
    assert message.record.template == "model"
    assert message.record.sampling == OPTIONS.sampling
    assert message.record.stats == end.finished.stats
    assert message.record.finish_reason == "stop_token"


def test_the_request_says_what_was_wanted(store: ConversationStore, engine: ScriptedEngine, asked: str) -> None:
    engine.will_say("Hi")
    options = TurnOptions(sampling=OPTIONS.sampling, seed=5, max_new_tokens=9, speech=AnswerOptions(stop=("STOP",)))
    list(answer(store, engine, asked, options))
    request = engine.requests[0]
    assert (request.sampling, request.seed, request.max_new_tokens) == (OPTIONS.sampling, 5, 9)
    assert request.stop == ("STOP", engine.encode("<|im_end|>")[0])
    assert engine.text_with_special_tokens(list(request.prompt_ids)) == (
        "<|im_start|>user\nHello?<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("template", ["model", "chatml", "plain"])
def test_the_next_turn_finds_all_of_the_last_one_in_the_cache(
    store: ConversationStore, engine: ScriptedEngine, asked: str, template: str
) -> None:
    options = TurnOptions(sampling=OPTIONS.sampling, template=template)
    store.add_message(asked, "system", "Be brief.")
    known = 0
    for number in range(3):
        reply = engine.will_say(f"Answer {number}: the fox.")
        stats = closed(list(answer(store, engine, asked, options))).finished
        assert stats is not None
        assert stats.stats.cached_tokens == known
        known = stats.stats.prompt_tokens + len(reply.ids)
        store.add_message(asked, "user", "More?")


def test_reopening_the_store_does_not_lose_the_cache(path: Path, engine: ScriptedEngine) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    first = ask(store, engine, conversation.id, "Hello?", "Hi there")
    store.close()
    store = ConversationStore(path)
    ask(store, engine, conversation.id, "More?", "Well")
    before = [*engine.requests[0].prompt_ids, *first.token_ids]
    assert list(engine.requests[1].prompt_ids[: len(before)]) == before
    store.close()


def test_a_notice_tells_which_format_stands_in(store: ConversationStore, asked: str) -> None:
    engine = ScriptedEngine()
    engine.will_say("Hi")
    first = next(answer(store, engine, asked, OPTIONS))
    assert isinstance(first, AnswerStarted)
    wanted = "scripted has no chat template of its own; using the built-in format chatml: "
    assert first.model_notice is not None
    assert first.model_notice.startswith(wanted)
    assert not first.notices


def test_what_lies_in_memory_only_leaves_no_pages_either(path: Path) -> None:
    for store in (ConversationStore(path), ConversationStore(None)):
        engine = ScriptedEngine(chat_template=templates.CHATML)
        conversation = store.create_conversation()
        ask(store, engine, conversation.id, "Hello?", "Hi there")
        engine.will_say("A greeting")
        list(make_title(store, engine, conversation.id, template=None))
        assert [one.keep_pages for one in engine.requests] == [store.path is not None] * 2
        store.close()


def test_a_notice_tells_what_of_a_schema_is_not_held(store: ConversationStore, asked: str) -> None:
    engine = ScriptedEngine()
    engine.will_say("Hi")
    schema = Constraint("json_schema", '{"type": "string", "format": "path"}')
    first = next(answer(store, engine, asked, replace(OPTIONS, speech=AnswerOptions(constraint=schema))))
    assert isinstance(first, AnswerStarted)
    assert first.notices[-1] == "the JSON schema: answers are not held to the format 'path' (the whole)"


def test_retry_stands_beside_the_old_answer(store: ConversationStore, engine: ScriptedEngine, asked: str) -> None:
    engine.will_say("one")
    old = closed(list(answer(store, engine, asked, OPTIONS))).message
    engine.will_say("two")
    new = closed(list(answer(store, engine, asked, OPTIONS, retry_of=old.id))).message
    assert on_disk(store, asked)[-1] == ("assistant", "two", "complete")
    assert [m.id for m in store.alternatives(new.id)] == [old.id, new.id]
    assert engine.requests[0].prompt_ids == engine.requests[1].prompt_ids


def test_retry_works_on_a_branch_that_is_not_shown(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    old = ask(store, engine, asked, "one?", "one")
    store.set_tip(asked, None)
    ask(store, engine, asked, "another beginning", "yes")
    engine.will_say("uno")
    list(answer(store, engine, asked, OPTIONS, retry_of=old.id))
    assert [text for _, text, _ in on_disk(store, asked)] == ["Hello?", "one?", "uno"]


def test_retry_obeys_a_system_prompt_set_after_the_old_answer(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.will_say("long")
    old = closed(list(answer(store, engine, asked, OPTIONS))).message
    store.add_message(asked, "system", "Be brief.")
    engine.will_say("short")
    list(answer(store, engine, asked, OPTIONS, retry_of=old.id))
    assert "Be brief." in engine.decode(engine.requests[1].prompt_ids)
    assert store.load(asked).system_prompt == "Be brief."
    assert [text for _, text, _ in on_disk(store, asked)] == ["Hello?", "Be brief.", "short"]


def test_retry_keeps_the_persona_that_has_taken_over_since_the_old_answer(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    for text in ("long", "short", "plain"):
        engine.will_say(text)
    old = closed(list(answer(store, engine, asked, OPTIONS))).message
    persona = {"name": "Ada", "thinking": True}
    store.add_message(asked, "system", "You are Ada.", persona=persona)
    again = closed(list(answer(store, engine, asked, OPTIONS, retry_of=old.id))).message
    assert again.record is not None
    assert again.record.persona == "Ada"
    told = [one for one in store.load(asked).branch if one.role == "system"]
    assert [(one.text, one.persona) for one in told] == [("You are Ada.", persona)]
    store.add_message(asked, "system", "You are Ada.")
    plain = closed(list(answer(store, engine, asked, OPTIONS, retry_of=again.id))).message
    assert plain.record is not None
    assert plain.record.persona is None


def test_continue_goes_on_from_the_text_and_the_ids_of_a_cut_answer(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.will_say("The quick brown fox jumps")
    options = TurnOptions(sampling=OPTIONS.sampling, max_new_tokens=9)
    cut = closed(list(answer(store, engine, asked, options))).message
    assert cut.text == "The quick"
    assert cut.record is not None
    assert cut.record.finish_reason == "max_new_tokens"
    rest = engine.will_say(" brown fox")
    events = list(answer(store, engine, asked, OPTIONS, continue_from=cut.id))
    assert isinstance(events[0], AnswerStarted)
    assert events[0].message.text == "The quick"
    whole = closed(events).message
    assert whole.text == "The quick brown fox"
    assert whole.token_ids == (*cut.token_ids, *rest.ids)
    assert engine.requests[1].prompt_ids == (*engine.requests[0].prompt_ids, *cut.token_ids)
    assert [m.text for m in store.alternatives(whole.id)] == ["The quick", "The quick brown fox"]
    assert closed(events).finished is not None


def test_a_cancelled_answer_is_partial_and_can_be_continued(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.will_say("The quick brown fox")
    events: list[TurnEvent] = []
    cancellation = Cancellation()
    for event in answer(store, engine, asked, OPTIONS, cancellation=cancellation):
        events.append(event)
        if isinstance(event, TextDelta) and event.text == "c":
            cancellation.cancel()
    assert closed(events).finished is not None
    assert on_disk(store, asked)[-1] == ("assistant", "The quic", "partial")
    engine.will_say("k")
    message = closed(list(answer(store, engine, asked, OPTIONS, continue_from=closed(events).message.id))).message
    assert (message.text, message.status) == ("The quick", "complete")


def test_an_answer_cancelled_before_its_first_word_leaves_no_trace(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.will_say("good")
    old = closed(list(answer(store, engine, asked, OPTIONS))).message
    engine.will_say("never said")
    events: list[TurnEvent] = []
    cancellation = Cancellation()
    for event in answer(store, engine, asked, OPTIONS, retry_of=old.id, cancellation=cancellation):
        events.append(event)
        cancellation.cancel()
    assert not closed(events).kept
    assert on_disk(store, asked) == [("user", "Hello?", "complete"), ("assistant", "good", "complete")]
    assert store.alternatives(old.id) == (old,)


def test_a_model_that_says_nothing_has_answered_nothing(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.replies.append(Reply([]))
    end = closed(list(answer(store, engine, asked, OPTIONS)))
    assert end.kept
    assert on_disk(store, asked)[-1] == ("assistant", "", "complete")
    assert ask(store, engine, asked, "Still there?", "Yes").text == "Yes"


def test_the_text_is_kept_when_the_engine_fails(store: ConversationStore, engine: ScriptedEngine, asked: str) -> None:
    engine.will_say("so far", raises=RequestError("the card is gone"))
    events: list[TurnEvent] = []
    with pytest.raises(RequestError, match="the card is gone"):
        events.extend(answer(store, engine, asked, OPTIONS))
    end = closed(events)
    assert end.finished is None
    assert end.message == store.load(asked).branch[-1]
    assert (end.message.text, end.message.status) == ("so far", "partial")
    assert end.message.record is not None
    assert end.message.record.model == "scripted"


def test_an_engine_that_fails_before_its_first_word_leaves_no_answer(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.replies.append(Reply([], raises=RequestError("too long")))
    with pytest.raises(RequestError):
        list(answer(store, engine, asked, OPTIONS))
    assert on_disk(store, asked) == [("user", "Hello?", "complete")]


def test_the_text_is_kept_and_the_engine_stopped_when_the_reader_leaves(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.will_say("The quick brown fox")
    turn = answer(store, engine, asked, OPTIONS)
    for event in turn:
        if isinstance(event, TextDelta) and event.text == "q":
            break
    assert isinstance(turn, Generator)
    turn.close()
    assert engine.closed == 1
    assert on_disk(store, asked)[-1] == ("assistant", "The q", "partial")
    assert "answer-journal" not in [thread.name for thread in threading.enumerate()]


def test_ctrl_c_in_the_engine_keeps_the_text(store: ConversationStore, engine: ScriptedEngine, asked: str) -> None:
    engine.will_say("so far", raises=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        list(answer(store, engine, asked, OPTIONS))
    assert on_disk(store, asked)[-1] == ("assistant", "so far", "partial")


def test_a_store_that_fails_in_mid_answer_does_not_stop_it(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    engine.will_say("The answer goes on." * 300)
    events: list[TurnEvent] = []
    for event in answer(store, engine, asked, OPTIONS):
        events.append(event)
        if isinstance(event, AnswerStarted):
            pages = store._db.execute("PRAGMA page_count").fetchone()[0]
            store._db.execute(f"PRAGMA max_page_count = {pages}")
    end = closed(events)
    assert end.error is not None
    assert "the disk is full" in end.error
    assert "\n" not in end.error
    assert end.message.text == "The answer goes on." * 300
    assert end.message.status == "complete"


def test_a_store_that_recovers_by_the_end_has_the_whole_answer(
    store: ConversationStore, engine: ScriptedEngine, asked: str, path: Path
) -> None:
    engine.will_say("x" * 4000, pauses={1000: 0.5})
    told = 0
    other = sqlite3.connect(path, isolation_level=None)
    store._db.execute("PRAGMA busy_timeout = 1")
    for event in answer(store, engine, asked, OPTIONS):
        if isinstance(event, AnswerStarted):
            other.execute("BEGIN IMMEDIATE")
        elif isinstance(event, TextDelta):
            told += 1
            if told == 3000:
                other.execute("ROLLBACK")
    assert on_disk(store, asked)[-1] == ("assistant", "x" * 4000, "complete")
    other.close()


def test_an_answer_that_cannot_even_be_begun_is_an_error(
    store: ConversationStore, engine: ScriptedEngine, asked: str
) -> None:
    store._db.execute("PRAGMA query_only = 1")
    with pytest.raises(StoreError):
        list(answer(store, engine, asked, OPTIONS))
    assert engine.requests == []


def test_what_does_not_fit_is_said_before_anything_is_written(store: ConversationStore, asked: str) -> None:
    engine = ScriptedEngine(chat_template=templates.CHATML, max_seq_len=64)
    store.add_message(asked, "user", "word " * 50)
    before = store.load(asked)
    with pytest.raises(ContextFull):
        list(answer(store, engine, asked, OPTIONS))
    assert store.load(asked) == before


def test_a_template_that_refuses_is_said_before_anything_is_written(store: ConversationStore, asked: str) -> None:
    engine = ScriptedEngine(chat_template=templates.GEMMA)
    store.add_message(asked, "system", "Be brief.")
    store.add_message(asked, "user", "Hi")
    with pytest.raises(PromptError, match="System role not supported"):
        list(answer(store, engine, asked, OPTIONS))
    assert on_disk(store, asked)[-1] == ("user", "Hi", "complete")


def test_a_user_format_is_found_in_its_folder(
    store: ConversationStore, engine: ScriptedEngine, asked: str, tmp_path: Path
) -> None:
    folder = tmp_path / "home" / "config" / "templates"
    folder.mkdir(parents=True)
    (folder / "mine.jinja").write_text("Q: {{ messages[-1].content }}\nA:")
    engine.will_say("Hi")
    list(answer(store, engine, asked, TurnOptions(sampling=OPTIONS.sampling, template="mine")))
    assert engine.decode(engine.requests[0].prompt_ids) == "Q: Hello?\nA:"


def test_there_must_be_a_message_to_answer(store: ConversationStore, engine: ScriptedEngine, asked: str) -> None:
    empty = store.create_conversation()
    with pytest.raises(TurnError, match="no message to answer"):
        list(answer(store, engine, empty.id, OPTIONS))
    engine.will_say("Hi")
    list(answer(store, engine, asked, OPTIONS))
    with pytest.raises(TurnError, match="no message to answer"):
        list(answer(store, engine, asked, OPTIONS))
    with pytest.raises(TurnError, match="only an answer"):
        list(answer(store, engine, asked, OPTIONS, retry_of=store.load(asked).branch[0].id))
    with pytest.raises(StoreError, match="no message nothing"):
        list(answer(store, engine, asked, OPTIONS, retry_of="nothing"))


def test_the_journal_is_never_more_than_half_a_second_behind(
    store: ConversationStore, engine: ScriptedEngine, asked: str, path: Path
) -> None:
    # Fast tokens, a pause, one token, a long pause: the lonely token must reach the disk during the silence.
    engine.will_say("fast and then slow.", pauses={8: 0.2, 9: 1.2, 12: 0.35})
    behind: list[float] = []
    said: list[tuple[float, str]] = []
    stop = threading.Event()

    def watch() -> None:
        database = sqlite3.connect(path)
        while not stop.wait(0.02):
            text = database.execute("SELECT text FROM message WHERE role = 'assistant'").fetchone()[0]
            now = time.monotonic()
            behind.extend(now - moment for moment, shown in list(said) if len(shown) > len(text))
        database.close()

    turn = answer(store, engine, asked, OPTIONS)
    next(turn)
    watcher = threading.Thread(target=watch)
    watcher.start()
    text = ""
    for event in turn:
        if isinstance(event, TextDelta):
            text += event.text
            said.append((time.monotonic(), text))
    stop.set()
    watcher.join()
    assert on_disk(store, asked)[-1][1] == "fast and then slow."
    assert max(behind) < 0.5
