from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from exlchat.chat.model import AnswerRecord
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.chat.store.schema import MIGRATIONS
from exlchat.llm.events import GenerationStats
from exlchat.llm.sampling import SamplingSettings
from tests.patience import within

RECORD = AnswerRecord(
    model="tiny",
    template="chatml",
    sampling=SamplingSettings(temperature=0.7, min_p=0.05),
    stats=GenerationStats(10, 4, 3, 0.25, 0.125, 0.5, 42),
    finish_reason="stop_token",
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "conversations.db"


@pytest.fixture
def store(path: Path, clock: Clock) -> Iterator[ConversationStore]:
    opened = ConversationStore(path, clock=clock)
    yield opened
    opened.close()


def texts(store: ConversationStore, conversation_id: str) -> list[str]:
    return [message.text for message in store.load(conversation_id).branch]


def test_a_message_is_on_disk_when_the_call_returns(store: ConversationStore, path: Path) -> None:
    conversation = store.create_conversation()
    message = store.add_message(conversation.id, "user", "Hello\nthere")
    assert message.parent_id is None
    other = sqlite3.connect(path)
    assert other.execute("SELECT text, role, status FROM message").fetchall() == [("Hello\nthere", "user", "complete")]
    assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()


def test_what_was_written_is_found_after_reopening(path: Path) -> None:
    first = ConversationStore(path)
    conversation = first.create_conversation()
    first.add_message(conversation.id, "system", "Be brief.")
    question = first.add_message(conversation.id, "user", "Hi")
    begun = first.begin_answer(conversation.id, question.id)
    closed = first.close_answer(begun.id, "Hello!", [5, 6, 70000], "complete", record=RECORD)
    before = first.load(conversation.id)
    first.close()
    second = ConversationStore(path)
    assert second.load(conversation.id) == before
    assert before.branch[-1] == closed
    assert closed.token_ids == (5, 6, 70000)
    assert closed.record == RECORD
    assert closed.status == "complete"
    assert before.tip_id == closed.id
    assert before.system_prompt == "Be brief."
    assert second.recovered == 0
    second.close()


def test_the_list_is_newest_first_without_empty_conversations(store: ConversationStore) -> None:
    old, new = store.create_conversation(), store.create_conversation()
    empty = store.create_conversation()
    store.add_message(empty.id, "system", "only a system prompt")
    store.add_message(old.id, "user", "first")
    store.add_message(new.id, "user", "second")
    assert [row.id for row in store.list_conversations()] == [new.id, old.id]
    store.add_message(old.id, "user", "third")
    rows = store.list_conversations()
    assert [(row.id, row.message_count) for row in rows] == [(old.id, 2), (new.id, 1)]
    assert rows[0].updated_at > rows[0].created_at


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("How do I load a model?\nPlease.", "How do I load a model?"),
        ("\n\n  spaced   out \n", "spaced out"),
        ("word " * 40, ("word " * 11).strip() + "…"),
        ("x" * 200, "x" * 59 + "…"),
        ("\x1b[31mred\x07\u202edne", "[31mred dne"),
        ("   ", "New conversation"),
    ],
)
def test_the_first_message_gives_a_title_that_is_safe_to_show(store: ConversationStore, text: str, title: str) -> None:
    conversation = store.create_conversation()
    store.add_message(conversation.id, "system", "not this one")
    store.add_message(conversation.id, "user", text)
    assert store.list_conversations()[0].title == title
    store.add_message(conversation.id, "user", "later")
    if title != "New conversation":
        assert store.load(conversation.id).title == title


def test_a_given_title_stays_until_a_blank_one_takes_it_back(store: ConversationStore) -> None:
    conversation = store.create_conversation()
    store.rename(conversation.id, "Mine")
    store.add_message(conversation.id, "user", "Question")
    assert store.load(conversation.id).title == "Mine"
    store.rename(conversation.id, "  ")
    assert store.load(conversation.id).title == "Question"


