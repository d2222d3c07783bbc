"""What is done with conversations as a whole."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.app.chat.list_order import in_order
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.commands.arranging import delete_all
from exlchat.chat.model import TITLE_LENGTH, clean_title, is_cut
from exlchat.chat.store.conversations import LostFileError, StoreError
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.app.view import View
    from exlchat.chat.model import ConversationSummary

command = partial(action.command, topic="Conversations")

TITLE_CELLS = 60


@command(
    "new",
    "New conversation",
    "Start a new conversation.",
    "/new",
    keys=("ctrl+n",),
    after="stop",
    aliases=("/clear", "/reset", "/newchat"),
)
def new(view: View, _: str) -> None:
    view.new_conversation()


@command(
    "sidebar",
    "Conversations",
    "Show or hide the sidebar with the conversations.",
    "/sidebar",
    keys=("ctrl+b",),
    in_lines="List the conversations by number; /open N opens one.",
)
def show_list(view: View, _: str) -> None:
    view.list_conversations()


@command(
    "open",
    "Open a conversation",
    "Open the Nth conversation of the list, the first being 1; without N, go to the list.",
    "/open",
    "[N]",
    in_lines="Open the Nth conversation of the list, the first being 1; without N, write the list.",
    aliases=("/chat", "/chats", "/conversations", "/sessions", "/session"),
)
def open_one(view: View, number: str) -> None:
    """The one of that number in the list; without a number the list itself."""
    if not number:
        view.list_conversations()
        return
    view.open_conversation(numbered(view.session, number).id)


def numbered(session: ChatSession, number: str) -> ConversationSummary:
    """The conversation of that number in the list, counted from 1."""
    listed = in_order(session.store.list_conversations())
    if not listed:
        raise NotPossibleError("there is no conversation yet")
    if not number.isdecimal() or not 1 <= int(number) <= len(listed):
        raise NotPossibleError(
            f"{one_line(number, 20)} is no number of a conversation, from 1, the first of the list, to {len(listed)}"
        )
    return listed[int(number) - 1]


command(
    "tab",
    "New tab",
    "Open a new conversation in a tab beside this one, or with N the Nth of the list; what is open goes on there.",
    "/tab",
    "[N]",
)
command("close-tab", "Close the tab", "Close this tab; its conversation stays on the list.", "/close", keys=("alt+w",))
command("next-tab", "Next tab", "Go to the next tab.", keys=("alt+n",))
command("previous-tab", "Previous tab", "Go to the tab before.", keys=("alt+p",))

NOTHING_KEPT = "nothing of this start is kept"


@command(
    "incognito",
    "Incognito",
    "Go to conversations that are kept nowhere, in tabs of their own; again goes back to the others.",
    "/incognito",
    in_lines="Say how to start it so that nothing is kept.",
    aliases=("/private", "/tempchat"),
)
def incognito(view: View, _: str) -> None:
    if not view.session.store.is_kept:
        raise NotPossibleError(f"{NOTHING_KEPT} already")
    view.tell("exlchat --incognito --line keeps nothing; this start keeps all")


@command(
    "keep",
    "Keep this conversation",
    "Put a conversation that is kept nowhere among the others after all.",
    "/keep",
    when=lambda now: now.has_messages,
)
def keep(view: View, _: str) -> None:
    if view.session.store.is_kept:
        raise NotPossibleError("this conversation is kept")
    raise NotPossibleError(f"{NOTHING_KEPT}; /save FILE writes this conversation to a file")


@command(
    "rename",
    "Rename this conversation",
    "Give this conversation a title.",
    "/rename",
    "TITLE",
    when=lambda now: now.has_messages,
    after="cut",
    aliases=("/title", "/name"),
)
def rename(view: View, title: str) -> None:
    conversation_id = view.session.conversation_id
    if conversation_id is None:
        raise NotPossibleError("a new conversation has no title yet; write in it first")
    if title:
        rename_to(view, conversation_id, title)
    else:
        view.ask_title(conversation_id)


def rename_to(view: View, conversation_id: str, title: str | None) -> None:
    """Give a title that was asked for; `None` keeps the old one."""
    if title is None:
        return
    try:
        view.session.rename(conversation_id, title)
    except StoreError as error:
        view.tell(str(error), warning=True)
    else:
        if is_cut(title, clean_title(title)):
            view.tell(f"The title is cut: one is a line of {TITLE_LENGTH} characters at most")
    view.refresh_around()


@command(
    "save",
    "Save this conversation",
    "Write this conversation to FILE; alone, go on in a new database where the old one was lost.",
    "/save",
    "[FILE]",
    aliases=("/export",),
)
def save(view: View, name: str) -> None:
    """Write the open conversation to the file of this name; without one, go on in a database that is there."""
    if name:
        view.tell(f"Saved {_save_copy(view, name)}")
    else:
        _save_anew(view)


def _save_copy(view: View, name: str) -> Path:
    # No start needs them.
    from exlchat.app.chat.writing_files import write_conversations
    from exlchat.chat.exchange.limits import ExchangeError

    session = view.session
    tree = session.unkept.in_tree(session.store.read_tree(session.require_open()))
    try:
        target = paths.expanded(name)
        if os.path.lexists(target):
            raise NotPossibleError(f"{target} is there already; choose another name")
        write_conversations(target, [tree])
    except ExchangeError as error:
        raise NotPossibleError(str(error)) from None
    return target


def _save_anew(view: View) -> None:
    session = view.session
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
    view.unsent.keep()
    view.show_messages()
    view.refresh_around()
    view.tell(f"This conversation goes on in {path}; what others there were is not in it")


@command(
    "delete",
    "Delete this conversation",
    "Delete this conversation; /undo brings it back.",
    "/delete",
    when=lambda now: now.has_messages,
    aliases=("/deletechat",),
)
def delete(view: View, _: str) -> None:
    if (conversation_id := view.session.conversation_id) is None:
        raise NotPossibleError("this conversation is new and has nothing to delete")
    delete_all(view, [conversation_id])


def undo_in_list(view: View) -> None:
    change = view.session.list_history.undo()
    if change is None:
        raise NotPossibleError("nothing was done to the list since the start")
    if change.opens is not None:
        view.open_conversation(change.opens)
    else:
        view.refresh_around()
    view.tell(change.told)


command(
    "open-selected",
    "Open",
    "Open the conversation.",
    keys=("enter",),
    place="sidebar",
    in_palette=False,
    after="leave-messages",
)
command("tab-selected", "Open in a tab", "Open it in a tab of its own.", keys=("t",), place="sidebar", in_palette=False)
command("rename-selected", "Rename", "Rename the conversation.", keys=("r",), place="sidebar", in_palette=False)
command(
    "delete-selected", "Delete", "Delete the conversation.", keys=("d", "delete"), place="sidebar", in_palette=False
)
command(
    "undo-delete",
    "Undo",
    "Take back what was done to the list last: bring back what was deleted, tags as they were.",
    keys=("u",),
    place="sidebar",
    in_palette=False,
)
command("leave-sidebar", "Back", "Go back to the message.", keys=("escape",), place="sidebar", in_palette=False)
