"""Edit, branch, jump, delete, undo: what each does, and whole trees in and out."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.model import ConversationTree, Message, Role
from exlchat.chat.store.conversations import ConversationStore, StoreError
from exlchat.llm.constraint import Constraint
from tests.chat.test_store import RECORD

ANSWER_OPTIONS = AnswerOptions(stop=("x", 5), ban=("y",), constraint=Constraint("choice", "a\nb"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    opened = ConversationStore(tmp_path / "conversations.db")
    yield opened
    opened.close()


def said(store: ConversationStore, conversation_id: str) -> list[str]:
    return [one.text for one in store.load(conversation_id).branch]


def answered(store: ConversationStore, conversation_id: str, text: str, parent_id: str | None = None) -> Message:
    parent = parent_id or store.load(conversation_id).tip_id
    begun = store.begin_answer(conversation_id, parent)
    return store.close_answer(begun.id, text, [1, 2], "complete", record=RECORD)


def talk(store: ConversationStore) -> tuple[str, list[Message]]:
    ident = store.create_conversation().id
    store.add_message(ident, "system", "S")
    store.add_message(ident, "user", "Q1")
    answered(store, ident, "A1")
    store.add_message(ident, "user", "Q2")
    answered(store, ident, "A2")
    return ident, list(store.load(ident).branch)


def test_an_edited_question_stands_beside_the_old_one_and_ends_its_branch(store: ConversationStore) -> None:
    ident, branch = talk(store)
    new = store.edit(branch[1].id, "Q1 better")
    assert said(store, ident) == ["S", "Q1 better"]
    assert new.edited_from == branch[1].id
    assert [one.text for one in store.alternatives(new.id)] == ["Q1", "Q1 better"]
    undone = store.undo(ident)
    assert undone is not None
    assert undone.what == "edit"
    assert said(store, ident) == ["S", "Q1", "A1", "Q2", "A2"]
    assert store.redo(ident) is not None
    assert said(store, ident) == ["S", "Q1 better"]
    assert store.redo(ident) is None


def test_an_edit_may_carry_along_what_followed(store: ConversationStore) -> None:
    ident, branch = talk(store)
    new = store.edit(branch[2].id, "A1 mended", carry=True)
    assert said(store, ident) == ["S", "Q1", "A1 mended", "Q2", "A2"]
    assert new.record is None, "nobody generated this text"
    assert new.token_ids == ()
    copy = store.load(ident).branch[-1]
    assert (copy.record, copy.token_ids) == (branch[4].record, branch[4].token_ids)
    assert copy.id != branch[4].id
    assert store.jump(branch[2].id).branch == tuple(branch)


def test_what_an_answer_saw_from_follows_its_copy(store: ConversationStore) -> None:
    ident, branch = talk(store)
    begun = store.begin_answer(ident, branch[3].id)
    record = replace(RECORD, seen_from=branch[3].id)
    answer = store.close_answer(begun.id, "A2 again", [3], "complete", record=record)
    store.edit(branch[1].id, "Q1 better", carry=True)
    *_, question, copy = store.load(ident).branch
    assert copy.record is not None
    assert (copy.text, copy.record.seen_from) == ("A2 again", question.id)
    assert store.message(answer.id).record == record


def test_a_branch_becomes_a_conversation_of_its_own(store: ConversationStore) -> None:
    ident, branch = talk(store)
    store.set_tags(ident, ["work"])
    other = store.branch_off(branch[2].id)
    assert [one.text for one in other.branch] == ["S", "Q1", "A1"]
    assert not {one.id for one in other.branch} & {one.id for one in branch}
    assert store.tags(other.id) == ("work",)
    assert said(store, ident) == ["S", "Q1", "A1", "Q2", "A2"]
    assert {row.id for row in store.list_conversations()} == {ident, other.id}
    store.undo(ident)
    assert {row.id for row in store.list_conversations()} == {ident}
    store.redo(ident)
    assert {row.id for row in store.list_conversations()} == {ident, other.id}


def test_branches_are_told_apart_by_their_titles(store: ConversationStore) -> None:
    ident, branch = talk(store)
    store.rename(ident, "Rafts")
    first, second = store.branch_off(branch[2].id), store.branch_off(branch[2].id)
    third = store.branch_off(first.branch[-1].id)
    assert [one.title for one in (first, second, third)] == ["Rafts (2)", "Rafts (3)", "Rafts (4)"]


@pytest.mark.parametrize("older", [False, True], ids=["noted by this program", "noted by an older one"])
def test_undoing_a_branch_leaves_what_was_written_in_it_since(store: ConversationStore, older: bool) -> None:
    ident, branch = talk(store)
    other = store.branch_off(branch[2].id)
    if older:
        (at,) = store._db.execute("SELECT changed_at FROM change").fetchone()
        step = {"do": "set", "table": "conversation", "id": other.id, "column": "deleted_at"}
        store._db.execute("UPDATE change SET steps = ?", (json.dumps([{**step, "before": at, "after": None}]),))
    kept = {one.id for one in other.branch}
    for what in (lambda: store.add_message(other.id, "user", "mine"), lambda: store.keep_draft(other.id, "half a")):
        what()
        undone = store.undo(ident)
        assert undone is not None
        assert undone.kept == other.id
        assert {row.id for row in store.list_conversations()} == {ident, other.id}
        store.delete(other.id)
        store.redo(ident)
        assert {row.id for row in store.list_conversations()} == {ident}, "redo brings nothing back that was deleted"
        store.undo_delete(other.id)
        store._db.execute("UPDATE conversation SET draft = '', tip_id = ? WHERE id = ?", (other.tip_id, other.id))
        store._db.execute("DELETE FROM message WHERE text = 'mine'")
    assert {one.id for one in store.read_tree(other.id).messages} == kept
    undone = store.undo(ident)
    assert undone is not None
    assert undone.kept is None
    assert {row.id for row in store.list_conversations()} == {ident}


def test_jumping_to_what_is_shown_moves_nothing(store: ConversationStore) -> None:
    ident, branch = talk(store)
    assert store.jump(branch[1].id).tip_id == branch[-1].id
    assert store.undo(ident) is None


def test_an_alternative_is_shown_with_the_newest_that_follows(store: ConversationStore) -> None:
    ident, branch = talk(store)
    answered(store, ident, "A1 other", branch[1].id)
    store.add_message(ident, "user", "Q2 other")
    assert store.jump(branch[2].id).tip_id == branch[-1].id
    again = answered(store, ident, "A2 newest", branch[3].id)
    store.jump(store.alternatives(branch[2].id)[1].id)
    assert store.jump(branch[2].id).tip_id == again.id


def test_places_say_which_of_how_many_alternatives_each_message_is(store: ConversationStore) -> None:
    ident, branch = talk(store)
    assert store.places(ident) == {}
    other = answered(store, ident, "A1 other", branch[1].id)
    first = store.edit(branch[0].id, "S other")
    hidden = answered(store, ident, "A1 hidden", branch[1].id)
    store.delete_from(hidden.id)
    assert store.places(ident) == {
        branch[0].id: (1, 2),
        first.id: (2, 2),
        branch[2].id: (1, 2),
        other.id: (2, 2),
    }


def test_deleting_shows_another_answer_or_what_stands_before(store: ConversationStore) -> None:
    ident, branch = talk(store)
    other = answered(store, ident, "A2 other", branch[3].id)
    assert [one.text for one in store.delete_from(other.id).branch][-1] == "A2"
    assert store.alternatives(branch[4].id) == (branch[4],)
    assert [one.text for one in store.delete_from(branch[1].id).branch] == ["S"]
    assert store.search("A2") == []
    for change in (
        lambda: store.jump(branch[2].id),
        lambda: store.edit(branch[2].id, "x"),
        lambda: store.set_tip(ident, branch[2].id),
        lambda: store.add_message(ident, "user", "x", parent_id=branch[2].id),
    ):
        with pytest.raises(StoreError, match="there is no message"):
            change()
    store.undo(ident)
    assert said(store, ident) == ["S", "Q1", "A1", "Q2", "A2"]
    store.undo(ident)
    assert said(store, ident)[-1] == "A2 other"
    assert store.undo(ident) is None


def test_a_conversation_of_which_all_was_deleted_is_still_listed(store: ConversationStore) -> None:
    ident = store.create_conversation().id
    store.delete_from(store.add_message(ident, "user", "Hello").id)
    assert [(row.id, row.message_count) for row in store.list_conversations()] == [(ident, 0)]
    store.undo(ident)
    assert [(row.id, row.message_count) for row in store.list_conversations()] == [(ident, 1)]


@pytest.mark.parametrize("role", ["assistant", "system"])
def test_a_conversation_in_which_the_user_says_nothing_is_listed_if_it_was_imported(
    store: ConversationStore, role: Role
) -> None:
    store.create_conversation()
    message = Message("m", None, role, "Hello", 1.0)
    ident = store.write_tree(ConversationTree(None, 1.0, 1.0, "m", (message,), foreign={"source": "openai"}))
    store.purge()
    assert [row.id for row in store.list_conversations()] == [ident]


def test_what_is_being_written_is_neither_deleted_nor_copied(store: ConversationStore) -> None:
    ident, branch = talk(store)
    begun = store.begin_answer(ident, branch[3].id)
    with pytest.raises(StoreError, match="an answer is being written below"):
        store.delete_from(branch[1].id)
    for change in (
        lambda: store.edit(begun.id, "x"),
        lambda: store.edit(branch[1].id, "x", carry=True),
        lambda: store.branch_off(begun.id),
    ):
        with pytest.raises(StoreError, match="still being written"):
            change()
    store.close_answer(begun.id, "A", [1], "complete")
    assert store.edit(begun.id, "x").text == "x"


def test_an_undo_hides_nothing_that_was_written_since(store: ConversationStore) -> None:
    ident, branch = talk(store)
    store.edit(branch[1].id, "Q1 better")
    answer = answered(store, ident, "A1 better")
    store.undo(ident)
    assert store.load(ident).tip_id == branch[-1].id
    store.redo(ident)
    assert store.load(ident).tip_id == answer.id, "where the branch was left"


def test_the_cover_of_a_conversation_is_undone_too(store: ConversationStore) -> None:
    ident, _ = talk(store)
    store.rename(ident, "Mine")
    store.set_tags(ident, ["b", "a", "a", " c\x1b\nd "])
    store.pin_conversation(ident, True)
    store.archive(ident, True)
    store.delete(ident)
    assert store.list_conversations() == []
    assert [row.id for row in store.list_conversations("deleted")] == [ident]
    for _ in range(2):
        store.undo(ident)
    (row,) = store.list_conversations()
    assert (row.title, row.tags, row.pinned) == ("Mine", ("a", "b", "c d"), True)
    for _ in range(3):
        store.undo(ident)
    (row,) = store.list_conversations()
    assert (row.title, row.tags, row.pinned) == ("Q1", (), False)
    assert store.undo(ident) is None
    for _ in range(4):
        store.redo(ident)
    (row,) = store.list_conversations("archived")
    assert (row.title, row.tags, row.pinned, row.archived) == ("Mine", ("a", "b", "c d"), True, True)


def test_a_models_title_gives_way_to_a_users_only(store: ConversationStore) -> None:
    ident, _ = talk(store)
    assert store.set_model_title(ident, "Greetings")
    assert store.load(ident).title == "Greetings"
    store.rename(ident, "Mine")
    assert not store.set_model_title(ident, "Other")
    store.rename(ident, " ")
    assert store.load(ident).title == "Q1"
    assert store.set_model_title(ident, "Other")
    assert not store.set_model_title(ident, " \n ")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@st.composite
def trees(draw: st.DrawFn) -> ConversationTree:
    messages: list[Message] = []
    gone: set[str | None] = set()
    for number in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from([None, *(one.id for one in messages)]))
        deleted = parent in gone or draw(st.integers(0, 5)) == 0
        if deleted:
            gone.add(f"m{number}")
        message = Message(
            f"m{number}",
            parent,
            draw(st.sampled_from(["system", "user", "assistant"])),
            draw(TEXT),
            draw(st.floats(0, 4e9)),
            draw(st.sampled_from(["complete", "partial"])),
            tuple(draw(st.lists(st.integers(0, 2**32 - 1), max_size=4))),
            draw(st.sampled_from([None, RECORD, replace(RECORD, seen_from=f"m{number}", speech=ANSWER_OPTIONS)])),
            draw(st.booleans()),
            draw(st.none() | TEXT),
            draw(st.none() | TEXT),
            draw(st.none() | st.dictionaries(TEXT, JSON, max_size=3)),
            draw(st.sampled_from([None, *(one.id for one in messages)])),
            deleted,
            draw(st.dictionaries(TEXT, JSON, max_size=3)),
        )
        messages.append(message)
    tip = draw(st.sampled_from([None, *(one.id for one in messages if one.id not in gone)]))
    return ConversationTree(
        "A title",
        draw(st.floats(0, 4e9)),
        draw(st.floats(0, 4e9)),
        tip,
        tuple(messages),
        "tree",
        tuple(sorted(draw(st.sets(st.sampled_from(["a", "b", "c c"]))))),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(TEXT),
        draw(st.dictionaries(TEXT, JSON, max_size=3)),
    )


@given(tree=trees())
def test_a_whole_tree_is_kept_and_read_again(tree: ConversationTree) -> None:
    store = ConversationStore(None)
    assert store.write_tree(tree) == "tree"
    assert store.read_tree("tree") == tree
    again = store.write_tree(tree)
    assert again != "tree"
    copy = store.read_tree(again)
    assert [one.text for one in copy.messages] == [one.text for one in tree.messages]
    assert not {one.id for one in copy.messages} & {one.id for one in tree.messages}
    assert store.check() == []
    store.close()


def _message(ident: str, parent: str | None, **how: object) -> Message:
    return replace(Message(ident, parent, "user", ident, 1.0), **how)


@pytest.mark.parametrize(
    ("messages", "tip", "said"),
    [
        ([_message("a", None), _message("a", None)], None, "two messages have the id a"),
        ([_message("b", "a"), _message("a", None)], None, "the message b stands before the one that it follows"),
        ([_message("a", "a")], None, "the message a stands before"),
        ([_message("a", None)], "b", "ends at b, which is not there"),
        ([_message("a", None, role="tool")], None, "unknown role"),
        ([_message("a", None, token_ids=(-1,))], None, "cannot be kept"),
        ([_message("a", None, foreign={"x": object()})], None, "cannot be kept"),
    ],
)
def test_what_is_no_tree_is_refused_in_one_line(
    store: ConversationStore, messages: list[Message], tip: str | None, said: str
) -> None:
    with pytest.raises(StoreError, match=said) as caught:
        store.write_tree(ConversationTree("t", 1.0, 1.0, tip, tuple(messages)))
    assert "\n" not in str(caught.value)
    assert store.list_conversations() == []
    assert store.check() == []


def test_a_tree_of_another_program_is_made_fit(store: ConversationStore) -> None:
    messages = (
        _message("a", None, status="streaming", created_at=float("nan"), text="lone \ud800"),
        _message("b", "a", deleted=True),
        _message("c", "b"),
    )
    tree = ConversationTree("a\x1btitle\nof lines", float("inf"), 2.0, "c", messages, tags=(" x \n", ""))
    kept = store.read_tree(store.write_tree(tree))
    assert [(one.status, one.deleted) for one in kept.messages] == [
        ("partial", False),
        ("complete", True),
        ("complete", True),
    ]
    assert kept.messages[0].text == "lone \ufffd"
    assert (kept.title, kept.tags, kept.tip_id) == ("a title of lines", ("x",), "a")


def test_two_programs_change_one_conversation(tmp_path: Path) -> None:
    one, two = ConversationStore(tmp_path / "c.db"), ConversationStore(tmp_path / "c.db")
    ident, branch = talk(one)
    chance = random.Random(5)
    for number in range(60):
        store = chance.choice([one, two])
        target = chance.choice(store.load(ident).branch or (branch[0],)).id
        match chance.randrange(5):
            case 0:
                store.edit(target, f"edit {number}", carry=chance.random() < 0.5)
            case 1:
                store.undo(ident)
            case 2:
                store.redo(ident)
            case 3:
                store.add_message(ident, "user", f"said {number}")
            case 4 if target != branch[0].id:
                store.delete_from(target)
        assert one.load(ident) == two.load(ident)
    assert one.check() == []
    one.close()
    two.close()
