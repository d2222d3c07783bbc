"""What is said beside messages: why an answer is not whole, from where the model sees, what an empty chat tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.app.chat.answering import was_cut
from exlchat.chat.model import newest_record
from exlchat.chat.speakers import GROUP, is_group, label_of, said_by
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from exlchat.chat.model import AnswerRecord, Message
    from exlchat.llm.info import ModelInfo

_NAME_CELLS = 40
_FOLDED_CELLS = 60
WRITTEN_ELSEWHERE = "being written by another exlchat"
_CUT_BY = {
    "max_new_tokens": "cut at the answer limit",
    "context_full": "cut: the context is full",
    "cancelled": "stopped",
    "repeating": "stopped: it said the same over and over",
}


def names_over(branch: Sequence[Message]) -> dict[str, str]:
    """Who says each message where a persona or a group speaks, by id; one line, cleaned."""
    return {one.id: name for one, name in zip(branch, said_by(branch), strict=True) if name is not None}


def persona_line(message: Message) -> str:
    """What stands for the system prompt of a persona, which may be pages; empty where that is none of a persona."""
    if message.role != "system" or message.persona is None:
        return ""
    if is_group(message):
        return _group_line(message)
    name = message.persona.get("name")
    who = one_line(name, _NAME_CELLS) if isinstance(name, str) else ""
    lines = message.text.strip().splitlines()
    more = f" … {len(lines)} lines" if len(lines) > 1 else ""
    return f"{who or 'a persona'} · {one_line(lines[0], _FOLDED_CELLS) if lines else 'no system prompt'}{more}"


def _group_line(message: Message) -> str:
    members = (message.persona or {}).get(GROUP)
    told = [one.get("char") for one in members if isinstance(one, dict)] if isinstance(members, list) else []
    names = ", ".join(label_of(one) for one in told if isinstance(one, str))
    scene = one_line(message.text, _FOLDED_CELLS)
    return " · ".join(part for part in (f"a group: {names}", scene) if part)


def greeting_ids(branch: Sequence[Message]) -> frozenset[str]:
    """The greeting of a conversation in which nobody has answered it."""
    begun = any(one.role == "user" for one in branch)
    return frozenset(() if begun else (one.id for one in branch if one.role == "assistant"))


def footer(message: Message, places: Mapping[str, tuple[int, int]], *, greets: bool = False) -> str:
    """Which alternative a message is, whether it is pinned or left out, and why an answer is not whole; else empty.

    Args:
        message: of any role.
        places: which of how many alternatives messages are, by id.
        greets: whether it is a greeting that nobody has answered, which says how to see the others.
    """
    parts = []
    if (place := places.get(message.id)) is not None:
        parts.append(f"‹{place[0]}/{place[1]}›")
        if greets:
            parts.append(f"/alternative {1 if place[0] == place[1] else place[0] + 1} shows another greeting")
    if message.pinned:
        parts.append("pinned")
    if message.left_out:
        parts.append("left out: the model does not see it")
    if was_cut(message):
        reason = message.record.finish_reason if message.record else None
        parts.append(_cut_by(message, reason))
        if not greets and reason != "context_full":
            parts.append("/continue goes on")
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


def other_model_line(branch: Sequence[Message], info: ModelInfo | None) -> str:
    """With which model a conversation was held last, where another one is loaded; else empty."""
    record = newest_record(branch)
    if info is None or record is None or not record.model.strip() or record.model == info.name:
        return ""
    name = one_line(record.model, _NAME_CELLS)
    return f"This conversation was held with {name}; /model {name} goes on with that one"


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
