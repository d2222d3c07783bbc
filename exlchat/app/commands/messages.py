"""What is done with single messages, and the branches that they stand on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from exlchat.app.chat import tree_actions
from exlchat.app.chat.session import NotPossibleError
from exlchat.app.commands import action
from exlchat.app.commands.conversations import undo_in_list
from exlchat.chat.model import newest_record
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.view import View

command = partial(action.command, topic="Messages and branches")

_SAID_CELLS = 60


@command(
    "pin",
    "Pin a message",
    "Have the model go on seeing the last message, or the Nth from the end, when the oldest are left out.",
    "/pin",
    "[N]",
    when=lambda now: now.can_retry and not now.answering,
    after="continue",
)
def pin(view: View, back: str) -> None:
    _mark(view, pinned_line(view, tree_actions.said_back(view.session, back).id, pinned=True))


@command(
    "unpin",
    "Unpin a message",
    "Take the pin from the last message, or from the Nth from the end.",
    "/unpin",
    "[N]",
    when=lambda now: now.can_retry and not now.answering,
)
def unpin(view: View, back: str) -> None:
    _mark(view, pinned_line(view, tree_actions.said_back(view.session, back).id, pinned=False))


@command(
    "leave-out",
    "Leave a message out",
    "Have the model not see the last message, or the Nth from the end; it stays in the conversation.",
    "/leave-out",
    "[N]",
    when=lambda now: now.can_retry and not now.answering,
    aliases=("/hide", "/exclude"),
)
def leave_out(view: View, back: str) -> None:
    _mark(view, left_out_line(view, tree_actions.said_back(view.session, back).id, left_out=True))


@command(
    "take-in",
    "Take a message in again",
    "Have the model see the last message that was left out, or the Nth from the end.",
    "/take-in",
    "[N]",
    when=lambda now: now.can_retry and not now.answering,
    aliases=("/unhide", "/include"),
)
def take_in(view: View, back: str) -> None:
    session = view.session
    if back:
        message = tree_actions.said_back(session, back)
    else:
        found = next((one for one in reversed(session.branch) if one.left_out), None)
        if found is None:
            raise NotPossibleError("no message of this conversation is left out")
        message = found
    _mark(view, left_out_line(view, message.id, left_out=False))


def _mark(view: View, line: str) -> None:
    view.show_messages()
    view.tell(line)


def pinned_line(view: View, message_id: str, *, pinned: bool) -> str:
    """Pin a message or take the pin away, and say so."""
    said = one_line(tree_actions.pin(view.session, message_id, pinned=pinned).text, _SAID_CELLS)
    return f"Pinned: the model goes on seeing “{said}”" if pinned else f"No longer pinned: “{said}”"


def left_out_line(view: View, message_id: str, *, left_out: bool) -> str:
    """Leave a message out or take it in again, and say so."""
    said = one_line(tree_actions.leave_out(view.session, message_id, left_out=left_out).text, _SAID_CELLS)
    return f"Left out: the model does not see “{said}”" if left_out else f"The model sees “{said}” again"


@command(
    "summary",
    "Summary of the earlier conversation",
    "Show the summary that the model sees in the place of the oldest messages.",
    "/summary",
    when=lambda now: now.has_answer,
)
def summary(view: View, _: str) -> None:
    record = newest_record(view.session.branch)
    if record is None or not record.summary:
        raise NotPossibleError("the model sees no summary in this conversation")
    view.note(f"Summary of what is no longer seen:\n{record.summary}")


command(
    "messages",
    "Go to the messages",
    "Go to the messages, to copy, edit or branch off from one; escape comes back.",
    "/messages",
    keys=("ctrl+up",),
    when=lambda now: now.has_messages,
    in_lines="List the messages of this conversation, numbered from the end.",
    after="copy",
)
command(
    "find",
    "Find in this conversation",
    "Find a text in this conversation; Enter and the arrow keys go from place to place.",
    "/find",
    "[TEXT]",
    keys=("ctrl+f",),
    when=lambda now: now.has_messages,
    in_lines="List the messages of this conversation that have TEXT, numbered from the end.",
)
command(
    "tree",
    "Branches",
    "Show all branches of this conversation, and go to one; with N to the Nth message of that list.",
    "/tree",
    "[N]",
    keys=("t",),
    place="message",
    when=lambda now: now.has_messages,
    in_lines="List all branches of this conversation; with N show the Nth message of that list, and what is below it.",
    after="compare",
    aliases=("/branches",),
)
command(
    "search",
    "Search everything",
    "Search all conversations, and go to the message that was found.",
    "/search",
    "[TEXT]",
    keys=("f3",),
    in_lines="Search all conversations; /search #N goes to the Nth of what was found last.",
)
command(
    "edit",
    "Edit a message",
    "Change a message of yours, which is answered anew, or of the model; with N the Nth from the end.",
    "/edit",
    "[N]",
    keys=("e",),
    place="message",
    when=lambda now: now.can_retry and not now.answering,
    in_lines="Change a message: in the line, in --plain in $EDITOR or by typing it anew; with N the Nth from the end.",
)
command(
    "alternative",
    "Show an alternative",
    "Show alternative number N of the last message that has any, or of the Mth from the end.",
    "/alternative",
    "N [M]",
    when=lambda now: now.has_messages and not now.answering,
    in_palette=False,
    aliases=("/alt",),
)
command(
    "branch",
    "Branch off",
    "Open a new conversation with copies of the messages up to this one, or to the Nth from the end.",
    "/branch",
    "[N]",
    keys=("b",),
    place="message",
    when=lambda now: now.can_retry and not now.answering,
    aliases=("/fork", "/checkpoint"),
)


@command(
    "cut",
    "Delete from here",
    "Delete a message and what follows it: the last one, or from the Nth from the end on; /undo brings it back.",
    "/cut",
    "[N]",
    keys=("d", "delete"),
    place="message",
    when=lambda now: now.can_retry and not now.answering,
    aliases=("/del",),
)
def cut(view: View, back: str) -> None:
    cut_from(view, tree_actions.said_back(view.session, back).id)


def cut_from(view: View, message_id: str, *, undone_by: str = "/undo") -> None:
    tree_actions.delete_from(view.session, message_id)
    view.show_branch()
    view.tell(f"Deleted from there on; {undone_by} brings it back")


@command(
    "undo",
    "Undo",
    "Take back what was done last: an edit, a jump, a pin, a deleted message, or what was done to the list.",
    "/undo",
    keys=("u",),
    place="message",
    when=lambda now: (now.has_messages or now.can_undo_in_list) and not now.answering,
    after="delete",
)
def undo(view: View, _: str) -> None:
    if view.session.list_history.is_newest:
        undo_in_list(view)
        return
    change = tree_actions.undo(view.session)
    view.show_branch()
    view.tell(f"Undone: {change.what}; /redo does it again")


@command(
    "redo",
    "Redo",
    "Do again what was undone last in this conversation.",
    "/redo",
    keys=("U",),
    place="message",
    when=lambda now: now.has_messages and not now.answering,
)
def redo(view: View, _: str) -> None:
    change = tree_actions.redo(view.session)
    view.show_branch()
    view.tell(f"Done again: {change.what}")


# On the message under the cursor

command(
    "message-up",
    "Message above",
    "Go to the message above.",
    keys=("up", "k"),
    place="message",
    in_palette=False,
    after="logprobs",
)
command(
    "message-down", "Message below", "Go to the message below.", keys=("down", "j"), place="message", in_palette=False
)
command(
    "message-ends",
    "First and last message",
    "Go to the first or the last message.",
    keys=("home", "end"),
    place="message",
    in_palette=False,
)
command(
    "copy-message", "Copy", "Copy the message to the clipboard.", keys=("c", "y"), place="message", in_palette=False
)
command(
    "copy-code",
    "Copy code",
    "Copy the first code block of the message to the clipboard; once more, the next one.",
    keys=("C",),
    place="message",
    in_palette=False,
)
command(
    "answer-again",
    "Answer again",
    "Have the message answered again, or the answer given again beside itself.",
    keys=("r",),
    place="message",
    in_palette=False,
)
command(
    "alternative-before",
    "Alternative before",
    "Show the alternative that was written before.",
    keys=("left", "h"),
    place="message",
    in_palette=False,
)
command(
    "alternative-after",
    "Alternative after",
    "Show the alternative that was written after.",
    keys=("right", "l"),
    place="message",
    in_palette=False,
)
command(
    "pin-message",
    "Pin or unpin",
    "Have the model go on seeing the message when the oldest are left out, or no longer.",
    keys=("p",),
    place="message",
    in_palette=False,
)
command(
    "leave-out-message",
    "Leave out or take in",
    "Have the model not see the message, or see it again.",
    keys=("x",),
    place="message",
    in_palette=False,
)
command(
    "fold",
    "Fold or unfold",
    "Fold the message to one line, or unfold it.",
    keys=("space",),
    place="message",
    in_palette=False,
)
command(
    "fold-above",
    "Fold what is above",
    "Fold all messages above to one line each, or unfold them.",
    keys=("Z",),
    place="message",
    in_palette=False,
)
command(
    "continue-message",
    "Go on",
    "Have the model go on with the last answer, if it was cut or changed.",
    keys=("n",),
    place="message",
    in_palette=False,
    needs="begun",
)
command(
    "source",
    "Source",
    "Show a message as it was written, or again as it is meant: the last one, or the Nth from the end.",
    "/source",
    "[N]",
    keys=("o",),
    place="message",
    when=lambda now: now.has_messages,
    in_palette=False,
    in_lines="Write a message as it was written: the last one, or the Nth from the end.",
    aliases=("/raw",),
)
command(
    "save-code",
    "Save the code",
    "Save the code blocks of a message to FILE: of the last one that has any, or of the Nth from the end.",
    "/code",
    "[N] [FILE]",
    keys=("s",),
    place="message",
    when=lambda now: now.has_messages,
)
command(
    "open-link",
    "Open a link",
    "Open or copy a link of the message; where it leads is shown before.",
    keys=("w",),
    place="message",
    in_palette=False,
)
command(
    "fold-code",
    "Fold or unfold code",
    "Fold the long code blocks of the message to their first lines, or unfold them.",
    keys=("z",),
    place="message",
    in_palette=False,
)
command(
    "found-next",
    "Next place",
    "Go to the next place of what is marked, after a search.",
    keys=("enter",),
    place="message",
    in_palette=False,
)
command(
    "found-before",
    "Place before",
    "Go to the place before, of what is marked after a search.",
    keys=("N",),
    place="message",
    in_palette=False,
)
command(
    "leave-messages", "Back", "Go back to the message you write.", keys=("escape",), place="message", in_palette=False
)
