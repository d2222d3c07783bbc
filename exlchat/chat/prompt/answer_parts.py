"""What of a message people read as the answer, and what the model thought before it."""

from __future__ import annotations

from typing import Protocol

from exlchat.chat.model import AnswerRecord, Role
from exlchat.chat.prompt.thinking import KNOWN, SplitAnswer, split
from exlchat.llm.thought_splitter import ThinkingMarks


class Said(Protocol):
    """A message on a branch or in a tree."""

    @property
    def role(self) -> Role: ...

    @property
    def text(self) -> str:
        """All of it, with its thoughts and their marks where the model wrote them."""

    @property
    def thinking(self) -> str | None:
        """Thoughts that are kept apart from the text."""

    @property
    def record(self) -> AnswerRecord | None: ...


def marks_of(message: Said) -> ThinkingMarks | None:
    """How the thoughts in a message's text are marked; `None` where there are none to be looked for.

    Of an answer that nothing is recorded of, thoughts are told by a mark at its beginning that some family uses.
    """
    if message.role != "assistant":
        return None
    if message.record is not None:
        return message.record.thinking
    begun = message.text.lstrip()
    return next((one for one in KNOWN if begun.startswith(one.opening) and one.closing in begun), None)


def answer_parts(message: Said) -> SplitAnswer:
    """A message's text in two; all of it is the answer where there are no thoughts."""
    marks = marks_of(message)
    found = SplitAnswer(None, message.text, 0) if marks is None else split(message.text, marks)
    thoughts = "\n\n".join(part for part in (message.thinking, found.thinking) if part)
    return SplitAnswer(thoughts or None, found.answer, found.start)
