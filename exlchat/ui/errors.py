"""Any exception in one line a person can read."""

from __future__ import annotations

_OURS = "exlchat."


def error_line(error: Exception) -> str:
    """The message of one of our own errors as it stands (they are written as one line); others with their kind."""
    lines = str(error).strip().splitlines()
    first = lines[0].strip() if lines else ""
    if type(error).__module__.startswith(_OURS) and first:
        return first
    kind = type(error).__name__
    return f"{kind}: {first}" if first else kind
