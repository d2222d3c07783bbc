"""kill -9 in mid-answer: at most half a second of text is lost, and the answer opens again as partial."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from exlchat.chat.store.conversations import ConversationStore

ANSWERER = """
import os, sys, time
from pathlib import Path
from exlchat.chat.store.conversations import ConversationStore
from exlchat.chat.turn import answer
from exlchat.chat.turn_plan import TurnOptions
from exlchat.llm.events import TextDelta
from exlchat.llm.sampling import GREEDY
from tests.chat.scripted_engine import ScriptedEngine

store = ConversationStore(Path(sys.argv[1]))
conversation = store.create_conversation()
store.add_message(conversation.id, "user", "Tell me a long story.")
engine = ScriptedEngine()
engine.will_say("0123456789" * 60, pauses={number: 0.01 for number in range(600)})
print(conversation.id, flush=True)
for event in answer(store, engine, conversation.id, TurnOptions(sampling=GREEDY)):
    if isinstance(event, TextDelta):
        os.write(1, f"{time.time()} {event.text}\\n".encode())
"""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.sweep(1)
def test_half_a_second_at_most_is_lost(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "conversations.db"
    child = subprocess.Popen([sys.executable, "-c", ANSWERER, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    conversation_id = child.stdout.readline().strip()
    first = child.stdout.readline()
    time.sleep(random.Random(seed).uniform(0.7, 2.5))
    killed_at = time.time()
    child.kill()
    lines = [first, *child.stdout]
    child.wait()
    shown = [(float(line.split()[0]), line.split()[1]) for line in lines if line.endswith("\n")]
    store = ConversationStore(path)
    question, answer = store.load(conversation_id).branch
    store.close()
    assert question.text == "Tell me a long story."
    assert answer.status == "partial"
    assert store.recovered == 1
    text = "".join(piece for _, piece in shown)
    assert len(answer.text) > 20
    assert ("0123456789" * 60).startswith(answer.text)
    due = "".join(piece for moment, piece in shown if moment < killed_at - 0.5)
    assert len(answer.text) >= len(due), f"{len(answer.text)} of {len(text)} characters, {len(due)} were due"
    assert answer.record is not None
    assert answer.record.model == "scripted"
    assert len(answer.token_ids) >= len(answer.text)