def test_delete_can_be_undone_and_purge_only_takes_what_is_old(path: Path, clock: Clock) -> None:
    store = ConversationStore(path, clock=clock)
    kept, gone = store.create_conversation(), store.create_conversation()
    for conversation in (kept, gone):
        for number in range(1500):
            store.add_message(conversation.id, "user", str(number))
    empty = store.create_conversation()
    store.delete(kept.id)
    store.delete(gone.id)
    assert store.list_conversations() == []
    store.undo_delete(kept.id)
    assert [row.id for row in store.list_conversations()] == [kept.id]
    assert store.purge() == 0
    clock.now += 40 * 86400
    assert store.purge() == 2
    assert len(store.load(kept.id).branch) == 1500
    for ident in (gone.id, empty.id):
        with pytest.raises(StoreError, match="there is no conversation"):
            store.load(ident)
    store.close()


def test_retry_keeps_both_answers_and_moves_the_tip(store: ConversationStore) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    one = store.begin_answer(conversation.id, question.id)
    store.close_answer(one.id, "one", [1], "complete")
    two = store.begin_answer(conversation.id, question.id)
    store.close_answer(two.id, "two", [2], "complete")
    assert texts(store, conversation.id) == ["Q", "two"]
    assert [message.text for message in store.alternatives(two.id)] == ["one", "two"]
    assert [message.text for message in store.set_tip(conversation.id, one.id).branch] == ["Q", "one"]
    store.add_message(conversation.id, "user", "more")
    assert texts(store, conversation.id) == ["Q", "one", "more"]
    assert store.set_tip(conversation.id, None).branch == ()
    again = store.add_message(conversation.id, "user", "Q again")
    assert [message.text for message in store.alternatives(again.id)] == ["Q", "Q again"]


def test_messages_of_another_conversation_are_no_parents(store: ConversationStore) -> None:
    here, there = store.create_conversation(), store.create_conversation()
    stranger = store.add_message(there.id, "user", "x")
    with pytest.raises(StoreError, match="there is no message"):
        store.add_message(here.id, "user", "y", parent_id=stranger.id)
    with pytest.raises(StoreError, match="there is no message"):
        store.set_tip(here.id, stranger.id)
    with pytest.raises(StoreError, match="there is no conversation"):
        store.add_message("nowhere", "user", "y")
    assert texts(store, here.id) == []


def test_an_answer_grows_in_the_journal_and_is_immutable_once_closed(store: ConversationStore, path: Path) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    answer = store.begin_answer(conversation.id, question.id)
    assert answer.status == "streaming"
    assert store.load(conversation.id).branch[-1] == answer
    store.journal(answer.id, "so far", [1, 2])
    assert sqlite3.connect(path).execute("SELECT text FROM message WHERE status = 'streaming'").fetchall() == [
        ("so far",)
    ]
    closed = store.close_answer(answer.id, "so far so good", [1, 2, 3], "partial", record=RECORD)
    assert (closed.text, closed.token_ids, closed.status) == ("so far so good", (1, 2, 3), "partial")
    for change in (
        lambda: store.journal(answer.id, "other", []),
        lambda: store.close_answer(answer.id, "other", [], "complete"),
        lambda: store.discard_answer(answer.id),
    ):
        with pytest.raises(StoreError, match="there is no answer being written"):
            change()
    assert store.message(answer.id) == closed


def test_a_discarded_answer_leaves_the_tip_where_it_was(store: ConversationStore) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    good = store.begin_answer(conversation.id, question.id)
    store.close_answer(good.id, "good", [1], "complete")
    nothing = store.begin_answer(conversation.id, question.id)
    store.discard_answer(nothing.id)
    assert texts(store, conversation.id) == ["Q", "good"]
    assert [message.id for message in store.alternatives(good.id)] == [good.id]


def test_both_threads_may_write_at_once(store: ConversationStore) -> None:
    conversations = [store.create_conversation() for _ in range(4)]
    errors: list[BaseException] = []

    def write(conversation_id: str) -> None:
        try:
            for number in range(25):
                message = store.begin_answer(conversation_id, store.load(conversation_id).tip_id)
                store.journal(message.id, str(number), [number])
                store.close_answer(message.id, str(number), [number], "complete")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(conversation.id,)) for conversation in conversations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for conversation in conversations:
        assert texts(store, conversation.id) == [str(number) for number in range(25)]


