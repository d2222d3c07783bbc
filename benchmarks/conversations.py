"""How long the store takes with 20,000 messages in 500 conversations: list, search, open, write, check.

    .venv/bin/python benchmarks/conversations.py

Prints a Markdown table with the machine named above it. Times are medians of 20 runs on a file that was just opened.
"""

from __future__ import annotations

import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from exlchat.chat.model import AnswerRecord, ConversationTree, Message
from exlchat.chat.store.conversations import ConversationStore
from exlchat.llm.events import GenerationStats
from exlchat.llm.sampling import SamplingSettings

CONVERSATIONS = 500
MESSAGES = 20_000
WORDS = 120
RUNS = 20


def main() -> None:
    """Fills a database, measures, prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "conversations.db"
        vocabulary = fill(path)
        store = ConversationStore(path)
        ident = store.list_conversations()[0].id
        common, rare = vocabulary[0], vocabulary[-1]
        figures = {
            "list 500 conversations": median(store.list_conversations),
            "open a conversation of 40 messages": median(lambda: store.load(ident)),
            "search a rare word": median(lambda: store.search(rare)),
            "search two words": median(lambda: store.search(f"{vocabulary[300]} {vocabulary[301]}")),
            "search the commonest word": median(lambda: store.search(common)),
            "search while typing: one letter": median(lambda: store.search(common[0])),
            "search while typing: three letters": median(lambda: store.search(common[:3])),
            "add a message": median(lambda: store.add_message(ident, "user", "one more")),
            "check": median(store.check, runs=3),
        }
        size = path.stat().st_size / 2**20
        store.close()
    print(f"{platform.machine()}, {platform.system()}, SQLite {sqlite3.sqlite_version}; the file has {size:.0f} MiB\n")
    print("| what | ms |\n|---|---|")
    for what, seconds in figures.items():
        print(f"| {what} | {seconds * 1e3:.1f} |")


def fill(path: Path) -> list[str]:
    """Conversations of words that are drawn as words of a language are: few often, most seldom. The words."""
    chance = random.Random(20)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / (place + 1) for place in range(len(vocabulary))]
    record = AnswerRecord("m", "chatml", SamplingSettings(), GenerationStats(9, 0, 150, 0.1, 0.1, 1.0, 1), "stop_token")
    store = ConversationStore(path)
    each = MESSAGES // CONVERSATIONS
    for number in range(CONVERSATIONS):
        messages = []
        for place in range(each):
            text = " ".join(chance.choices(vocabulary, weights, k=WORDS))
            answer = place % 2
            messages.append(
                Message(
                    f"{number:04}-{place:04}",
                    f"{number:04}-{place - 1:04}" if place else None,
                    "assistant" if answer else "user",
                    text,
                    1e9 + number * 1000 + place,
                    token_ids=tuple(range(150)) if answer else (),
                    record=record if answer else None,
                )
            )
        title = " ".join(chance.choices(vocabulary, weights, k=5))
        tags = (chance.choice(["work", "home"]),) if number % 3 == 0 else ()
        tree = ConversationTree(title, 1e9, 1e9 + number, messages[-1].id, tuple(messages), f"c{number:04}", tags)
        store.write_tree(tree)
    store.close()
    return vocabulary


def median(work: Callable[[], object], *, runs: int = RUNS) -> float:
    """Seconds."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
