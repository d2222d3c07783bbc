"""What is typed and not sent, conversation by conversation: where it is typed, in this run, and on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.chat.store.conversations import StoreError
from exlchat.paths import FolderError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from exlchat.app.chat.drafts import Drafts
    from exlchat.app.chat.session import ChatSession

    Later = Callable[[float, Callable[[], None]], Callable[[], None]]

_SAVE_SECONDS = 1.0


class Unsent:
    """Belongs to one front and runs on its thread. A draft that cannot be written is told and stays in this run."""

    def __init__(
        self,
        session: ChatSession,
        drafts: Drafts,
        *,
        typed: Callable[[], str | None],
        show: Callable[[str], None],
        later: Later,
        warn: Callable[[str], None],
        remember: Callable[[str], object],
    ) -> None:
        """`typed` says what is typed now, `None` before one can type; `show` puts another text there, and `remember`
        has what was typed in another window be brought back as what was typed before is.

        `later` calls after some seconds, unless what it returns is called before.
        """
        self._session = session
        self._drafts = drafts
        self._typed = typed
        self._show = show
        self._later = later
        self._warn = warn
        self._remember = remember
        self._texts: dict[str | None, str] = {}
        self._not_yet: Callable[[], None] | None = None
        self._warned_of: str | None = None

    def text(self) -> str:
        """What belongs where messages are typed when the open conversation is shown."""
        draft_id = self._session.draft_id
        # The draft on disk holds prompts that wait as well; in this run those are still in the queue.
        if draft_id in self._texts:
            return self._texts[draft_id]
        try:
            return self._drafts.get(draft_id)
        except StoreError as error:
            self._warn(str(error))
            return ""

    def hear(self) -> None:
        """Another program has written: where nothing was typed here since, what is typed there is shown."""
        draft_id = self._session.draft_id
        if draft_id is None or self._session.waiting_prompts(draft_id):
            return
        typed, seen = self._typed(), self._drafts.seen(draft_id)
        if typed is None or typed != seen:
            return
        try:
            there = self._drafts.get(draft_id)
        except StoreError:
            # Who looks at the conversation itself says so.
            return
        if there != seen:
            self._texts[draft_id] = there
            self._show(there)

    def keep_soon(self) -> None:
        if self._not_yet is None:
            self._not_yet = self._later(_SAVE_SECONDS, self._keep_open)

    def keep(self, conversation_id: str | None = None) -> str | None:
        """Put what is typed and not sent in a conversation, by default the open one, on disk; why it cannot be."""
        session = self._session
        if conversation_id is None or conversation_id == session.draft_id:
            conversation_id = session.draft_id
            typed = self._typed()
            if typed is None:
                # What an earlier run left is still where it was.
                return None
            self._texts[conversation_id] = typed
            if self._not_yet is not None:
                self._not_yet()
                self._not_yet = None
        return self._put(
            conversation_id, session.waiting_prompts(conversation_id), self._texts.get(conversation_id, "")
        )

    def _keep_open(self) -> None:
        self.keep()

    def forget_new(self) -> None:
        self._texts.pop(None, None)
        self._put(None, (), "")

    def _put(self, conversation_id: str | None, queued: Sequence[str], text: str) -> str | None:
        try:
            unseen = self._drafts.put(conversation_id, queued, text)
        except (FolderError, StoreError) as error:
            # Somebody who goes on typing has read it.
            if self._warned_of != str(error):
                self._warned_of = str(error)
                self._warn(self._warned_of)
            return str(error)
        self._warned_of = None
        if unseen.strip():
            self._remember(unseen)
        return None