def test_in_memory_nothing_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = ConversationStore(None)
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    answer = store.begin_answer(conversation.id, question.id)
    store.close_answer(answer.id, "A", [1], "complete")
    assert texts(store, conversation.id) == ["Q", "A"]
    store.close()
    assert list(tmp_path.iterdir()) == []


def test_the_file_is_its_owners_only_and_a_closed_store_leaves_only_it(path: Path) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    store.begin_answer(conversation.id, None)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0, file
    store.close()
    assert [file.name for file in path.parent.iterdir()] == ["conversations.db"]
    with pytest.raises(StoreError, match=r"conversations\.db"):
        store.load(conversation.id)


@given(text=st.text(st.characters(exclude_categories=[])), ids=st.lists(st.integers(0, 2**32 - 1)))
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_and_ids_survive(store: ConversationStore, text: str, ids: list[int]) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", text)
    answer = store.begin_answer(conversation.id, question.id)
    closed = store.close_answer(answer.id, text, ids, "complete")
    if not any(0xD800 <= ord(character) < 0xE000 for character in text):
        assert texts(store, conversation.id) == [text, text]
    else:
        assert len(closed.text) <= len(text)
    assert store.load(conversation.id).branch[0] == question
    assert closed.token_ids == tuple(ids)
    assert "\x1b" not in store.load(conversation.id).title


def test_twenty_thousand_messages_open_and_list_fast(path: Path) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    store.add_message(conversation.id, "user", "start")
    database = sqlite3.connect(path)
    tip = store.load(conversation.id).tip_id
    ids = bytes(4 * 200)
    rows = []
    for number in range(20_000):
        role = "assistant" if number % 2 else "user"
        record = '{"model": "m", "template": "t", "sampling": {}, "stats": null, "finish_reason": null}'
        row = (f"m{number:06}", conversation.id, tip, role, "some words " * 30, 1.0, "complete")
        rows.append((*row, ids, record) if role == "assistant" else (*row, b"", None))
        tip = f"m{number:06}"
    with database:
        columns = "(id, conversation_id, parent_id, role, text, created_at, status, token_ids, record)"
        database.executemany(f"INSERT INTO message {columns} VALUES (?,?,?,?,?,?,?,?,?)", rows)
        database.execute("UPDATE conversation SET tip_id = ?", (tip,))
    database.close()
    with within(0.5):  # 0.2 s on a 2-core machine at rest
        branch = store.load(conversation.id).branch
    with within(0.1):  # 0.01 s
        listed_rows = store.list_conversations()
    assert len(branch) == 20_001
    assert branch[-1].id == "m019999"
    assert listed_rows[0].message_count == 20_001
    store.close()


def test_a_message_is_pinned_until_it_is_unpinned(store: ConversationStore, path: Path) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    assert not question.pinned
    assert store.pin(question.id, True).pinned
    other = ConversationStore(path)
    assert [message.pinned for message in other.load(conversation.id).branch] == [True]
    other.close()
    assert not store.pin(question.id, False).pinned
    assert store.message(question.id) == question
    with pytest.raises(StoreError, match="there is no message nothing"):
        store.pin("nothing", True)


def test_a_message_is_left_out_until_it_is_taken_in_and_that_is_undone(store: ConversationStore, path: Path) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    assert store.leave_out(question.id, True).left_out
    other = ConversationStore(path)
    assert [message.left_out for message in other.load(conversation.id).branch] == [True]
    other.close()
    change = store.undo(conversation.id)
    assert change is not None
    assert change.what == "leave out"
    assert store.message(question.id) == question


def test_a_pin_survives_the_end_of_the_answer(store: ConversationStore) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    answer = store.begin_answer(conversation.id, question.id)
    store.pin(answer.id, True)
    assert store.close_answer(answer.id, "A", [1], "complete").pinned


def test_where_the_seen_part_begins_and_its_summary_are_kept(store: ConversationStore) -> None:
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    record = replace(RECORD, seen_from=question.id, summary="Zwölf\nlines")
    answer = store.begin_answer(conversation.id, question.id, record=record)
    assert store.message(answer.id).record == record


