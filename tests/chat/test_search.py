"""Full-text search: what is found, what is not, and that nothing typed means more than itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.model import ConversationTree, Message
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.store.search import match_query


@pytest.fixture
def store() -> Iterator[ConversationStore]:
    opened = ConversationStore(None)
    yield opened
    opened.close()


def told(store: ConversationStore, *texts: str) -> str:
    ident = store.create_conversation().id
    for text in texts:
        store.add_message(ident, "user", text)
    return ident


def found(store: ConversationStore, text: str) -> list[str]:
    return [hit.snippet for hit in store.search(text)]


def test_all_words_and_their_beginnings_are_found(store: ConversationStore) -> None:
    told(store, "start", "The quick brown fox.", "A quick Übung.")
    assert found(store, "quick fo") == ["The quick brown fox."]
    assert found(store, "ubung") == ["A quick Übung."]
    assert found(store, "QUICK") != []
    assert found(store, "rown") == []
    assert found(store, "  ") == []


def test_marks_say_where(store: ConversationStore) -> None:
    told(store, "start", "x " * 50 + "see\n\x1b[31m the\u202e needle here" + " y" * 50)
    (hit,) = store.search("needle see")
    assert [hit.snippet[first:end] for first, end in hit.marks] == ["see", "needle"]
    assert "\n" not in hit.snippet
    assert "\x1b" not in hit.snippet
    assert "\u202e" not in hit.snippet
    assert "see [31m the needle here" in hit.snippet


def test_a_hit_is_jumped_to(store: ConversationStore) -> None:
    ident = told(store, "first", "second")
    first, second = store.load(ident).branch
    other = store.edit(second.id, "elsewhere")
    (hit,) = store.search("second")
    assert (hit.conversation_id, hit.message_id, hit.role) == (ident, second.id, "user")
    assert hit.message_id is not None
    assert store.jump(hit.message_id).tip_id == second.id
    assert store.jump(other.id).tip_id == other.id
    assert first in store.load(ident).branch


def test_titles_and_thoughts_are_found(store: ConversationStore) -> None:
    ident = told(store, "plain")
    store.rename(ident, "Tomato soup")
    begun = store.begin_answer(ident, store.load(ident).tip_id)
    store.journal(begun.id, "so", [1], thinking="half a thought")
    assert found(store, "thought") == [], "not while it grows"
    store.close_answer(begun.id, "so it is", [1, 2], "complete", thinking="a whole thought")
    assert store.message(begun.id).thinking == "a whole thought"
    (hit,) = store.search("tomato")
    assert (hit.message_id, hit.snippet) == (None, "Tomato soup")
    assert found(store, "whole thought") == ["a whole thought"]
    store.rename(ident, "Other")
    assert found(store, "tomato") == []
    assert len(found(store, "so")) == 1
    assert store.check() == []


def test_what_was_deleted_is_not_found(store: ConversationStore) -> None:
    ident = told(store, "needle one", "needle two")
    store.delete_from(store.load(ident).branch[1].id)
    assert {hit.snippet for hit in store.search("needle")} == {"needle one"}
    store.delete(ident)
    assert store.search("needle") == []
    store.undo(ident)
    store.undo(ident)
    assert {hit.snippet for hit in store.search("needle")} == {"needle one", "needle two"}
    assert store.check() == []


def test_what_is_purged_leaves_the_index() -> None:
    now = [1e9]
    store = ConversationStore(None, clock=lambda: now[0])
    ident = told(store, "needle one", "needle two")
    gone = told(store, "needle three")
    store.delete_from(store.load(ident).branch[1].id)
    store.delete(gone)
    now[0] += 31 * 86400
    assert store.purge() == 1
    assert store.undo(ident) is None
    assert [one.text for one in store.read_tree(ident).messages] == ["needle one"]
    assert store._db.execute("SELECT count(*) FROM searchable").fetchone() == (2,)
    assert store.check() == []
    store.close()


@pytest.mark.parametrize(
    "typed",
    [
        '"',
        "a OR",
        "NEAR(a b)",
        "title:x",
        "-a",
        "^a",
        "a*",
        "(",
        "{text} : a",
        "a AND NOT",
        "\0",
        "'; DROP TABLE message",
        "…",
    ],
)
def test_the_language_of_the_index_is_only_text(store: ConversationStore, typed: str) -> None:
    told(store, "start", f"x {typed} y")
    assert all(typed.split(maxsplit=1)[0].strip('"(){}:^-*…\0') in snippet for snippet in found(store, typed))
    store.search(typed)


@given(typed=st.text(max_size=60), text=st.text(max_size=60))
def test_anything_may_be_typed_and_kept(typed: str, text: str) -> None:
    store = ConversationStore(None)
    told(store, text, typed)
    for hit in store.search(typed):
        assert all(0 <= first <= end <= len(hit.snippet) for first, end in hit.marks)
        assert "\n" not in hit.snippet
    if typed.isascii() and typed.isalnum():
        assert any(hit.message_id for hit in store.search(typed))
    assert store.check() == []
    store.close()


def test_words_without_letters_ask_nothing() -> None:
    assert match_query('"" -- *') is None
    assert match_query('say "hi"') == '"say"* """hi"""*'
    assert match_query("w " * 100).count("w") == 24


def test_of_a_word_found_everywhere_the_newest_come_first(store: ConversationStore) -> None:
    messages = tuple(Message(f"m{n}", f"m{n - 1}" if n else None, "user", f"word {n}", 1.0) for n in range(4100))
    store.write_tree(ConversationTree("t", 1.0, 1.0, "m4099", messages))
    hits = store.search("word", 10_000)
    assert [hit.message_id for hit in hits] == [f"m{n}" for n in range(4099, -1, -1)]
    assert next(hit.message_id for hit in store.search("word 777")) == "m777"
