"""Any exception in one line a person can read."""

from __future__ import annotations

import logging

_OURS = "exlchat."
_LOGGER = logging.getLogger("exlchat")


def told_error(error: Exception, *, logged: bool = True) -> str:
    """As `error_line`; an error that is none of ours goes to the log with its traceback, because nobody expected it.

    Not `logged` is one that may tell of what is kept nowhere.
    """
    if logged and not type(error).__module__.startswith(_OURS):
        _LOGGER.error("%s", error_line(error), exc_info=error)
    return error_line(error)


def error_line(error: Exception) -> str:
    """The message of one of our own errors as it stands (they are written as one line); others with their kind."""
    lines = str(error).strip().splitlines()
    first = lines[0].strip() if lines else ""
    if type(error).__module__.startswith(_OURS) and first:
        return first
    kind = type(error).__name__
    return f"{kind}: {first}" if first else kind
