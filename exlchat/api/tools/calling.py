"""What the engine is asked so that a call comes out whole, and how it is read."""

from __future__ import annotations

from dataclasses import dataclass

from exlchat.api.tools.offered import Offered
from exlchat.api.tools.prompt import ToolPrompt
from exlchat.api.tools.reading import CallReader
from exlchat.chat.prompt.answer_ids import encode_after
from exlchat.llm.constraint import Constraint
from exlchat.llm.port import TextModel
from exlchat.llm.thought_splitter import ThinkingMarks


@dataclass(frozen=True, slots=True)
class Calling:
    """Of one request.

    Args:
        opening_ids: put behind the prompt, so that the answer has begun to call.
        constraint, constraint_from: as of `GenerationRequest`.
        reader: of the answers; `None` where nothing is to be called.
    """

    opening_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    constraint_from: tuple[str | int, ...] = ()
    reader: CallReader | None = None


def call_of(engine: TextModel, prompt: ToolPrompt, offered: Offered, marks: ThinkingMarks | None) -> Calling:
    """`marks`: of thoughts in the answer, where its format has any."""
    if not offered.tools:
        return Calling()
    family, opening = prompt.family, prompt.opening
    if offered.forced and marks is not None and marks.opened:
        # The prompt has them think whatever it is told: they are closed before they begin.
        opening = f"\n{marks.closing}\n\n{opening}"
    mark = engine.encode(family.opening) if family.opening else []
    mark_id = mark[0] if len(mark) == 1 else None
    reader = CallReader(
        engine,
        family,
        offered.tools,
        forced=offered.forced,
        opening=prompt.opening,
        opening_id=mark_id,
        behind="" if marks is None or offered.forced else marks.closing,
    )
    if offered.forced:
        ids = tuple(encode_after(engine, opening, special=True)) if opening else ()
        return Calling(ids, prompt.constraint, (), reader)
    if prompt.constraint is None:
        return Calling(reader=reader)
    return Calling((), prompt.constraint, (family.opening if mark_id is None else mark_id,), reader)
