"""A message that is being changed in the line in which messages are typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError

if TYPE_CHECKING:
    from exlchat.ui.line.chat import LineChat

_WHAT: Final = {"user": "your message", "assistant": "the answer", "system": "the system prompt"}
_KEPT: Final = {
    "user": "Your changed message stands beside the old one and is answered:",
    "assistant": "The changed answer is kept beside the old one; /continue goes on from it:",
    "system": "The changed system prompt is kept beside the old one:",
}


class Editing:
    """Belongs to one chat and runs on its thread. What was typed before comes back afterwards."""

    def __init__(self, chat: LineChat) -> None:
        self._chat = chat
        self._message_id: str | None = None
        self._before = ""
        self.what = ""
        """What is being changed, in words; empty while nothing is."""

    @property
    def active(self) -> bool:
        """Whether a message is being changed."""
        return self._message_id is not None

    def typed(self) -> str:
        """What is typed and not sent: while a message is changed, what was typed before."""
        return self._before if self.active else self._chat.paper.typed()

    def begin(self, back: str) -> None:
        """Put a message where it can be changed.

        Raises:
            NotPossibleError: there is no such message, or an answer is on its way.
        """
        session = self._chat.session
        session.require_quiet()
        message = tree_actions.said_back(session, back)
        text = tree_actions.text_to_edit(session, message.id)
        if not self.active:
            self._before = self._chat.paper.typed()
        self._message_id, self.what = message.id, _WHAT[message.role]
        self._chat.paper.begin_edit(text, self.what)

    def leave(self) -> bool:
        """Leave the message as it is; whether one was being changed."""
        if not self.active:
            return False
        self.forget()
        self._chat.paper.end_edit(self._before)
        self._chat.tell("The message stays as it is")
        return True

    def forget(self) -> None:
        """Nothing is changed any more, and what is typed is somebody else's business."""
        self._message_id, self.what = None, ""

    def submit(self, text: str) -> str:
        """Keep the changed message, and have it answered if it is the user's; what belongs back into the line."""
        return "" if self._chat.commands.attempt(lambda: self._keep(text)) else text

    def _keep(self, text: str) -> None:
        chat = self._chat
        if self._message_id is None:
            raise NotPossibleError("no message is being changed")
        message = tree_actions.edit(chat.session, self._message_id, text)
        self.forget()
        chat.paper.end_edit(self._before)
        chat.note(_KEPT[message.role])
        chat.show_messages()
