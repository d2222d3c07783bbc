"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["ok", "warn", "missing"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` says what to do; `essential` marks a lack that exlchat cannot do without."""

    status: Status
    subject: str
    text: str
    mend: str | None = None
    essential: bool = False
