"""What other programs write into the conversations while this one runs is shown: what is shown is what is sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from exlchat.chat.store.database import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from exlchat.app.view import View
    from exlchat.chat.model import Message

LOOK_SECONDS: Final = 1.0
"""How often it is looked whether another program has written; a look takes microseconds."""
_DELETED = "This conversation was deleted by another program; what you send begins a new one"
_ANOTHER = "Another program went to another branch of this conversation, which is shown now"


class Elsewhere:
    """Belongs to one view and runs on its thread."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._changed = False
        self._deleted: str | None = None
        """The open conversation, when it was said that it was deleted."""

    async def follow(self) -> None:
        """Show what other programs write, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> str | None:
        """Show what other programs have written since the last look; what that is in the open conversation, in a line.

        While an answer of this program grows there, it is shown when that has ended.
        """
        view, session = self._view, self._view.session
        try:
            self._changed |= session.store.changed_elsewhere()
            if not self._changed or session.answering is not None:
                return None
            self._changed = False
            line = self._told()
            if self._deleted is None:
                view.unsent.hear()
        except StoreError as error:
            line = str(error)
        view.refresh_around()
        if line is not None:
            view.tell(line)
        return line

    def require_shown(self) -> bool:
        """Look, before something is sent; whether it may be: not where what it follows has changed just now."""
        line = self.look()
        session = self._view.session
        if session.conversation_id is not None and session.conversation_id == self._deleted:
            self._deleted = None
            session.start_new()
            self._view.show_conversation()
        return line is None

    def _told(self) -> str | None:
        view, session = self._view, self._view.session
        conversation = session.conversation
        if conversation is None:
            return None
        if session.store.is_deleted(conversation.id):
            told, self._deleted = self._deleted == conversation.id, conversation.id
            return None if told else _DELETED
        self._deleted = None
        before, places = session.branch, session.places
        session.reload()
        after = session.branch
        if after == before and session.places == places:
            return None
        view.show_figures()
        if _ids(after[: len(before)]) != _ids(before):
            view.show_branch()
            return _ANOTHER
        view.show_messages()
        many = len(after) - len(before)
        return f"{many} message{'s' if many > 1 else ''} came from another program" if many else None


def _ids(messages: Sequence[Message]) -> list[str]:
    return [one.id for one in messages]
