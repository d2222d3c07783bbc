"""What each client was seen to do, from the run of the tests to the docs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

BEGIN, END = "<!-- clients -->\n", "<!-- end of clients -->\n"
NO_SUCH_THING = "-"

Cell = tuple[str, str]
"""A client, and something that it can do."""


class UntriedError(Exception):
    """A table is wanted of a run that left cells out; one line."""


@dataclass(slots=True)
class ClientTable:
    """Made of what ran.

    Args:
        features: the columns.
        wanted: of each client, by the name of its package, the columns that it has anything for.
    """

    features: Sequence[str]
    wanted: Mapping[str, Sequence[str]]
    _seen: dict[Cell, bool] = field(default_factory=dict)

    def begins(self, client: str, feature: str) -> None:
        """A test; until it has passed, it has failed."""
        self._seen[client, feature] = False

    def passed(self, client: str, feature: str) -> None:
        self._seen[client, feature] = True

    @property
    def untried(self) -> list[Cell]:
        cells = [(client, feature) for client, features in self.wanted.items() for feature in features]
        return [cell for cell in cells if cell not in self._seen]

    def rows(self) -> list[list[str]]:
        """Of cells, with a head. One that was not tried is empty."""
        head = ["client", "version", *self.features]
        return [head, *([client, version(client), *self._cells(client)] for client in self.wanted)]

    def _cells(self, client: str) -> Iterator[str]:
        for feature in self.features:
            if feature not in self.wanted[client]:
                yield NO_SUCH_THING
            else:
                yield {True: "yes", False: "no", None: ""}[self._seen.get((client, feature))]

    def differences(self, page: Path) -> list[str]:
        """Between the table of a page and what was seen; of what was not tried nothing is said."""
        told, seen = read_table(page), self.rows()
        if [row[:1] for row in told] != [row[:1] for row in seen] or told[0] != seen[0]:
            return [f"{page.name} has other clients or columns than the tests"]
        return [
            f"{row[0]}, {column}: {page.name} says {said or 'nothing'}, and the run {cell}"
            for row, shown in zip(seen[1:], told[1:], strict=True)
            for column, cell, said in zip(seen[0], row, shown, strict=True)
            if cell and cell != said
        ]

    def write(self, page: Path) -> None:
        """Puts the table between the marks of a page. Raises `UntriedError`: some of it was not tried."""
        if self.untried:
            some = ", ".join(f"{client} {feature}" for client, feature in self.untried[:5])
            raise UntriedError(f"{page.name}: the run left out {some}; run all of tests/server/test_clients.py")
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        head, *rows = self.rows()
        lines = [head, ["---"] * len(head), *rows]
        text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
        page.write_text(before + BEGIN + text + END + after, encoding="utf-8")


def read_table(page: Path) -> list[list[str]]:
    """The rows between the marks of a page, without the line under the head."""
    text = page.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    lines = [line.strip("|").split("|") for line in text.splitlines()]
    return [[cell.strip() for cell in line] for line in lines if not set("".join(line)) <= {"-", " "}]
