"""Programs that write until they are killed, and say what they have been told is on disk."""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from exlchat.chat.model import ConversationTree, Message
from exlchat.chat.repair.check_file import check_file
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.store.journal import AnswerJournal
from exlchat.llm.events import TextDelta


def write_until_killed(path: Path, seed: int, told: Connection) -> None:
    """Sends ("kept", id, text) when a call has returned, ("shown", id, moment, length) for text that was shown, and
    ("draft" or "title", conversation, text), of which the last one holds, or one that came after it.
    """
    chance = random.Random(seed)
    store = ConversationStore(path)
    ident = store.create_conversation().id
    told.send(("ready", ident))
    while True:
        tip = store.load(ident).tip_id
        match chance.randrange(9):
            case 0 if tip is not None:
                one = store.edit(tip, f"edited {chance.random()}", carry=True)
                told.send(("kept", one.id, one.text))
            case 1:
                store.undo(ident)
            case 2:
                _tell(told, "title", ident, f"title {chance.random()}", store.rename)
            case 3 if tip is not None:
                for one in store.branch_off(tip).branch:
                    told.send(("kept", one.id, one.text))
            case 4:
                _tell(told, "draft", ident, f"draft {chance.random()} " * chance.randrange(1, 50), store.keep_draft)
            case 5:
                _import(store, chance, told)
            case 6 if tip is not None:
                store.delete_from(tip)
            case _:
                asked = store.add_message(ident, "user", f"said {chance.random()} " * chance.randrange(1, 200))
                told.send(("kept", asked.id, asked.text))
                _answer(store, ident, asked.id, chance, told)


def _tell(told: Connection, what: str, ident: str, text: str, write: object) -> None:
    """What is about to be written may be there as well, before it is said to be."""
    text = text.strip()
    told.send((f"{what} begun", ident, text))
    write(ident, text)  # type: ignore[operator]
    told.send((what, ident, text))


def _import(store: ConversationStore, chance: random.Random, told: Connection) -> None:
    """A conversation of some hundred messages is there as a whole, or not at all."""
    many = chance.randrange(1, 300)
    messages = [
        Message(f"i{number}", f"i{number - 1}" if number else None, "user", f"imported {number} " * 20, 1.0)
        for number in range(many)
    ]
    ident = store.write_tree(ConversationTree("Imported", 1.0, 2.0, messages[-1].id, tuple(messages)))
    told.send(("imported", ident, many))


def _answer(store: ConversationStore, ident: str, asked_id: str, chance: random.Random, told: Connection) -> None:
    begun = store.begin_answer(ident, asked_id)
    journal = AnswerJournal(store, begun.id)
    length = 0
    for number in range(chance.randrange(100)):
        journal.add(TextDelta("0123456789", (number,)))
        length += 10
        told.send(("shown", begun.id, time.monotonic(), length))
        time.sleep(0.002)
    journal.stop()
    closed = store.close_answer(begun.id, journal.text, journal.token_ids, "complete")
    told.send(("kept", closed.id, closed.text))


def open_until_killed(path: Path, told: Connection) -> None:
    """Opens a database of an older version, which copies it and brings it to the newest schema."""
    told.send(("ready",))
    ConversationStore(path).close()


def repair_until_killed(path: Path, told: Connection) -> None:
    """`exlchat sessions check --repair`."""
    told.send(("ready",))
    check_file(path, repair=True)
