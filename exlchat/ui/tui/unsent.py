"""What is typed and not sent, conversation by conversation: in the composer, in this run, and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.store import StoreError
from exlchat.paths import FolderError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.timer import Timer

    from exlchat.ui.tui.screens.chat import ChatScreen

_SAVE_SECONDS = 1.0


class Unsent:
    """Belongs to one screen and runs on its thread. A draft that cannot be written is told and stays in this run."""

    def __init__(self, screen: ChatScreen) -> None:
        self._screen = screen
        self._texts: dict[str | None, str] = {}
        self._timer: Timer | None = None

    def text(self) -> str:
        """What belongs into the composer when the open conversation is shown."""
        draft_id = self._screen.session.draft_id
        # The draft on disk holds prompts that wait as well; in this run those are still in the queue.
        if draft_id in self._texts:
            return self._texts[draft_id]
        try:
            return self._screen.services.drafts.get(draft_id)
        except StoreError as error:
            self._screen.tell(str(error), warning=True)
            return ""

    def keep_soon(self) -> None:
        """Something was typed."""
        if self._timer is None:
            self._timer = self._screen.set_timer(_SAVE_SECONDS, self.keep)

    def keep(self, conversation_id: str | None = None) -> None:
        """Put what is typed and not sent in a conversation, by default the open one, on disk."""
        session = self._screen.session
        if conversation_id is None or conversation_id == session.draft_id:
            conversation_id = session.draft_id
            self._texts[conversation_id] = self._screen.composer.typed
            if self._timer is not None:
                self._timer.stop()
                self._timer = None
        self._put(conversation_id, session.waiting_prompts(conversation_id), self._texts.get(conversation_id, ""))

    def forget_new(self) -> None:
        """The new conversation has become one on disk."""
        self._texts.pop(None, None)
        self._put(None, (), "")

    def _put(self, conversation_id: str | None, queued: Sequence[str], text: str) -> None:
        try:
            self._screen.services.drafts.put(conversation_id, queued, text)
        except (FolderError, StoreError) as error:
            self._screen.tell(str(error), warning=True)
