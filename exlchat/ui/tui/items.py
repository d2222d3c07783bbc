"""Messages as the transcript shows them."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from exlchat.chat.answer_parts import answer_parts
from exlchat.chat.sight import newest_record
from exlchat.ui.message_words import WRITTEN_ELSEWHERE, footer, seen_line, unanswered_line
from exlchat.ui.tui.widgets.transcript import TranscriptItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.chat.conversation import Message, MessageStatus
    from exlchat.ui.answering import Answering

UNANSWERED = "unanswered"
SEEN_FROM = "seen-from"
_WAITING = "waiting"
_THOUGHTS = "thoughts"


def branch_items(branch: Sequence[Message], answering: Answering | None) -> Iterable[TranscriptItem]:
    """The items of a conversation, with the live text of an answer that is still being written."""
    record = newest_record(branch)
    for message in branch:
        if record is not None and record.seen_from == message.id:
            yield TranscriptItem(SEEN_FROM, "notice", seen_line(record, any_pinned=_pinned_before(branch, message)))
        if answering is not None and answering.message is not None and answering.message.id == message.id:
            yield from live_items(message, "".join(answering.thoughts), "".join(answering.answer))
        elif message.status == "streaming":
            *thoughts, answer = message_items(message)
            yield from (*thoughts, replace(answer, footer=WRITTEN_ELSEWHERE, status="partial"))
        else:
            yield from message_items(message)
    said = [message for message in branch if message.role != "system"]
    if said and said[-1].role == "user" and answering is None:
        yield TranscriptItem(UNANSWERED, "notice", unanswered_line("ctrl+r"))


def _pinned_before(branch: Sequence[Message], message: Message) -> bool:
    return any(one.pinned for one in takewhile(lambda one: one.id != message.id, branch))


def message_items(message: Message) -> list[TranscriptItem]:
    """One finished message, behind what the model thought before it."""
    said = answer_parts(message)
    answer = TranscriptItem(message.id, message.role, said.answer, footer(message), message.status)
    return [*_thoughts(message, said.thinking or "", "complete"), answer]


def live_items(message: Message, thoughts: str, answer: str) -> list[TranscriptItem]:
    """An answer that grows."""
    growing = TranscriptItem(message.id, "assistant", answer, status="streaming")
    return [*_thoughts(message, thoughts, "streaming"), growing]


def thoughts_key(message_id: str) -> str:
    """Key of the item with what a model thought before an answer."""
    return f"{_THOUGHTS}:{message_id}"


def _thoughts(message: Message, text: str, status: MessageStatus) -> list[TranscriptItem]:
    return [TranscriptItem(thoughts_key(message.id), "thinking", text, status=status)] if text else []


def waiting_item(conversation_id: str, line: str) -> TranscriptItem:
    """Says what an answer is waiting for."""
    return TranscriptItem(waiting_key(conversation_id), "notice", line)


def waiting_key(conversation_id: str) -> str:
    """Key of the item that `waiting_item` makes."""
    return f"{_WAITING}:{conversation_id}"
