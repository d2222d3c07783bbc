"""Rendering templates: those of strangers in a process of their own, whose loss costs a line and nothing else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from exlchat.chat.prompt.formats import FORMATS
from exlchat.untrusted.child import Child, ChildError

SECONDS = 2.0
"""Of processor time for one rendering. Twenty thousand messages take a tenth of that."""

ALLOWANCE = 10.0
"""Seconds that the renderings of one template may take close together, of which a tenth of the time that passes comes
back: a prompt takes several, up to two for each message with a special token in it."""

MEMORY = 1_000_000_000
LARGEST = 200_000_000
"""Bytes of a conversation, and of the prompt that a template makes of it."""

MOST_CHARACTERS = 1_000_000
"""Of a template; the longest of any model has 30,000."""

_CHILD = Child("exlchat.chat.prompt.template_sandbox", seconds=SECONDS, memory=MEMORY, largest=LARGEST)

start = _CHILD.start
"""Has the process get ready while a model is loaded."""


class TemplateError(Exception):
    """Why there is no text, as a clause; `line` of the template where it is no template at all."""

    def __init__(self, clause: str, line: int | None = None) -> None:
        super().__init__(clause)
        self.line = line


def render(source: str, variables: Mapping[str, object], moment: datetime) -> str:
    """The text that the Jinja template `source` makes of `variables`.

    Args:
        source: of a built-in format, which is run here, or of a stranger's.
        variables: values of JSON.
        moment: the local time that the template sees.

    Raises:
        TemplateError: the template is wrong, refuses, or goes beyond what a prompt may take.
    """
    if len(source) > MOST_CHARACTERS:
        raise TemplateError(f"it has more than {MOST_CHARACTERS:,} characters; no chat template is so long")
    request = [source, dict(variables), moment.isoformat()]
    if source in _ours():
        from exlchat.chat.prompt.template_sandbox import handle

        answer = handle(request)
    else:
        answer = _asked(source, request)
    if len(answer) > 1:
        raise TemplateError(*answer)
    text: str = answer[0]
    return text


def _asked(source: str, request: object) -> list[Any]:
    if _allowance.of(source) <= 0:
        raise TemplateError(f"its renderings took more than {ALLOWANCE:g} s")
    began = time.monotonic()
    try:
        answer: list[Any] = _CHILD.ask(request)
    except ChildError as error:
        raise TemplateError(f"it {error}") from None
    finally:
        _allowance.take(time.monotonic() - began)
    return answer


class _Allowance:
    def __init__(self) -> None:
        self._source, self._left, self._since = "", ALLOWANCE, 0.0

    def of(self, source: str) -> float:
        now = time.monotonic()
        again = source == self._source
        self._left = min(ALLOWANCE, self._left + (now - self._since) / 10) if again else ALLOWANCE
        self._source, self._since = source, now
        return self._left

    def take(self, seconds: float) -> None:
        self._left -= seconds


_allowance = _Allowance()


@cache
def _ours() -> frozenset[str]:
    return frozenset(one.source for one in FORMATS)
