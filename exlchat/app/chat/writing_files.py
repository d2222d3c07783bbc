"""Conversations into a file, which is never replaced unasked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from exlchat import paths
from exlchat.chat.exchange.limits import ExchangeError
from exlchat.chat.exchange.writing import Format, written
from exlchat.chat.model import ConversationTree

_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".md": "md",
    ".markdown": "md",
    ".html": "html",
    ".htm": "html",
    ".json": "openai",
}


def write_conversations(
    target: Path, trees: Sequence[ConversationTree], form: Format | None = None, *, replace_it: bool = False
) -> None:
    """Writes them to a file; without a `form` that which its name ends in.

    Raises:
        ExchangeError: the file is there, or they cannot be written so.
        FolderError: it cannot be written.
    """
    if not replace_it and os.path.lexists(target):
        raise ExchangeError(f"{target} is there already; choose another name, or replace it with --force")
    write_file(target, written(trees, form or _ENDINGS.get(target.suffix.lower(), "jsonl")), replace_it=replace_it)


def write_file(target: Path, text: str, *, replace_it: bool) -> None:
    """Writes at once, readable by its owner only.

    Raises:
        ExchangeError: the file is there, also if it came to be a moment ago.
        FolderError: it cannot be written.
    """
    if replace_it:
        paths.atomic_write(target, text)
        return
    paths.ensure_folder(target.parent)
    try:
        # Makes the name ours: nobody else's file of that name can be replaced from here on.
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except FileExistsError:
        raise ExchangeError(f"{target} is there already; choose another name, or replace it with --force") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ExchangeError(f"{target} cannot be written ({reason.lower()}); mend its permissions") from None
    try:
        paths.atomic_write(target, text)
    except paths.FolderError:
        target.unlink(missing_ok=True)
        raise
