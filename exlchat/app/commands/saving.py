"""What /save does: the open conversation goes into a file, or into a new database where the old one was lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.session import NotPossibleError
from exlchat.chat.store.conversations import LostFileError

if TYPE_CHECKING:
    from exlchat.app.commands.chat_front import ChatFront


def save(front: ChatFront, name: str) -> None:
    """Write the open conversation to the file of this name; without one, go on in a database that is there.

    Raises:
        NotPossibleError, StoreError, FolderError: that cannot be done, in one line.
    """
    if name:
        front.tell(f"Saved {_save_copy(front, name)}")
    else:
        _save_anew(front)


def _save_copy(front: ChatFront, name: str) -> Path:
    # No start needs them.
    from exlchat.app.chat.writing_files import write_conversations
    from exlchat.chat.exchange.limits import ExchangeError

    session = front.session
    tree = session.unkept.in_tree(session.store.read_tree(session.require_open()))
    try:
        target = paths.expanded(name)
        if os.path.lexists(target):
            raise NotPossibleError(f"{target} is there already; choose another name")
        write_conversations(target, [tree])
    except ExchangeError as error:
        raise NotPossibleError(str(error)) from None
    return target


def _save_anew(front: ChatFront) -> None:
    session = front.session
    path = session.store.path
    if path is None:
        raise NotPossibleError("nothing of this session is kept; /save FILE writes this conversation to a file")
    try:
        session.store.require_file()
    except LostFileError:
        if session.busy:
            raise NotPossibleError("an answer is on its way; Esc or ctrl+c stops it") from None
        session.save_anew()
    else:
        raise NotPossibleError(f"all that is said is kept in {path}; /save FILE writes this conversation to a file too")
    front.unsent.keep()
    front.show_messages()
    front.refresh_around()
    front.tell(f"This conversation goes on in {path}; what others there were is not in it")
