"""Asks the guide the questions in everyday words and writes docs/guide.md: `python -m guide.evaluate`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from exlchat.app.guide.quoting import Quoting
from exlchat.llm.port import Engine
from exlchat.paths import bundled_model
from guide.asking import Conversation, answer_held_out, load_on_cpu
from guide.everyday import Everyday, Part, Verdict, load_everyday
from guide.held_out import load_held_out

PAGE = Path(__file__).parent.parent / "docs" / "guide.md"
START, END = "<!-- the score begins -->", "<!-- the score ends -->"

PARTS: dict[Part, str] = {
    "tuning": "everyday words, tuned by",
    "held_out": "everyday words, held out",
    "strangers": "strangers, tuned by",
    "strangers_held_out": "strangers, held out",
}

Answered = Sequence[tuple[Everyday, str, Verdict]]


def main() -> None:
    """Prints the scores, of the tuning part the failures too, and writes them into the page."""
    parser = argparse.ArgumentParser(prog="python -m guide.evaluate", description="Asks the guide everyday questions.")
    parser.add_argument("--no-page", action="store_true", help="only print, do not write docs/guide.md")
    options = parser.parse_args()
    model, quoting = load_on_cpu(bundled_model()), Quoting()
    lines = []
    for part, name in PARTS.items():
        answers = answered(model, quoting, load_everyday(part))
        lines.append(score(name, answers))
        for question, answer, verdict in answers if "held_out" not in part else ():
            if verdict != "right":
                print(f"{verdict}: {question.ask!r} -> {answer[:70]!r}, wanted {', '.join(question.facts)}")
    lines.append(older(model, quoting))
    print("\n".join(lines))
    if not options.no_page:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}", "utf-8")


def answered(model: Engine, quoting: Quoting, questions: Sequence[Everyday]) -> Answered:
    """What the guide says to each, and what is to be thought of it."""
    said = [(question, Conversation(model, quoting).ask(question.ask)) for question in questions]
    return [(question, answer, question.verdict(answer)) for question, answer in said]


def older(model: Engine, quoting: Quoting) -> str:
    """The questions kept out of the model's training, in whole sentences; an answer has to name the right thing."""
    questions = load_held_out()
    right = sum(question.passed_by(answer_held_out(model, question, quoting)) for question in questions)
    of = len(questions)
    return f"- whole sentences, kept out of the model's training: {right} of {of} right ({right / of:.1%})"


def score(name: str, answers: Answered) -> str:
    """In a line of Markdown."""
    counts = Counter(verdict for _, _, verdict in answers)
    of = len(answers)
    return (
        f"- {name}: {counts['right']} of {of} right ({counts['right'] / of:.1%}), {counts['wrong']} another fact "
        f"({counts['wrong'] / of:.1%}), {counts['unknown']} not known though it is written"
    )


if __name__ == "__main__":
    main()
