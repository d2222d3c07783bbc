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
    """Texts by conversation, written at each change. A broken file counts as an empty one."""

    def __init__(self, store: ConversationStore, path: Path | None) -> None:
        """`path` is of the file for the conversation that does not exist yet; `None` keeps that in memory only."""
        self._store = store
        self._path = path
        texts = {} if path is None else _read(path)
        self._new = self._on_disk = texts.pop(_NEW, "")
        self._take_over(texts)

    def get(self, conversation_id: str | None) -> str:
        """The draft of a conversation (`None`: the new one); empty when there is none.

        Raises:
            StoreError: the database cannot be read.
        """
        return self._new if conversation_id is None else self._store.draft(conversation_id)

    def put(self, conversation_id: str | None, queued: Sequence[str], text: str) -> None:
        """Keep prompts that wait and the text of the composer as one draft; nothing of both forgets it.

        Raises:
            FolderError: the file cannot be written; the draft is kept in memory.
            StoreError: the database cannot be written.
        """
        draft = "\n\n".join(part for part in (*queued, text) if part.strip())
        if conversation_id is not None:
            if draft != self._store.draft(conversation_id):
                self._store.keep_draft(conversation_id, draft)
            return
        self._new = draft
        if draft != self._on_disk:
            self._write_new()

    def _write_new(self) -> None:
        if self._path is not None:
            texts = {_NEW: self._new} if self._new else {}
            paths.atomic_write(self._path, json.dumps(texts, ensure_ascii=False, indent=1) + "\n")
            self._on_disk = self._new

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
