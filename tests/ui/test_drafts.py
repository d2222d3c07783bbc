"""What was typed and not sent outlives the program."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exlchat.app.chat.drafts import Drafts
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.paths import FolderError


@pytest.fixture
def store(tmp_path: Path) -> ConversationStore:
    return ConversationStore(tmp_path / "conversations.db")


def test_a_draft_is_there_in_the_next_run(tmp_path: Path, store: ConversationStore) -> None:
    one, other = store.create_conversation().id, store.create_conversation().id
    Drafts(store, None).put(one, (), "half a thought")
    store.close()
    again = Drafts(ConversationStore(tmp_path / "conversations.db"), None)
    assert again.get(one) == "half a thought"
    assert again.get(other) == ""


def test_prompts_that_wait_come_before_what_is_being_typed(tmp_path: Path, store: ConversationStore) -> None:
    for conversation_id in (None, store.create_conversation().id):
        drafts = Drafts(store, tmp_path / "drafts.json")
        drafts.put(conversation_id, ("first", "second"), "third\nline")
        assert Drafts(store, tmp_path / "drafts.json").get(conversation_id) == "first\n\nsecond\n\nthird\nline"


def test_a_draft_goes_with_its_conversation_into_files(store: ConversationStore) -> None:
    ident = store.create_conversation().id
    Drafts(store, None).put(ident, (), "half a thought")
    assert store.read_tree(ident).draft == "half a thought"


def test_two_programs_keep_each_others_drafts(tmp_path: Path, store: ConversationStore) -> None:
    path = tmp_path / "drafts.json"
    first, second = store.create_conversation().id, store.create_conversation().id
    one, other = Drafts(store, path), Drafts(ConversationStore(tmp_path / "conversations.db"), path)
    one.put(first, (), "of the one")
    other.put(second, (), "of the other")
    one.put(None, (), "also of the one")
    other.put(None, (), "")
    other.put(second, (), "")
    later = Drafts(store, path)
    assert [later.get(first), later.get(second), later.get(None)] == ["of the one", "", "also of the one"]


def test_a_draft_that_could_not_be_written_is_tried_again(tmp_path: Path, store: ConversationStore) -> None:
    folder = tmp_path / "state"
    folder.write_text("in the way")
    drafts = Drafts(store, folder / "drafts.json")
    with pytest.raises(FolderError):
        drafts.put(None, (), "precious")
    assert drafts.get(None) == "precious"
    folder.unlink()
    drafts.put(None, (), "precious")
    assert Drafts(store, folder / "drafts.json").get(None) == "precious"


def test_of_a_conversation_that_is_gone_it_is_said(store: ConversationStore) -> None:
    with pytest.raises(StoreError, match="no conversation"):
        Drafts(store, None).put("gone", (), "precious")


def test_an_empty_draft_is_forgotten(tmp_path: Path, store: ConversationStore) -> None:
    for conversation_id in (None, store.create_conversation().id):
        drafts = Drafts(store, tmp_path / "drafts.json")
        drafts.put(conversation_id, (), "text")
        drafts.put(conversation_id, (), "  ")
        assert Drafts(store, tmp_path / "drafts.json").get(conversation_id) == ""


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{", b'{"new": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_broken_file_counts_as_empty_and_is_replaced(
    tmp_path: Path, store: ConversationStore, content: bytes
) -> None:
    path = tmp_path / "drafts.json"
    path.write_bytes(content)
    drafts = Drafts(store, path)
    assert drafts.get(None) == ""
    drafts.put(None, (), "new")
    assert Drafts(store, path).get(None) == "new"


def test_drafts_of_conversations_in_the_file_of_older_versions_move_into_the_database(
    tmp_path: Path, store: ConversationStore
) -> None:
    one, other = store.create_conversation().id, store.create_conversation().id
    store.keep_draft(other, "newer")
    path = tmp_path / "drafts.json"
    path.write_text(json.dumps({one: "older", other: "older", "gone": "lost", "new": "kept"}))
    drafts = Drafts(store, path)
    assert [drafts.get(one), drafts.get(other), drafts.get(None)] == ["older", "newer", "kept"]
    assert json.loads(path.read_text()) == {"new": "kept"}
