"""The training text: dialogs about exlchat, generated from the facts, the same for the same seed.

`python -m guide.corpus 20` prints twenty of them.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from exlchat.app.guide.facts import Fact, load_facts
from guide.held_out import load_held_out, normalised
from guide.patterns import expand
from guide.wording import AFTER_REFUSAL, LINKS, MORE, REPEAT, SYSTEM_PROMPTS, ask, follow_up

SEED = 20261120
OUT_OF_SCOPE_SHARE = 0.18
SMALL_TALK = {
    "hello": 2.0,
    "thanks": 2.0,
    "who-are-you": 1.5,
    "what-can-you-do": 1.5,
    "english-foreign": 3.0,
    "gibberish": 1.5,
    "not-known": 3.0,
}


@dataclass(frozen=True)
class Turn:
    """One question, the answer, and the fact behind it."""

    question: str
    answer: str
    fact: str


@dataclass(frozen=True)
class Dialog:
    """A conversation; `plain` ones are trained in the plain prompt format instead of ChatML."""

    turns: tuple[Turn, ...]
    system: str = ""
    plain: bool = False


class Writer:
    """Writes dialogs about the given facts."""

    def __init__(self, facts: dict[str, Fact]) -> None:
        self.facts = facts
        self._ids = [fact.id for fact in facts.values() if fact.asks or fact.goals or fact.topics or fact.names]
        self._weights = _weights([facts[name] for name in self._ids])
        self._kept_out = {normalised(question.ask) for question in load_held_out()}

    def dialog(self, random: Random) -> Dialog:
        """A conversation of one to many turns."""
        draw = random.random()
        count = (
            1
            if draw < 0.34
            else random.randint(2, 4)
            if draw < 0.76
            else random.randint(5, 9)
            if draw < 0.95
            else random.randint(10, 26)
        )
        told: dict[str, int] = {}
        turns: list[Turn] = []
        previous: Fact | None = None
        for _ in range(count):
            question, fact, own_answer = self._next(previous, random)
            while normalised(question) in self._kept_out:
                question, fact, own_answer = self._next(previous, random)
            answer = own_answer or _answer(fact, told, random)
            turns.append(Turn(question, answer, fact.id))
            if fact.id != "no-more":
                previous = fact
        system = expand(random.choice(SYSTEM_PROMPTS), random) if random.random() < 0.12 else ""
        return Dialog(tuple(turns), system, plain=random.random() < 0.04)

    def _next(self, previous: Fact | None, random: Random) -> tuple[str, Fact, str]:
        """The next question, its fact, and an answer of its own if it is not one of the fact's."""
        if previous is not None:
            then = AFTER_REFUSAL if previous.out_of_scope else previous.then
            draw = random.random()
            if then and draw < 0.38:
                target = random.choice(list(then))
                return follow_up(then[target], random), self.facts[target], ""
            if draw < 0.42:
                return follow_up(REPEAT, random), previous, ""
            if draw < 0.45 and not previous.out_of_scope:
                question = follow_up(MORE, random)
                return question, previous if previous.more else self.facts["no-more"], previous.more
        if random.random() < 0.015:
            return mash(random), self.facts["gibberish"], ""
        fact = self.facts[random.choices(self._ids, self._weights)[0]]
        question = ask(fact, random)
        if previous is not None and random.random() < 0.2:
            question = random.choice(LINKS) + question[:1].lower() + question[1:]
        return question, fact, ""


def dialogs(count: int, seed: str, facts: dict[str, Fact] | None = None) -> Iterator[Dialog]:
    """`count` dialogs; the same for the same seed and facts."""
    random = Random(f"{SEED} {seed}")
    writer = Writer(facts or load_facts())
    return (writer.dialog(random) for _ in range(count))


def split_by_wording(facts: dict[str, Fact], share: float) -> tuple[dict[str, Fact], dict[str, Fact]]:
    """Facts for training and facts for validation, whose questions come from different patterns.

    About `share` of the patterns of every fact with at least six is kept for validation.
    """
    training: dict[str, Fact] = {}
    validation: dict[str, Fact] = {}
    for fact in facts.values():
        held = [text for text in fact.asks if len(fact.asks) >= 6 and zlib.crc32(text.encode()) % 1000 < share * 1000]
        goals = [
            text for text in fact.goals if len(fact.goals) >= 3 and zlib.crc32(text.encode()) % 1000 < share * 1000
        ]
        training[fact.id] = replace(
            fact,
            asks=tuple(text for text in fact.asks if text not in held),
            goals=tuple(text for text in fact.goals if text not in goals),
        )
        if (held or goals) and not fact.out_of_scope:
            validation[fact.id] = replace(fact, asks=tuple(held), goals=tuple(goals), topics=(), names=())
    return training, validation


def mash(random: Random) -> str:
    """What a cat on the keyboard would type."""
    kind = random.randrange(4)
    if kind == 0:
        return (
            "".join(random.choice("!?.,;:#+*-_()[]%&$~^<>|=@\\ ") for _ in range(random.randint(1, 10))).strip() or "?"
        )
    if kind == 1:
        return "".join(random.choice("😀😂👍❤️🎉🤔🙏🔥😎🚀🐱🌍✨💡🥳😭") for _ in range(random.randint(1, 4)))
    letters = "asdfghjkl" if kind == 2 else "abcdefghijklmnopqrstuvwxyzaeiou"
    words = ("".join(random.choice(letters) for _ in range(random.randint(2, 9))) for _ in range(random.randint(1, 4)))
    return " ".join(words)


def _answer(fact: Fact, told: dict[str, int], random: Random) -> str:
    """The usual wording, now and then another; the next one when the same is asked again. `told` counts them."""
    index = told.get(fact.id, 0 if random.random() < 0.88 else random.randrange(len(fact.answers)))
    told[fact.id] = index + 1
    return fact.answers[index % len(fact.answers)]


def _weights(facts: list[Fact]) -> list[float]:
    """Facts with more to ask about come more often; what is out of scope has a fixed share."""
    raw = [
        (4 + len(f.asks) + 2 * len(f.goals) + 0.5 * len(f.topics) + len(f.names)) ** 0.7 * SMALL_TALK.get(f.id, 1.0)
        for f in facts
    ]
    outside = sum(weight for weight, fact in zip(raw, facts, strict=True) if fact.out_of_scope)
    inside = sum(raw) - outside
    scale = OUT_OF_SCOPE_SHARE / (1 - OUT_OF_SCOPE_SHARE) * inside / outside
    return [weight * (scale if fact.out_of_scope else 1.0) for weight, fact in zip(raw, facts, strict=True)]


def main() -> None:
    """Prints some dialogs."""
    for dialog in dialogs(int(sys.argv[1]) if len(sys.argv) > 1 else 10, "shown"):
        print("-" * 100)
        if dialog.system:
            print(f"[system] {dialog.system}")
        for turn in dialog.turns:
            print(f"> {turn.question}\n{turn.answer}    ({turn.fact})")


if __name__ == "__main__":
    main()
