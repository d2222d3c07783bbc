"""Looks for patterns of strangers in a text: the work of the child process of `lore_patterns`.

A pattern may take for ever to be compiled or to find nothing. Python's `re` listens to signals while it matches, so
each pattern has its own bound of processor time, and one that reaches it costs the others nothing.
"""

from __future__ import annotations

import re
import signal
import time
from functools import lru_cache
from types import FrameType
from typing import Any, Final, NoReturn

FOUND: Final = "found"
ABSENT: Final = "absent"
BROKEN: Final = "broken"
TOO_LONG: Final = "too long"
UNTRIED: Final = "untried"

SECONDS = 0.1
"""Of processor time for one pattern; one that means well needs a fiftieth of that."""


class _TooLongError(Exception):
    pass


def handle(request: dict[str, Any]) -> dict[str, Any]:
    """For each of `patterns`, in Python's words, whether it is in `text`: one of the words above.

    When `seconds` of processor time are gone, those that are left are not tried; `used` is what has gone.
    """
    signal.signal(signal.SIGVTALRM, _stop)
    began, text, answers = time.process_time(), request["text"], []
    for one in request["patterns"]:
        left = time.process_time() < began + request["seconds"]
        answers.append(_looked_for(one, text) if left else UNTRIED)
    return {"answers": answers, "used": time.process_time() - began}


def _looked_for(pattern: str, text: str) -> str:
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
        try:
            return FOUND if _compiled(pattern).search(text) else ABSENT
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except re.error:
        return BROKEN
    except (_TooLongError, MemoryError, OverflowError, RecursionError):
        return TOO_LONG


@lru_cache(maxsize=10_000)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise _TooLongError
