"""What was typed but not yet sent, per conversation: in the database, and before there is a conversation in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.chat.store.conversations import StoreError
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from exlchat.chat.store.conversations import ConversationStore

_NEW = "new"
_LARGEST = 64_000_000
"""Bytes."""


class Drafts:
    """Texts by conversation, written at each change. A broken file counts as an empty one.

    A conversation has one draft, whichever window it was typed in.
    """

    def __init__(self, store: ConversationStore, path: Path | None) -> None:
        """`path` is of the file for the conversation that does not exist yet; `None` keeps that in memory only."""
        self._store = store
        self._path = path
        texts = {} if path is None else _read(path)
        self._new = texts.pop(_NEW, "")
        self._seen: dict[str | None, str] = {None: self._new}
        """By conversation, what is on disk as far as this window knows."""
        self._take_over(texts)

    def get(self, conversation_id: str | None) -> str:
        """The draft of a conversation (`None`: the new one); empty when there is none.

        Raises:
            StoreError: the database cannot be read.
        """
        if conversation_id is None:
            return self._new
        self._seen[conversation_id] = draft = self._store.draft(conversation_id)
        return draft

    def seen(self, conversation_id: str) -> str:
        """The draft of a conversation as it was last read or written here."""
        return self._seen.get(conversation_id, "")

    def put(self, conversation_id: str | None, queued: Sequence[str], text: str) -> str:
        """Keep prompts that wait and the text of the composer as one draft; nothing of both forgets it.

        Returns:
            What another window had left there and this one has never seen; empty where there was no such thing.

        Raises:
            FolderError: the file cannot be written; the draft is kept in memory.
            StoreError: the database cannot be written.
        """
        draft = "\n\n".join(part for part in (*queued, text) if part.strip())
        if conversation_id is not None:
            there = self._store.draft(conversation_id)
            unseen = self._unseen(conversation_id, there, draft)
            if draft != there:
                self._store.keep_draft(conversation_id, draft)
            self._seen[conversation_id] = draft
            return unseen
        self._new = draft
        return self._write_new() if draft != self._seen[None] else ""

    def _unseen(self, conversation_id: str | None, there: str, draft: str) -> str:
        return "" if there in (draft, self._seen.get(conversation_id, "")) else there

    def _write_new(self) -> str:
        if self._path is None:
            return ""
        unseen = self._unseen(None, _read(self._path).get(_NEW, ""), self._new)
        texts = {_NEW: self._new} if self._new else {}
        paths.atomic_write(self._path, json.dumps(texts, ensure_ascii=False, indent=1) + "\n")
        self._seen[None] = self._new
        return unseen

    def _take_over(self, texts: dict[str, str]) -> None:
        """Drafts of conversations lay in the file once. One that cannot be moved stays there, for another start."""
        if not texts:
            return
        try:
            for conversation_id, text in texts.items():
                there = conversation_id in self._store.find_ids("conversation", conversation_id)
                if there and not self._store.draft(conversation_id):
                    self._store.keep_draft(conversation_id, text)
            self._write_new()
        except (StoreError, paths.FolderError):
            return


def _read(path: Path) -> dict[str, str]:
    try:
        content = read_json_file(path, largest=_LARGEST, kind="file of drafts")
    except UntrustedFileError:
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: text for key, text in content.items() if isinstance(text, str)}
