"""What was typed but not yet sent, per conversation, kept in a file: a crash or a quit loses no prompt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from exlchat import paths

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NEW_CONVERSATION = "new"
"""Stands for the conversation that does not exist yet."""


class Drafts:
    """Texts by conversation id, written at each change. A broken file counts as an empty one.

    Another exlchat may keep its drafts in the same file, so a change touches its own conversation only.
    """

    def __init__(self, path: Path | None) -> None:
        """`path` `None` keeps the drafts in memory only."""
        self._path = path
        self._texts = _read(path) if path is not None else {}

    def get(self, conversation_id: str | None) -> str:
        """The draft of a conversation (`None`: the new one); empty when there is none."""
        return self._texts.get(conversation_id or NEW_CONVERSATION, "")

    def put(self, conversation_id: str | None, queued: Sequence[str], text: str) -> None:
        """Keep prompts that wait and the text of the composer as one draft; nothing of both forgets it.

        Raises:
            FolderError: the file cannot be written; the draft is kept in memory.
        """
        key = conversation_id or NEW_CONVERSATION
        draft = "\n\n".join(part for part in (*queued, text) if part.strip())
        self._texts[key] = draft
        if self._path is None:
            return
        on_disk = _read(self._path)
        if draft == on_disk.pop(key, ""):
            return
        texts = {**on_disk, key: draft} if draft else on_disk
        paths.atomic_write(self._path, json.dumps(texts, ensure_ascii=False, indent=1) + "\n")


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {key: text for key, text in content.items() if isinstance(text, str)}
