"""What a model thinks before it answers: how it is marked, and the two told apart, while they stream or afterwards.

Thoughts stand at the beginning of an answer only: a mark behind its first word is text, as in an answer about marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """What stands around thoughts.

    Args:
        opening, closing: before and behind them; neither is empty.
        heads: texts that may stand between thoughts and answer, or before an answer without thoughts; never shown.
        opened: the prompt has written `opening` already, so that an answer begins with thoughts.
    """

    opening: str
    closing: str
    heads: tuple[str, ...] = ()
    opened: bool = False

    def __post_init__(self) -> None:
        if not (self.opening.strip() and self.closing.strip() and all(head.strip() for head in self.heads)):
            raise ValueError("marks of thinking are empty; give an opening and a closing one")


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
class Piece:
    """Some text of an answer."""

    kind: Literal["thinking", "answer"]
    text: str


class ThinkingSplitter:
    """Tells thoughts and answer apart, as text comes. How the text is cut changes nothing about what comes out.

    White space around thoughts belongs to neither; without thoughts the answer is the text as it is.
    """

    def __init__(self, marks: ThinkingMarks) -> None:
        self._marks = marks
        self._state: Literal["between", "thinking", "answer"] = "thinking" if marks.opened else "between"
        self._held = ""
        self._plain = not marks.opened
        """Whether no mark has come yet."""
        self._begun = False
        """Whether these thoughts have a word already."""

    @property
    def thinking(self) -> bool:
        """Whether the text goes on inside thoughts."""
        return self._state == "thinking"

    def feed(self, text: str) -> list[Piece]:
        """What is certain with `text` behind what came before."""
        self._held += text
        pieces: list[Piece] = []
        while self._step(pieces):
            pass
        return _joined(pieces)

    def finish(self) -> list[Piece]:
        """What was held back."""
        pieces: list[Piece] = []
        while self._state == "between" and self._between(final=True):
            self._step(pieces)
        held, self._held = self._held, ""
        if self._state == "thinking":
            return _joined([*pieces, *self._thoughts(held.rstrip())])
        if self._state == "between" and not self._plain:
            held = held.lstrip()
        self._state = "answer"
        return _joined([*pieces, *([Piece("answer", held)] if held else [])])

    def _step(self, pieces: list[Piece]) -> bool:
        """Whether there may be more to find in what is held."""
        if self._state == "answer":
            if self._held:
                pieces.append(Piece("answer", self._held))
            self._held = ""
            return False
        return self._between() if self._state == "between" else self._within(pieces)

    def _between(self, *, final: bool = False) -> bool:
        bare = self._held.lstrip()
        marks = sorted((self._marks.opening, *self._marks.heads), key=len, reverse=True)
        if not final and any(len(mark) > len(bare) and mark.startswith(bare) for mark in marks):
            return False
        for mark in marks:
            if bare.startswith(mark):
                self._take(len(self._held) - len(bare) + len(mark))
                self._plain = False
                if mark == self._marks.opening:
                    self._state, self._begun = "thinking", False
                return True
        if final:
            return False
        if not self._plain:
            self._take(len(self._held) - len(bare))
        self._state = "answer"
        return True

    def _within(self, pieces: list[Piece]) -> bool:
        thoughts, closing, _ = self._held.partition(self._marks.closing)
        if closing:
            pieces += self._thoughts(thoughts.rstrip())
            self._take(len(thoughts) + len(closing))
            self._state = "between"
            return True
        certain = thoughts[: len(thoughts) - _overlap(thoughts, self._marks.closing)].rstrip()
        pieces += self._thoughts(certain)
        self._take(len(certain))
        return False

    def _thoughts(self, text: str) -> list[Piece]:
        shown = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(shown)
        return [Piece("thinking", shown)] if shown else []

    def _take(self, count: int) -> None:
        self._held = self._held[count:]


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
    """`text` as a whole; what the splitter gives for it however it is cut."""
    splitter = ThinkingSplitter(marks)
    pieces = [*splitter.feed(text), *splitter.finish()]
    thoughts = "".join(piece.text for piece in pieces if piece.kind == "thinking")
    answer = "".join(piece.text for piece in pieces if piece.kind == "answer")
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
    """Whether a prompt's text ends inside thoughts."""
    return prompt.rstrip().removesuffix(_NO_BUDGET).endswith(marks.opening.rstrip())


def _joined(pieces: list[Piece]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].kind == piece.kind:
            joined[-1] = Piece(piece.kind, joined[-1].text + piece.text)
        else:
            joined.append(piece)
    return joined


def _overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
