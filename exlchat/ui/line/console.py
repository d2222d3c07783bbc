"""Where the line mode writes: lines that stay, and, on terminals that can, an open end that is painted again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.ui.line.formatter import Formatter, Fragments


class Console(Protocol):
    """Belongs to the session's thread."""

    @property
    def formatter(self) -> Formatter: ...

    @property
    def repaints(self) -> bool:
        """Whether there is an open end, a bar of figures, and a text that can be changed while it is typed."""

    @property
    def tail_rows(self) -> int: ...

    @property
    def in_editor(self) -> bool: ...

    def put(self, lines: Sequence[Fragments]) -> None:
        """Write lines for good."""

    def refresh(self) -> None:
        """Paint again what may change: the open end, prompts that wait, the figures."""

    def hint(self, line: str, seconds: float) -> None:
        """A line that holds for some seconds, where it can be taken away again; else it is written."""

    def typed(self) -> str:
        """What is typed and not sent."""

    def take_unfinished(self) -> None:
        """Nothing more is typed: what the terminal has of a line that is not finished is `typed` as well."""

    def set_text(self, text: str) -> None: ...

    def begin_edit(self, text: str, what: str) -> None:
        """Have a message changed: `text`, of `what` in words. The chat's `editing` is told what came of it."""

    def end_edit(self, before: str) -> None:
        """Nothing is changed any more: put what was typed before back."""

    def write_in_editor(self) -> None: ...

    def use_vi(self, wanted: bool) -> None:
        """Edit what is typed with vi's keys, or with emacs's, where it is edited here at all."""

    def set_theme(self) -> None: ...

    def copy(self, text: str) -> None:
        """To the clipboard. Raises `NotPossibleError` where there is none."""

    def leave(self) -> None:
        """Take no more input."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Take input until `leave`; `ready` is called once the first prompt is there."""
