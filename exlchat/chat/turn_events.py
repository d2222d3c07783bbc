"""What turns and titles tell while they are made: what the screens and `exlchat ask` need of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exlchat.llm.events import PrefillProgress, TextDelta

if TYPE_CHECKING:
    from exlchat.chat.model import Message
    from exlchat.llm.events import Finished


@dataclass(frozen=True, slots=True)
class Summarising:
    """The earlier conversation is being summarised; comes at least once per token."""


@dataclass(frozen=True, slots=True)
class AnswerStarted:
    """The answer is on disk, still without its new text.

    `notices` are lines worth showing once, `model_notice` one about the model that is worth showing once for all runs,
    `context_notice` one for this turn: what the model no longer sees. `begun` is the text that it goes on from, without
    marks.
    """

    message: Message
    prompt_tokens: int
    notices: tuple[str, ...] = ()
    model_notice: str | None = None
    context_notice: str | None = None
    begun: tuple[TextDelta, ...] = ()


@dataclass(frozen=True, slots=True)
class AnswerClosed:
    """The last event; the only one but for `Summarising` when the turn was stopped during the summary.

    Args:
        message: the answer as it ended.
        finished: what the engine reported; `None` when it failed before its end.
        kept: `False` when it was cut before it had any new text: it is not in the store, and the tip is where it was.
        error: why the answer could not be written, as a line to show; its text is then only in `message`.
    """

    message: Message
    finished: Finished | None
    kept: bool = True
    error: str | None = None


@dataclass(frozen=True, slots=True)
class OneAnswer:
    """An event of one of them, which are counted from 0."""

    index: int
    event: AnswerStarted | TextDelta | AnswerClosed


@dataclass(frozen=True, slots=True)
class Titling:
    """A title is being made; comes at least once per token."""


@dataclass(frozen=True, slots=True)
class TitleMade:
    """The model has had its say; `title` is `None` when there was none in it or a user has given one meanwhile."""

    title: str | None


TurnEvent = Summarising | AnswerStarted | PrefillProgress | TextDelta | AnswerClosed
SeveralEvent = Summarising | PrefillProgress | OneAnswer
