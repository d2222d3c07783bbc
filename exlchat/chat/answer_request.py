"""What of answer options is worked out for the model and the conversation: marks of thoughts, the negative prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from exlchat.chat.answer_options import AnswerOptions
from exlchat.chat.model import Message
from exlchat.chat.prompt.answer_ids import encode_after
from exlchat.chat.prompt.context import Seen
from exlchat.chat.prompt.context_window import messages_seen
from exlchat.chat.prompt.ids import prompt_ids
from exlchat.chat.prompt.note import Note
from exlchat.chat.prompt_format import PromptFormat
from exlchat.llm.port import TextModel
from exlchat.llm.sampling import SamplingSettings
from exlchat.llm.thought_splitter import ThinkingMarks, Thoughts


def thoughts_of(
    engine: TextModel, marks: ThinkingMarks | None, speech: AnswerOptions, *, begun: str
) -> Thoughts | None:
    """Where thoughts are, and how long they may be; `None` where there are none to be looked for.

    Args:
        marks: of the answer's thoughts; `opened` says whether its prompt opens them.
        begun: the answer so far.
    """
    if marks is None:
        return None
    if speech.thinking_budget is None and speech.constraint is None:
        return Thoughts(marks, begun)
    closing = f"\n{marks.closing}"
    if marks.heads:
        # The answer behind such thoughts is a message of its own.
        closing = "".join((marks.closing, *marks.heads[:2]))
    elif speech.constraint is None:
        closing += "\n\n"
    ids = tuple(encode_after(engine, closing, special=True))
    return Thoughts(marks, begun, speech.thinking_budget, ids)


def negative_ids(
    engine: TextModel,
    form: PromptFormat,
    *,
    seen: Seen,
    summary: str | None,
    note: Note | None,
    sampling: SamplingSettings,
    speech: AnswerOptions,
    begun: Sequence[int],
) -> tuple[int, ...]:
    """The prompt to lean away from: what the model sees, with another system prompt or none; empty without guidance.

    Args:
        seen, summary, note: what the model sees of the conversation, and is told of the rest and beside it.
        begun: ids of the answer so far.

    Raises:
        PromptError: the format cannot take it.
    """
    if sampling.guidance_scale == 1.0:
        return ()
    told = [one for one in seen.messages if one.role != "system"]
    if speech.negative:
        told.insert(0, Message("", None, "system", speech.negative, 0.0))
    messages, _ = messages_seen(engine, form, replace(seen, messages=tuple(told)), summary, note)
    return (*prompt_ids(engine, messages, form), *begun)
