"""What was typed before, as prompt_toolkit asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prompt_toolkit.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from exlchat.app.composer.history import TypedHistory


class LineHistory(History):
    """The texts of a `TypedHistory`; `warn` is told when they cannot be kept."""

    def __init__(self, typed: TypedHistory, warn: Callable[[str], None]) -> None:
        super().__init__()
        self._typed = typed
        self._warn = warn

    def load_history_strings(self) -> Iterable[str]:
        """The newest first."""
        return reversed(self._typed.texts())

    def store_string(self, string: str) -> None:
        if (line := self._typed.add(string)) is not None:
            self._warn(line)
