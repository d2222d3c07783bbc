"""Messages as the transcript shows them."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING

from exlchat.app.chat.message_words import (
    WRITTEN_ELSEWHERE,
    footer,
    greeting_ids,
    names_over,
    persona_line,
    seen_line,
    unanswered_line,
)
from exlchat.chat.model import newest_record
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.ui.tui.widgets.transcript import TranscriptItem

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from exlchat.app.chat.answering import PendingAnswer
    from exlchat.chat.model import Message, MessageStatus

    Places = Mapping[str, tuple[int, int]]

UNANSWERED = "unanswered"
SEEN_FROM = "seen-from"
_WAITING = "waiting"
_THOUGHTS = "thoughts"
_NAME = "name"


def branch_items(
    branch: Sequence[Message], answering: PendingAnswer | None, places: Places
) -> Iterable[TranscriptItem]:
    """The items of a conversation, with the live text of an answer that is still being written.

    `places` says of messages with alternatives which of how many they are.
    """
    record, names, greetings = newest_record(branch), names_over(branch), greeting_ids(branch)
    for message in branch:
        name = names.get(message.id, "")
        if record is not None and record.seen_from == message.id:
            yield TranscriptItem(SEEN_FROM, "notice", seen_line(record, any_pinned=_pinned_before(branch, message)))
        if answering is not None and answering.message is not None and answering.message.id == message.id:
            yield from live_items(message, "".join(answering.thoughts), "".join(answering.answer), name)
        elif message.status == "streaming":
            *above, answer = message_items(message, places, name)
            yield from (*above, replace(answer, footer=WRITTEN_ELSEWHERE, status="partial"))
        else:
            yield from message_items(message, places, name, greets=message.id in greetings)
    said = [message for message in branch if message.role != "system"]
    if said and said[-1].role == "user" and answering is None:
        yield TranscriptItem(UNANSWERED, "notice", unanswered_line("/retry"))


def _pinned_before(branch: Sequence[Message], message: Message) -> bool:
    return any(one.pinned for one in takewhile(lambda one: one.id != message.id, branch))


def message_items(message: Message, places: Places, name: str = "", *, greets: bool = False) -> list[TranscriptItem]:
    """A message with what it thought before, under the name of who says it, where that is one."""
    said, fold = answer_parts(message), persona_line(message)
    answer = TranscriptItem(
        message.id,
        message.role,
        said.answer,
        footer(message, places, greets=greets),
        message.status,
        fold=fold,
        folded=bool(fold),
    )
    return [*_named(message, name), *_thoughts(message, said.thinking or "", "complete", folded=True), answer]


def live_items(message: Message, thoughts: str, answer: str, name: str = "") -> list[TranscriptItem]:
    growing = TranscriptItem(message.id, "assistant", answer, status="streaming")
    return [*_named(message, name), *_thoughts(message, thoughts, "streaming"), growing]


def _named(message: Message, name: str) -> list[TranscriptItem]:
    return [TranscriptItem(name_key(message.id), "name", name)] if name else []


def name_key(message_id: str) -> str:
    return f"{_NAME}:{message_id}"


def thoughts_key(message_id: str) -> str:
    return f"{_THOUGHTS}:{message_id}"


def message_of(key: str) -> str | None:
    """The id of the message that an item is of, or belongs to; `None` for what is no message."""
    if key in (UNANSWERED, SEEN_FROM) or key.startswith((f"{_WAITING}:", f"{_NAME}:", "note:")):
        return None
    return key.removeprefix(f"{_THOUGHTS}:") or None


def _thoughts(message: Message, text: str, status: MessageStatus, *, folded: bool = False) -> list[TranscriptItem]:
    if not text:
        return []
    key, fold = thoughts_key(message.id), thought_line(message, text)
    return [TranscriptItem(key, "thinking", text, status=status, fold=fold, folded=folded)]


def thought_line(message: Message, text: str) -> str:
    """What stands for thoughts while they are folded: how long they took, as far as that is known."""
    thought = message.record.thought if message.record is not None else None
    if thought is None:
        return f"thought in {len(text.split())} words"
    seconds = f"{thought.seconds:.1f}" if thought.seconds < 10 else f"{thought.seconds:.0f}"
    return f"thought for {seconds} s · {thought.tokens} tokens"


def waiting_item(conversation_id: str, line: str) -> TranscriptItem:
    return TranscriptItem(waiting_key(conversation_id), "notice", line)


def waiting_key(conversation_id: str) -> str:
    return f"{_WAITING}:{conversation_id}"
