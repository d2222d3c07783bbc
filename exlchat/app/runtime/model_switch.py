"""Another model in the place of the present one, and the way back if it cannot be loaded."""

from __future__ import annotations

from dataclasses import replace
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
    """Belongs to the thread of the sessions.

    Args:
        session: takes over how the next model is wanted, as do those that join it.
        shelf: the models there are.
        load: has the engine's jobs load one, and says whether something has to end before.
        tell: takes a line for whoever waits.
    """

    def __init__(
        self, session: ChatSession, shelf: Shelf, load: Callable[[Load], bool], tell: Callable[[str], None]
    ) -> None:
        self._sessions = [session]
        self._shelf = shelf
        self._load = load
        self._tell = tell
        self._before: dict[ChatSession, Defaults] = {}
        self._options_before = shelf.options

    def join(self, session: ChatSession) -> None:
        self._sessions.append(session)

    def part(self, session: ChatSession) -> None:
        self._sessions.remove(session)
        self._before.pop(session, None)

    def change_to(self, path: Path) -> None:
        """Have a model take the place of the present one, when the answers that are asked for have ended."""
        # What a start over a server takes as usual does not hold for a model that is loaded here.
        self._shelf.options = replace(self._shelf.options, remote=None)
        held = self._shelf.held(path)
        for session in self._sessions:
            self._before.setdefault(session, session.defaults)
            # What is said in conversations goes on with the next model.
            session.use(Defaults(held, path, held.value("system")))
        waits = self._load(self._shelf.load(path))
        if any(session.being_written is not None for session in self._sessions):
            self._tell(f"{shown_name(path)} is loaded when the answer has ended; Esc or ctrl+c stops that")
        elif waits:
            self._tell(f"{shown_name(path)} is loaded when what runs has ended; /serve shows what other programs ask")

    def take_back(self) -> None:
        """The model before goes on: what was taken over for the other one goes as well."""
        before, self._before = self._before, {}
        self._shelf.options = self._options_before
        for session, defaults in before.items():
            session.use(defaults)

    def settled(self) -> None:
        self._before, self._options_before = {}, self._shelf.options
