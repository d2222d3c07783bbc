"""The questions kept out of the training text, and how an answer to one is judged."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("held_out.toml")
_NOT_WORD = re.compile(r"[^\w+/-]+")


@dataclass(frozen=True)
class HeldOut:
    """A question, what was asked before it, and the strings of which the answer must hold one.

    `round` tells when it was written: 1 before the corpus, the others between trainings, as told in `evaluate.py`.
    """

    ask: str
    must_contain: tuple[str, ...]
    before: tuple[str, ...] = ()
    round: int = 1

    def passed_by(self, answer: str) -> bool:
        """Whether the answer names the right command, key or fact."""
        return any(wanted.lower() in answer.lower() for wanted in self.must_contain)


def load_held_out() -> list[HeldOut]:
    """All held-out questions, in the order of the file."""
    entries = tomllib.loads(FILE.read_text("utf-8"))["question"]
    return [
        HeldOut(entry["ask"], tuple(entry["must_contain"]), tuple(entry.get("before", ())), entry["round"])
        for entry in entries
    ]


def normalised(question: str) -> str:
    """Lower case and without punctuation, for telling whether two questions are the same."""
    return _NOT_WORD.sub(" ", question.lower()).strip()
