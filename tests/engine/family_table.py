"""The largest error of each architecture, from the run of the tests to the docs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

WAYS = ("at once", "in chunks", "token by token")
BEGIN, END = "<!-- errors -->\n", "<!-- end of errors -->\n"


@dataclass(slots=True)
class ErrorTable:
    """Relative errors by architecture, case and way of computing."""

    found: dict[str, dict[str, dict[str, float]]] = field(default_factory=lambda: defaultdict(dict))

    def note(self, architecture: str, case: str, way: str, error: float) -> None:
        """One error."""
        self.found[architecture].setdefault(case, {})[way] = error

    def lines(self) -> list[str]:
        """A Markdown table."""
        head = ["| architecture | models | " + " | ".join(WAYS) + " |", "|---|---|" + "---|" * len(WAYS)]
        for architecture in sorted(self.found):
            cases = self.found[architecture].values()
            worst = [max(errors.get(way, 0.0) for errors in cases) for way in WAYS]
            head.append(f"| `{architecture}` | {len(cases)} | " + " | ".join(f"{error:.1e}" for error in worst) + " |")
        return head

    def write(self, page: Path) -> None:
        """Puts the table between the marks of a page."""
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        page.write_text(before + BEGIN + "\n".join(self.lines()) + "\n" + END + after, encoding="utf-8")
