"""How many tokens the message that is being typed has, with the files that go with it. No terminal library."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.app.composer.file_mentions import MentionError, mentioned_files, with_files
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from exlchat.app.panels.figures import StatusFacts

PAUSE_SECONDS = 0.15
"""Counting waits for a pause in typing, so that it is not done for each letter."""
_FILES_NAMED = 3
_NAME_CELLS = 24
_PROBLEM_CELLS = 60


@dataclass(frozen=True, slots=True)
class Typed:
    """What is known of a message that is being typed.

    Args:
        tokens: how many it has; `None` where that cannot be said.
        files: names of those that go with it.
        problem: why one of them cannot.
    """

    tokens: int | None
    files: tuple[str, ...] = ()
    problem: str = ""

    def told(self, over: int) -> str:
        """One line; `over` is how many tokens do not fit. Empty where nothing is known."""
        if self.problem:
            return one_line(self.problem, _PROBLEM_CELLS)
        names = [one_line(name, _NAME_CELLS) for name in self.files[:_FILES_NAMED]]
        if len(self.files) > _FILES_NAMED:
            names.append(f"{len(self.files) - _FILES_NAMED} more")
        parts = [f"with {', '.join(names)}"] if names else []
        if self.tokens is not None:
            number = "1 token" if self.tokens == 1 else f"{self.tokens:,} tokens"
            parts.append(f"{number}, {over:,} too many" if over > 0 else number)
        return " · ".join(parts)


def typed_tokens(text: str, count: Callable[[str], int | None], folder: Path | None) -> Typed:
    """Count a message; files are named as in `folder`, and none goes with it where that is `None`.

    It may take a while: `count` of a long text does, and files are read.
    """
    if folder is None:
        return Typed(count(text))
    try:
        return Typed(count(with_files(text, folder)), tuple(mentioned_files(text, folder)))
    except MentionError as error:
        return Typed(None, problem=str(error))


def too_many(typed: Typed, facts: StatusFacts, *, all_is_kept: bool) -> int:
    """How many tokens do not fit into the context, at least: the marks of the template come on top.

    `all_is_kept` is whether the conversation stays whole beside it.
    """
    if facts.context_max is None or typed.tokens is None:
        return 0
    return max(0, ((facts.context_used or 0) if all_is_kept else 0) + typed.tokens - facts.context_max)
