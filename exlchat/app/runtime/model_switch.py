"""Another model in the place of the present one, and the way back if it cannot be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.open_conversation import Defaults
from exlchat.app.library.shelf import shown_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from exlchat.app.chat.session import ChatSession
    from exlchat.app.library.shelf import Shelf
    from exlchat.app.runtime.jobs import Load


class ModelSwitch:
    """Belongs to the session's thread.

    Args:
        session: takes over how the next model is wanted.
        shelf: the models there are.
        load: has the engine thread load one.
        tell: takes a line for whoever waits.
    """

    def __init__(
        self, session: ChatSession, shelf: Shelf, load: Callable[[Load], None], tell: Callable[[str], None]
    ) -> None:
        self._session = session
        self._shelf = shelf
        self._load = load
        self._tell = tell
        self._before: Defaults | None = None

    def change_to(self, path: Path) -> None:
        """Have a model take the place of the present one, when the answers that are asked for have ended."""
        session = self._session
        if self._before is None:
            self._before = session.defaults
        held = self._shelf.held(path)
        # What is said in conversations goes on with the next model.
        session.use(Defaults(held, path, held.value("system")))
        self._load(self._shelf.load(path))
        if session.being_written is not None:
            self._tell(f"{shown_name(path)} is loaded when the answer has ended; Esc or ctrl+c stops that")

    def take_back(self) -> None:
        """The model before goes on: what was taken over for the other one goes as well."""
        if self._before is not None:
            before, self._before = self._before, None
            self._session.use(before)

    def settled(self) -> None:
        self._before = None
