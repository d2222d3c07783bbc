"""Asks the shipped guide every held-out question on the CPU and writes docs/guide.md: `python -m guide.evaluate`."""

from __future__ import annotations

import argparse
import platform
import time
from pathlib import Path

import torch

from exlchat.paths import bundled_model
from guide.asking import answer_held_out, load_on_cpu
from guide.held_out import HeldOut, load_held_out

PAGE = Path(__file__).parent.parent / "docs" / "guide.md"
ROUNDS = {
    1: "written before the corpus",
    2: "written after the first model, which answered 33 of 45 before the corpus grew",
    3: "written after the second model, which answered 28 of 36 before the corpus grew again",
    4: "written after the third training and never used to change anything",
    5: "on GPTQ, the CUDA kernels, the small caches and the bench, written before a fact about them was",
    6: "on what was typed before, files, links, code, odds, panels and the line mode, written before the patterns",
}


def main() -> None:
    """Prints the failures and the score, and writes the page."""
    parser = argparse.ArgumentParser(
        prog="python -m guide.evaluate", description="Asks the guide the held-out questions."
    )
    parser.add_argument("--model", type=Path, default=bundled_model(), help="another model folder")
    parser.add_argument("--no-page", action="store_true", help="only print, do not write docs/guide.md")
    options = parser.parse_args()
    model = load_on_cpu(options.model)
    clock = time.perf_counter()
    answered = [(question, answer_held_out(model, question)) for question in load_held_out()]
    seconds = time.perf_counter() - clock
    for question, answer in answered:
        if not question.passed_by(answer):
            print(f"FAILED {question.ask!r} -> {answer!r}")
    for line in _scores(answered):
        print(line)
    print(f"{seconds:.0f} s")
    if not options.no_page:
        PAGE.write_text(_page(answered, options.model), "utf-8")


def _scores(answered: list[tuple[HeldOut, str]]) -> list[str]:
    lines = []
    for number, story in ROUNDS.items():
        of_round = [question.passed_by(answer) for question, answer in answered if question.round == number]
        if of_round:
            lines.append(
                f"round {number}, {story}: {sum(of_round)} of {len(of_round)} ({sum(of_round) / len(of_round):.0%})"
            )
    passed = sum(question.passed_by(answer) for question, answer in answered)
    return [*lines, f"all: {passed} of {len(answered)} ({passed / len(answered):.1%})"]


def _page(answered: list[tuple[HeldOut, str]], folder: Path) -> str:
    size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
    scores = "\n".join(f"- {line}" for line in _scores(answered))
    rows = "\n".join(_row(question, answer) for question, answer in answered)
    return f"""# The guide: what it was asked, and what it said

The bundled model answers questions that are kept out of its training text, at temperature 0. An answer passes when it
names the right command, key or fact: it must contain one of the strings given for its question in
`guide/held_out.toml`. How the model is made stands in `guide/README.md`.

{scores}

Command: `python -m guide.evaluate`, with torch {torch.__version__} on one core ({platform.machine()}),
model folder {size:.1f} MB.

| question | answer | |
|---|---|---|
{rows}
"""


def _row(question: HeldOut, answer: str) -> str:
    asked = " → ".join((*question.before, question.ask))
    return f"| {_cell(asked)} | {_cell(answer)} | {'ok' if question.passed_by(answer) else '**wrong**'} |"


def _cell(text: str) -> str:
    """Text for a table cell: one line, and nothing in it is taken for markup of the table."""
    return " ".join(text.replace("```", "`").split()).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
