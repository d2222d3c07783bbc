"""Asks the guide the questions in everyday words and writes docs/guide.md: `python -m guide.evaluate`."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from exlchat.app.guide.quoting import Quoting
from guide.everyday import Everyday, Verdict, load_everyday

PAGE = Path(__file__).parent.parent / "docs" / "guide.md"
START, END = "<!-- the score begins -->", "<!-- the score ends -->"

Answered = Sequence[tuple[Everyday, str, Verdict]]


def main() -> None:
    """Prints the score, of the tuning part the failures too, and writes the figures of the held-out part."""
    parser = argparse.ArgumentParser(prog="python -m guide.evaluate", description="Asks the guide everyday questions.")
    parser.add_argument("--no-page", action="store_true", help="only print, do not write docs/guide.md")
    options = parser.parse_args()
    quoting = Quoting()
    # The facts are read with the first question.
    quoting.answers("hello")
    for question, answer, verdict in answered(quoting, load_everyday("tuning")):
        if verdict != "right":
            print(f"{verdict}: {question.ask!r} -> {answer[:70]!r}, wanted {', '.join(question.facts)}")
    clock = time.perf_counter()
    held_out = answered(quoting, load_everyday("held_out"))
    each = (time.perf_counter() - clock) / len(held_out)
    lines = [score("tuning", answered(quoting, load_everyday("tuning"))), score("held out", held_out)]
    lines.append(f"- {each * 1000:.1f} ms a question")
    print("\n".join(lines))
    if not options.no_page:
        before, _, rest = PAGE.read_text("utf-8").partition(START)
        PAGE.write_text(f"{before}{START}\n" + "\n".join(lines) + f"\n{END}{rest.partition(END)[2]}", "utf-8")


def answered(quoting: Quoting, questions: Sequence[Everyday]) -> Answered:
    """What the guide says to each, and what is to be thought of it."""
    said = [(question, quoting.answers(question.ask)[0]) for question in questions]
    return [(question, answer, question.verdict(answer)) for question, answer in said]


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
