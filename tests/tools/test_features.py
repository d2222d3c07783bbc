"""docs/features.md: its counts are those of its rows, and what its rows name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exlchat.app.commands.actions import ACTIONS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "features.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
COMMANDS = {name for action in ACTIONS for name in (action.slash, *action.aliases)}
KEYS = {key for action in ACTIONS for key in action.keys}


def test_counts_are_those_of_the_rows() -> None:
    said = re.search(r"\*\*(\d+) yes, (\d+) partly, (\d+) no\*\*", PAGE)
    assert said is not None
    verdicts = [row[2] for row in ROWS]
    assert [int(row[0]) for row in ROWS] == list(range(1, 137))
    assert list(map(int, said.groups())) == [verdicts.count(word) for word in ("yes", "partly", "no")]


@pytest.mark.parametrize("row", [row for row in ROWS if row[2] != "no"], ids=lambda row: row[1])
def test_what_a_row_names_is_there(row: list[str]) -> None:
    shown = re.findall(r"\]\(([^)]+)\)", row[-1])
    assert shown
    for path in shown:
        assert (DOCS / path).exists(), path
    for command in re.findall(r"`(/[a-z-]+)", row[3]):
        assert command in COMMANDS
    for key in re.findall(r"\b(f\d|ctrl\+\w)\b", row[3]):
        assert key in KEYS
