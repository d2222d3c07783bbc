"""What is done to the tree of the open conversation, whichever way it is asked for. No terminal library.

Every function raises `NotPossibleError` where it makes no sense now, and `StoreError` where it cannot be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.session import NotPossibleError
from exlchat.app.chat.tree_lines import tree_lines
from exlchat.chat.model import settings_of
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from exlchat.app.chat.session import ChatSession
    from exlchat.chat.model import Message
    from exlchat.chat.store.changes import Change


def said_back(session: ChatSession, back: str) -> Message:
    """The message that a number counts from the end, where 1 or nothing is the last one."""
    if back and not back.isdecimal():
        raise NotPossibleError(f"{back!r} is no number of messages counted back from the end, such as 3")
    number = int(back or 1)
    said = [message for message in session.branch if message.role != "system"]
    if not 1 <= number <= len(said):
        raise NotPossibleError(f"there is no message {number} counted from the end; there are {len(said)}")
    return said[-number]


def text_to_edit(session: ChatSession, message_id: str) -> str:
    """What of a message is put before the user to be changed: without what the model thought before it."""
    return answer_parts(_on_branch(session, message_id)).answer


def edit(session: ChatSession, message_id: str, text: str) -> Message:
    """Put a changed copy beside a message and show that; the user's own is answered, the model's can be gone on from.

    The thoughts before an answer stay as they are.
    """
    session.require_quiet()
    old = _in_conversation(session, message_id)
    whole = old.text[: answer_parts(old).start] + text
    if whole == old.text:
        raise NotPossibleError("nothing was changed; the message stays as it is")
    if old.role == "user" and not text.strip():
        raise NotPossibleError("the message is empty; delete it with what follows, or write something")
    session.unkept.save()
    # What holds now goes on, whatever held when the message was written.
    own = session.spoken.own
    says = bool(own) or settings_of(session.branch) is not None
    message = session.store.edit(message_id, whole, settings=own.as_json() if says else None)
    _changed(session)
    if message.role == "user":
        session.answer_tip()
    return message


def answer_again(session: ChatSession, message_id: str) -> None:
    """Have a message of the user answered once more, or an answer given again beside itself."""
    session.require_quiet()
    message = _on_branch(session, message_id)
    if message.role == "system":
        raise NotPossibleError("a system prompt has no answer")
    session.unkept.save()
    if message.role == "user":
        own = session.spoken.own
        session.store.set_tip(session.require_open(), message.id)
        session.reload()
        session.answer_tip(own=own)
    else:
        session.answer_tip(retry_of=message.id)


def require_laid_open(session: ChatSession, message_id: str) -> None:
    """Refuses a message whose tokens have no probabilities, and any while an answer is on its way."""
    session.require_quiet()
    message = _on_branch(session, message_id)
    if message.role != "assistant":
        raise NotPossibleError("only answers have probabilities; go to one that a model gave")
    if message.status == "streaming":
        raise NotPossibleError("this answer is still being written by another exlchat")


def alternative(session: ChatSession, message_id: str, by: int) -> Message:
    """Show the alternative of a message that was written `by` places before (-) or after it (+)."""
    session.require_quiet()
    others = session.store.alternatives(message_id, gone_on_from=False)
    ids = [one.id for one in others]
    at = ids.index(message_id) + by
    if len(others) == 1:
        raise NotPossibleError("this message has no alternatives; e edits it, r has it answered again")
    if not 0 <= at < len(others):
        raise NotPossibleError(f"this is the {'first' if by < 0 else 'last'} of {len(others)} alternatives")
    session.store.jump(ids[at])
    _changed(session)
    return others[at]


def numbered_alternative(session: ChatSession, number: str) -> tuple[int, Message]:
    """How many places from what is shown an alternative is, and of which message.

    `number` is which of them, of the last message that has any; a second number counts that message from the end.
    """
    wanted, _, back = number.partition(" ")
    if back.strip():
        last = said_back(session, back.strip())
        if last.id not in session.places:
            raise NotPossibleError(f"message {back.strip()} from the end has no alternatives")
    else:
        found = next((one for one in reversed(session.branch) if one.id in session.places), None)
        if found is None:
            raise NotPossibleError("no message of this conversation has alternatives")
        last = found
    at, of = session.places[last.id]
    if not wanted.isdecimal() or not 1 <= int(wanted) <= of:
        raise NotPossibleError(f"there are alternatives 1 to {of} of this message")
    return int(wanted) - at, last


def numbered_in_tree(session: ChatSession, number: str) -> str:
    """The id of the message that a number counts in the list of all branches (`tree_lines`), from 1."""
    listed = tree_lines(session.store.read_tree(session.require_open()).messages)
    if not number.isdecimal() or not 1 <= int(number) <= len(listed):
        raise NotPossibleError(f"{one_line(number, 20)} is no number of a message of the branches, 1 to {len(listed)}")
    return listed[int(number) - 1].message.id


def show(session: ChatSession, message_id: str) -> None:
    session.require_quiet()
    session.store.jump(message_id)
    _changed(session)


def branch_off(session: ChatSession, message_id: str) -> None:
    session.require_quiet()
    session.unkept.save()
    session.open(session.store.branch_off(message_id).id)
    session.list_history.is_newest = False


def delete_from(session: ChatSession, message_id: str) -> None:
    """Hide a message and everything below it."""
    session.require_quiet()
    session.store.delete_from(message_id)
    _changed(session)


def pin(session: ChatSession, message_id: str, *, pinned: bool) -> Message:
    """Have the model go on seeing a message when the oldest are left out, or no longer."""
    session.require_quiet()
    if _on_branch(session, message_id).role == "system":
        raise NotPossibleError("the system prompt always stays; there is nothing to pin")
    session.unkept.save()
    message = session.store.pin(message_id, pinned)
    _changed(session)
    return message


def leave_out(session: ChatSession, message_id: str, *, left_out: bool) -> Message:
    """Have the model not see a message, or see it again."""
    session.require_quiet()
    if _on_branch(session, message_id).role == "system":
        raise NotPossibleError("the system prompt cannot be left out; /system changes it")
    session.unkept.save()
    message = session.store.leave_out(message_id, left_out)
    _changed(session)
    return message


def undo(session: ChatSession) -> Change:
    session.require_quiet()
    change = session.store.undo(session.require_open())
    if change is None:
        raise NotPossibleError("there is nothing to undo in this conversation")
    _changed(session)
    return change


def redo(session: ChatSession) -> Change:
    session.require_quiet()
    change = session.store.redo(session.require_open())
    if change is None:
        raise NotPossibleError("nothing was undone, or something was written since")
    _changed(session)
    return change


def _changed(session: ChatSession) -> None:
    session.reload()
    session.list_history.is_newest = False


def _in_conversation(session: ChatSession, message_id: str) -> Message:
    """Another window may have gone to another branch meanwhile."""
    there = session.store.read_tree(session.require_open()).messages
    found = next((one for one in (*session.branch, *there) if one.id == message_id), None)
    if found is None or found.deleted:
        raise NotPossibleError("this message has been deleted; Esc leaves it, and ↑ brings back what you typed")
    return found


def _on_branch(session: ChatSession, message_id: str) -> Message:
    found = next((one for one in session.branch if one.id == message_id), None)
    if found is None:
        raise NotPossibleError("this message is no longer shown; open the conversation again")
    return found
