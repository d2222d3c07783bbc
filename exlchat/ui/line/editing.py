"""A message that is being changed in the line in which messages are typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands.action import attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from exlchat.app.view import View
    from exlchat.ui.line.console import Console

_WHAT: Final = {"user": "your message", "assistant": "the answer", "system": "the system prompt"}
_KEPT: Final = {
    "user": "Your changed message stands beside the old one and is answered:",
    "assistant": "The changed answer is kept beside the old one; /continue goes on from it:",
    "system": "The changed system prompt is kept beside the old one:",
}


class Editing:
    """Belongs to one chat and runs on its thread. What was typed before comes back afterwards."""

    def __init__(self, view: View, console: Console, remember: Callable[[str], object]) -> None:
        """`remember` is told of a changed message that was not kept, to be brought back as what was typed is."""
        self._view = view
        self._console = console
        self._remember = remember
        self._text = ""
        self._message_id: str | None = None
        self._before = ""
        self.what = ""
        """What is being changed, in words; empty while nothing is."""

    @property
    def active(self) -> bool:
        return self._message_id is not None

    def typed(self) -> str:
        """What is typed and not sent: while a message is changed, what was typed before."""
        return self._before if self.active else self._console.typed()

    def begin(self, back: str) -> None:
        """Put a message where it can be changed.

        Raises:
            NotPossibleError: there is no such message, or an answer is on its way.
        """
        session = self._view.session
        session.require_quiet()
        message = tree_actions.said_back(session, back)
        text = tree_actions.text_to_edit(session, message.id)
        if not self.active:
            self._before = self._console.typed()
        self._message_id, self.what, self._text = message.id, _WHAT[message.role], text
        self._console.begin_edit(text, self.what)

    def leave(self) -> bool:
        """Leave the message as it is; whether one was being changed."""
        if not self.active:
            return False
        self._remember_change()
        self.forget()
        self._console.end_edit(self._before)
        self._view.tell("The message stays as it is")
        return True

    def hear(self, text: str) -> None:
        """What was typed and not sent was changed in another window."""
        if self.active:
            self._before = text
        else:
            self._console.set_text(text)

    def end(self) -> None:
        """Another conversation is shown: nothing is changed any more."""
        if self.active:
            self._remember_change()
            self.forget()
            self._console.end_edit("")

    def _remember_change(self) -> None:
        if self._console.typed() != self._text:
            self._remember(self._console.typed())

    def forget(self) -> None:
        """Nothing is changed any more, and what is typed is somebody else's business."""
        self._message_id, self.what = None, ""

    def submit(self, text: str) -> str:
        """Keep the changed message, and have it answered if it is the user's; what belongs back into the line."""
        return "" if attempt(self._view, lambda: self._keep(text)) else text

    def _keep(self, text: str) -> None:
        view = self._view
        if self._message_id is None:
            raise NotPossibleError("no message is being changed")
        message = tree_actions.edit(view.session, self._message_id, text)
        self.forget()
        self._console.end_edit(self._before)
        view.note(_KEPT[message.role])
        view.show_messages()
