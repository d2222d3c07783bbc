"""The tokenizers library, called so that whatever it raises is one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError
from exlchat.untrusted.text import one_line

_Value = TypeVar("_Value")
_LONGEST_REASON = 120


def guarded(call: Callable[[], _Value], told: Callable[[str], ModelError | RequestError]) -> _Value:
    """What `call` returns.

    The library raises plain `Exception` for what it cannot do, what Python's own conversions raise for text that is
    none, and for its own faults a panic, which is a `BaseException`.

    Args:
        call: to the library.
        told: the error for a reason, a few words without a full stop.

    Raises:
        ModelError, RequestError: what `told` makes, or `call` raises.
    """
    try:
        return call()
    except (ModelError, RequestError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise told(one_line(str(error), _LONGEST_REASON) or type(error).__name__) from error
