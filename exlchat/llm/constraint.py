"""What an answer has to be, as a plain value. No torch and no grammar library: the floors above build it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

ConstraintKind = Literal["json_schema", "regex", "choice", "grammar"]
KINDS: tuple[ConstraintKind, ...] = get_args(ConstraintKind)
LARGEST = 1_000_000
"""Characters of a schema or a grammar."""


class ConstraintError(ValueError):
    """A constraint that no answer can be held to. The text says why, in one line without control characters."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """Every answer matches it as a whole, and ends when it does and can do nothing else.

    Args:
        kind: `json_schema` (JSON Schema as JSON text), `regex`, `choice` (one of several texts), or `grammar` (in
            llguidance's variant of Lark).
        text: the schema, the pattern or the grammar; for `choice` the choices, a line each.

    Raises:
        ValueError: empty or too long, in one line. Whether it means anything only an engine can say.
    """

    kind: ConstraintKind
    text: str

    def __post_init__(self) -> None:
        if self.kind == "choice":
            # A frozen value: each choice once, so that equal ones are alike.
            object.__setattr__(self, "text", "\n".join(self.choices))
        if self.kind not in KINDS:
            raise ValueError(f"a constraint of kind {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if not self.text.strip():
            raise ValueError(f"the {self.kind.replace('_', ' ')} is empty")
        if len(self.text) > LARGEST:
            raise ValueError(
                f"the {self.kind.replace('_', ' ')} has {len(self.text):,} characters; {LARGEST:,} is most"
            )

    @property
    def choices(self) -> tuple[str, ...]:
        """Of a `choice`: what may be answered."""
        return tuple(dict.fromkeys(line for line in self.text.splitlines() if line))
