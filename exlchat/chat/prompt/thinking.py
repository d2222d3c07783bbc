"""How model families mark what they think before they answer, and the two told apart in an answer that is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from exlchat.llm.thought_splitter import ThinkingMarks, ThoughtSplitter

THINK = ThinkingMarks("<think>", "</think>")
SEED = ThinkingMarks("<seed:think>", "</seed:think>")
HARMONY = ThinkingMarks(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    ("<|start|>assistant", "<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
)
MAGISTRAL = ThinkingMarks("[THINK]", "[/THINK]")
GRANITE = ThinkingMarks("Here is my thought process:", "Here is my response:")

_NO_BUDGET = "<seed:cot_budget_reflect>"
"""With this behind its opening mark Seed-OSS is told not to think; it says so before it closes its thoughts."""

KNOWN = (
    HARMONY,
    SEED,
    MAGISTRAL,
    ThinkingMarks("<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>",)),
    ThinkingMarks("<thought>", "</thought>"),
    ThinkingMarks("◁think▷", "◁/think▷"),
    ThinkingMarks("<|channel>thought\n", "<channel|>"),
    GRANITE,
    THINK,
)
"""Those that model families use; the first whose closing mark a template names is taken for its own."""


def detect(template: str, added_tokens: tuple[str, ...] = ()) -> ThinkingMarks | None:
    """The marks that a template names, else those that are tokens of the model.

    Args:
        template: Jinja.
        added_tokens: texts of the model's added tokens.
    """
    for marks in KNOWN:
        # Harmony ends every message with the same token, and Granite's words stand in one long text.
        if marks.opening.partition("<|message|>")[0].strip() in template and marks.closing in template:
            return marks
    if THINK.closing in template:
        return THINK
    return next((one for one in KNOWN if {one.opening, one.closing} <= set(added_tokens)), None)


def unpack_marks(content: Mapping[str, Any] | None) -> ThinkingMarks | None:
    """The inverse of `dataclasses.asdict`, `None` for what is none."""
    if not isinstance(content, Mapping):
        return None
    known = {field.name: content[field.name] for field in fields(ThinkingMarks) if field.name in content}
    try:
        return ThinkingMarks(**{**known, "heads": tuple(known.get("heads", ()))})
    except (TypeError, ValueError, AttributeError):
        return None


@dataclass(frozen=True, slots=True)
class SplitAnswer:
    """An answer's text in two.

    Args:
        thinking: the thoughts, those of several blocks one after the other; `None` when there are none.
        answer: the rest, without marks.
        start: where in the text the answer begins.
    """

    thinking: str | None
    answer: str
    start: int


def split(text: str, marks: ThinkingMarks) -> SplitAnswer:
    splitter = ThoughtSplitter(marks)
    pieces = [*splitter.feed(text), *splitter.finish()]
    thoughts = "".join(piece.text for piece in pieces if piece.channel == "thought")
    answer = "".join(piece.text for piece in pieces if piece.channel == "answer")
    return SplitAnswer(thoughts or None, answer, len(text) - len(answer))


def split_stored(text: str, recorded: ThinkingMarks | None, expected: ThinkingMarks | None) -> SplitAnswer:
    """An answer's text as it is kept.

    Args:
        text: all that the model has said.
        recorded: the marks under which it was said, where that is known.
        expected: the marks of the format in use, for answers of which nothing is known. Thoughts that such an answer
            ends without opening them were opened by its prompt.
    """
    marks = recorded or expected
    if marks is None:
        return SplitAnswer(None, text, 0)
    if recorded is None:
        opens = text.lstrip().startswith(marks.opening)
        marks = replace(marks, opened=not opens and not marks.heads and marks.closing in text)
    return split(text, marks)


def opens_thinking(prompt: str, marks: ThinkingMarks) -> bool:
    return prompt.rstrip().removesuffix(_NO_BUDGET).endswith(marks.opening.rstrip())
