"""Random work on a conversation against a plain model: whatever is done, and whenever the program dies.

What is shown is what is on disk, and a way leads to every message that was not deleted.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from exlchat.chat.model import Message
from exlchat.chat.store.conversations import ConversationStore

PICK = st.integers(0, 10**6)


@dataclass
class Branch:
    """A conversation that was branched off; `left` says that an undo did not delete it."""

    messages: int
    said: bool
    written_in: bool = False
    deleted: bool = False
    left: bool = False


class Tree(RuleBasedStateMachine):
    """`undone` and `done` hold what each change hid and the tip before it, or after it, and what it branched off."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "c.db"
        self.store = ConversationStore(self.path)
        self.ident = self.store.create_conversation().id
        self.rows: dict[str, Message] = {}
        self.hidden: set[str] = set()
        self.tip: str | None = None
        self.done: list[tuple[set[str], str | None, bool, Branch | None]] = []
        self.undone: list[tuple[set[str], str | None, bool, Branch | None]] = []
        self.branches: dict[str, Branch] = {}
        self.words = 0

    def teardown(self) -> None:
        assert self.store.check() == []
        hits = self.store.search("word", 10_000)
        found = {hit.message_id for hit in hits if hit.conversation_id == self.ident} - {None}
        assert found == set(self.rows) - self.hidden
        while self.store.undo(self.ident) is not None:
            pass
        assert not any(one.deleted for one in self.store.read_tree(self.ident).messages)
        self.store.close()
        self.folder.cleanup()

    # What the model is made of

    def text(self) -> str:
        self.words += 1
        return f"word {self.words}"

    def kept(self) -> list[str]:
        return [one for one in self.rows if one not in self.hidden]

    def pick(self, choice: int) -> str:
        kept = self.kept()
        return kept[choice % len(kept)]

    def below(self, top: str) -> list[str]:
        found = [top]
        for ident in self.kept():
            if self.rows[ident].parent_id in found:
                found.append(ident)
        return found

    def way(self, tip: str | None) -> list[str]:
        found: list[str] = []
        while tip is not None:
            found.insert(0, tip)
            tip = self.rows[tip].parent_id
        return found

    def written(self, message: Message) -> None:
        self.rows[message.id] = message
        self.tip = message.id
        self.undone.clear()

    def changed(self, tip: str | None, hidden: list[str] | None = None, branch: Branch | None = None) -> None:
        moved = tip != self.tip
        self.done.append((set(hidden or ()), self.tip, moved, branch))
        self.undone.clear()
        self.hidden |= set(hidden or ())
        self.tip = tip

    # What is done

    @rule()
    def say(self) -> None:
        self.written(self.store.add_message(self.ident, "user", self.text()))

    @rule()
    def answer(self) -> None:
        begun = self.store.begin_answer(self.ident, self.tip)
        self.store.journal(begun.id, "wor", [1])
        self.written(self.store.close_answer(begun.id, self.text(), [1, 2], "complete"))

    @rule(kept=st.booleans())
    def killed_while_answering(self, kept: bool) -> None:
        begun = self.store.begin_answer(self.ident, self.tip)
        if kept:
            self.store.journal(begun.id, self.text(), [1])
        self.store.close()
        self.store = ConversationStore(self.path)
        self.undone.clear()
        assert self.store.recovered == kept
        if kept:
            self.written(self.store.message(begun.id))
            assert self.rows[begun.id].status == "partial"

    @rule()
    def reopened(self) -> None:
        self.store.close()
        self.store = ConversationStore(self.path)

    @precondition(lambda self: self.kept())
    @rule(choice=PICK)
    def edit(self, choice: int) -> None:
        old = self.rows[self.pick(choice)]
        new = self.store.edit(old.id, self.text())
        assert (new.parent_id, new.role, new.edited_from) == (old.parent_id, old.role, old.id)
        self.rows[new.id] = new
        self.changed(new.id)

    @precondition(lambda self: self.kept())
    @rule(choice=PICK)
    def edit_and_carry(self, choice: int) -> None:
        old = self.pick(choice)
        shown = self.way(self.tip)
        if old not in shown:
            shown = self.way(self.below(old)[-1])
        followed = shown[shown.index(old) + 1 :]
        new = self.store.edit(old, self.text(), carry=True)
        branch = self.store.load(self.ident).branch
        assert [one.text for one in branch[-len(followed) :]] == [
            self.rows[one].text for one in followed
        ] or not followed
        for one in branch:
            self.rows.setdefault(one.id, one)
        assert [one.id for one in branch][len(branch) - len(followed) - 1] == new.id
        self.changed(branch[-1].id)

    @precondition(lambda self: self.kept())
    @rule(choice=PICK)
    def jump(self, choice: int) -> None:
        target = self.pick(choice)
        self.store.jump(target)
        if target not in self.way(self.tip):
            self.changed(self.below(target)[-1])

    @precondition(lambda self: self.kept())
    @rule(choice=PICK)
    def delete(self, choice: int) -> None:
        target = self.rows[self.pick(choice)]
        gone = self.below(target.id)
        beside = [
            one
            for one in self.kept()
            if (self.rows[one].parent_id, self.rows[one].role) == (target.parent_id, target.role) and one != target.id
        ]
        self.store.delete_from(target.id)
        tip = self.tip
        if tip in gone:
            tip = self.below(beside[-1])[-1] if beside else target.parent_id
        self.changed(tip, gone)

    @precondition(lambda self: self.kept())
    @rule(choice=PICK)
    def branch_off(self, choice: int) -> None:
        target = self.pick(choice)
        other = self.store.branch_off(target)
        assert [one.text for one in other.branch] == [self.rows[one].text for one in self.way(target)]
        # One that begins before anybody spoke has the title of the other, if that has one.
        said = any(one.role == "user" for one in self.rows.values())
        self.branches[other.id] = Branch(len(other.branch), said)
        self.changed(self.tip, branch=self.branches[other.id])

    @precondition(lambda self: self.branches)
    @rule(choice=PICK)
    def say_in_a_branch(self, choice: int) -> None:
        ident = list(self.branches)[choice % len(self.branches)]
        self.store.add_message(ident, "user", "elsewhere")
        branch = self.branches[ident]
        branch.messages += 1
        branch.said = branch.written_in = True

    @rule()
    def undo(self) -> None:
        assert (self.store.undo(self.ident) is not None) == bool(self.done)
        if self.done:
            hidden, before, moved, branch = self.done.pop()
            self.undone.append((hidden, self.tip, moved, branch))
            if branch is not None:
                branch.left = branch.written_in
                branch.deleted |= not branch.left
            self.hidden -= hidden
            self.tip = before if moved else self.tip

    @rule()
    def redo(self) -> None:
        assert (self.store.redo(self.ident) is not None) == bool(self.undone)
        if self.undone:
            hidden, after, moved, branch = self.undone.pop()
            self.done.append((hidden, self.tip, moved, branch))
            if branch is not None:
                branch.deleted &= branch.left
            self.hidden |= hidden
            self.tip = after if moved else self.tip

    # What always holds

    @invariant()
    def what_is_shown_is_on_disk(self) -> None:
        branch = self.store.load(self.ident).branch
        assert [one.id for one in branch] == self.way(self.tip)
        assert all(self.rows[one.id].text == one.text for one in branch)

    @invariant()
    def every_conversation_in_which_somebody_spoke_is_listed(self) -> None:
        there = {row.id: row.message_count for row in self.store.list_conversations()}
        expected = {
            ident: branch.messages for ident, branch in self.branches.items() if branch.said and not branch.deleted
        }
        if any(one.role == "user" for one in self.rows.values()):
            expected[self.ident] = len(self.kept())
        assert there == expected

    @invariant()
    def nothing_is_lost_or_out_of_reach(self) -> None:
        messages = self.store.read_tree(self.ident).messages
        assert {one.id: (one.parent_id, one.text) for one in messages} == {
            one.id: (one.parent_id, one.text) for one in self.rows.values()
        }
        assert {one.id for one in messages if one.deleted} == self.hidden
        for ident in self.kept():
            assert not set(self.way(ident)) & self.hidden


TestTree = Tree.TestCase
TestTree.settings = hypothesis_settings(max_examples=20, stateful_step_count=20)
