"""What is said beside messages: why an answer is not whole, from where the model sees, what an empty chat tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.answering import was_cut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from exlchat.chat.model import AnswerRecord, Message

WRITTEN_ELSEWHERE = "being written by another exlchat"
_CUT_BY = {
    "max_new_tokens": "cut at the answer limit",
    "context_full": "cut: the context is full",
    "cancelled": "stopped",
    "repeating": "stopped: it said the same over and over",
}


def footer(message: Message, places: Mapping[str, tuple[int, int]]) -> str:
    """Which alternative a message is, whether it is pinned or left out, and why an answer is not whole; else empty.

    Args:
        places: which of how many alternatives messages are, by id.
    """
    parts = []
    if (place := places.get(message.id)) is not None:
        parts.append(f"‹{place[0]}/{place[1]}›")
    if message.pinned:
        parts.append("pinned")
    if message.left_out:
        parts.append("left out: the model does not see it")
    if was_cut(message):
        reason = message.record.finish_reason if message.record else None
        parts.append(f"{_cut_by(message, reason)} · /continue goes on")
    return " · ".join(parts)


def _cut_by(message: Message, reason: str | None) -> str:
    if message.edited_from is not None and message.record is None:
        return "edited"
    return _CUT_BY.get(reason or "", "interrupted")


def seen_line(record: AnswerRecord, *, any_pinned: bool) -> str:
    but = " but what is pinned" if any_pinned else ""
    if record.summary:
        return f"— the model sees a summary of what is above{but}; /summary shows it —"
    return f"— the model no longer sees what is above{but} —"


def unanswered_line(how: str) -> str:
    return f"This message has no answer yet; {how} has it answered."


def welcome_lines(model: str, *, is_guide: bool, keys: str, failure: str | None = None) -> Sequence[str]:
    """Three lines: what this is or why there is no model, how to stop and quit (`keys`), how to load a real one."""
    if failure is not None:
        first = failure
        last = "Conversations can be read; to chat, choose a model: /models. Or start again: exlchat MODEL_DIR"
    elif is_guide:
        first = "This is the guide, a tiny model that knows exlchat and little else."
        last = "For a real model: /models, or exlchat MODEL_DIR (EXL2, GPTQ, AWQ or safetensors)."
    else:
        first = f"You are talking to {model}." if model else "No model is loaded."
        last = "For another model: /models. For the guide: /model guide."
    return (first, keys, last)
