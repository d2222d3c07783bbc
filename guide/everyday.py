"""Questions in everyday words, and how what the guide says to one is judged."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from exlchat.app.guide.facts import load_facts
from exlchat.app.guide.quoting import UNKNOWN, quoted

FILE = Path(__file__).with_name("everyday.toml")
NOTHING = "unknown"
"""In the place of a fact: it is right to say that one does not know."""

Part = Literal["tuning", "held_out", "strangers", "strangers_held_out"]
Verdict = Literal["right", "unknown", "wrong"]
"""`unknown` is an answer that says it does not know what is written."""


@dataclass(frozen=True)
class Everyday:
    """A question, and the facts of which one answers it, or `NOTHING`."""

    ask: str
    facts: tuple[str, ...]

    def verdict(self, answer: str) -> Verdict:
        if answer in refusals():
            return "right" if NOTHING in self.facts or answer in self._answers() else "unknown"
        return "right" if answer in self._answers() else "wrong"

    def _answers(self) -> set[str]:
        facts = load_facts()
        return {quoted(facts[name]) for name in self.facts if name != NOTHING}


@cache
def refusals() -> frozenset[str]:
    """What is said where nothing is known."""
    facts = load_facts().values()
    return frozenset(quoted(fact) for fact in facts if fact.out_of_scope or fact.id in (UNKNOWN, "gibberish"))


@cache
def load_everyday(part: Part) -> Sequence[Everyday]:
    """The questions of a part; of those held out only the score is looked at.

    Raises:
        ValueError: one names a fact that does not exist.
    """
    questions = [Everyday(ask, tuple(facts)) for ask, facts in tomllib.loads(FILE.read_text("utf-8"))[part].items()]
    for question in questions:
        if unknown := set(question.facts) - load_facts().keys() - {NOTHING}:
            raise ValueError(f"{question.ask!r} is answered by {sorted(unknown)[0]}, which does not exist")
    return questions