def test_the_summary_of_what_comes_before_a_message_is_kept_with_it(path: Path) -> None:
    store = ConversationStore(path)
    conversation = store.create_conversation()
    question = store.add_message(conversation.id, "user", "Q")
    store.keep_summary(question.id, "Zwölf\ud800 lines")
    store.close()
    store = ConversationStore(path)
    assert store.load(conversation.id).branch[0].summary == "Zwölf\ufffd lines"
    with pytest.raises(StoreError, match="there is no message nobody"):
        store.keep_summary("nobody", "text")
    store.close()


_VERSION_1 = """
CREATE TABLE conversation (
    id TEXT NOT NULL PRIMARY KEY, title TEXT, created_at REAL NOT NULL, updated_at REAL NOT NULL, deleted_at REAL,
    tip_id TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED
);
CREATE INDEX conversation_tip ON conversation (tip_id);
CREATE TABLE message (
    id TEXT NOT NULL PRIMARY KEY,
    conversation_id TEXT NOT NULL REFERENCES conversation (id) DEFERRABLE INITIALLY DEFERRED,
    parent_id TEXT REFERENCES message (id) DEFERRABLE INITIALLY DEFERRED,
    role TEXT NOT NULL CHECK (role IN ('system', 'user', 'assistant')),
    text TEXT NOT NULL, created_at REAL NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('complete', 'streaming', 'partial')),
    token_ids BLOB NOT NULL, record TEXT
);
CREATE INDEX message_conversation ON message (conversation_id, role);
CREATE INDEX message_parent ON message (parent_id);
CREATE TABLE answer_in_progress (
    message_id TEXT NOT NULL PRIMARY KEY REFERENCES message (id) ON DELETE CASCADE,
    writer TEXT NOT NULL, previous_tip_id TEXT
);
INSERT INTO conversation VALUES ('c', 'Old', 1.0, 2.0, NULL, NULL);
INSERT INTO message VALUES ('q', 'c', NULL, 'user', 'Hello?', 1.0, 'complete', x'', NULL);
INSERT INTO message VALUES ('a', 'c', 'q', 'assistant', 'Hi', 2.0, 'complete', x'05000000', '{"model": "tiny",
    "template": "chatml", "sampling": {"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.05},
    "stats": {"prompt_tokens": 10, "cached_tokens": 4, "new_tokens": 3, "time_to_first_token": 0.25,
    "prefill_seconds": 0.125, "decode_seconds": 0.5, "seed": 42}, "finish_reason": "stop_token"}');
UPDATE conversation SET tip_id = 'a';
PRAGMA application_id = 1702390883;
PRAGMA user_version = 1;
"""


def test_a_file_of_version_2_keeps_its_pins_and_takes_summaries(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(_VERSION_1)
    old.execute("ALTER TABLE message ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1))")
    old.execute("UPDATE message SET pinned = 1 WHERE id = 'q'")
    old.execute("PRAGMA user_version = 2")
    old.commit()
    old.close()
    store = ConversationStore(path)
    assert [(one.text, one.pinned, one.summary) for one in store.load("c").branch] == [
        ("Hello?", True, None),
        ("Hi", False, None),
    ]
    store.keep_summary("q", "They greet.")
    assert store.message("q").summary == "They greet."
    store.close()


def test_a_file_of_version_1_is_opened_with_all_it_holds(path: Path) -> None:
    old = sqlite3.connect(path)
    old.executescript(_VERSION_1)
    old.close()
    store = ConversationStore(path)
    branch = store.load("c").branch
    assert [(one.text, one.pinned, one.token_ids) for one in branch] == [("Hello?", False, ()), ("Hi", False, (5,))]
    assert branch[1].record == RECORD
    assert branch[1].record.seen_from is None
    assert store.pin("q", True).pinned
    store.add_message("c", "user", "More?")
    store.close()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_second_store_in_the_process_costs_the_first_nothing(path: Path) -> None:
    """POSIX locks belong to a process: closing any handle of a file drops all, and others take it for unused."""
    first = ConversationStore(path)
    first.create_conversation()
    second = ConversationStore(path)

    def elsewhere() -> int:
        asked = "SELECT count(*) FROM conversation"
        code = f"import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute({asked!r}).fetchone())"
        run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
        return int(run.stdout)

    assert elsewhere() == 1
    first.create_conversation()
    assert elsewhere() == 2
    second.close()
    first.close()
