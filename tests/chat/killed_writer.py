"""A program that saves and streams until it is killed, and says what it has been told is on disk."""

from __future__ import annotations

import random
import time
from multiprocessing.connection import Connection
from pathlib import Path

from exlchat.chat.journal import AnswerJournal
from exlchat.chat.store import ConversationStore


def write_until_killed(path: Path, seed: int, told: Connection) -> None:
    """Sends ("kept", id, text) when a call has returned, ("shown", id, moment, length) for text that was shown."""
    chance = random.Random(seed)
    store = ConversationStore(path)
    ident = store.create_conversation().id
    told.send(("ready", ident))
    while True:
        tip = store.load(ident).tip_id
        match chance.randrange(6):
            case 0 if tip is not None:
                one = store.edit(tip, f"edited {chance.random()}", carry=True)
                told.send(("kept", one.id, one.text))
            case 1:
                store.undo(ident)
            case 2:
                store.rename(ident, f"title {chance.random()}")
            case 3 if tip is not None:
                store.branch_off(tip)
            case _:
                asked = store.add_message(ident, "user", f"said {chance.random()} " * chance.randrange(1, 200))
                told.send(("kept", asked.id, asked.text))
                _answer(store, ident, asked.id, chance, told)


def _answer(store: ConversationStore, ident: str, asked_id: str, chance: random.Random, told: Connection) -> None:
    begun = store.begin_answer(ident, asked_id)
    journal = AnswerJournal(store, begun.id)
    length = 0
    for number in range(chance.randrange(100)):
        journal.add("0123456789", [number])
        length += 10
        told.send(("shown", begun.id, time.monotonic(), length))
        time.sleep(0.002)
    journal.stop()
    closed = store.close_answer(begun.id, journal.text, journal.token_ids, "complete")
    told.send(("kept", closed.id, closed.text))
