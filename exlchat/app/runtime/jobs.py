"""What the engine's threads are given to do, and what they report: frozen values that cross between threads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from exlchat.llm.port import Cancellation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from exlchat.chat.turn_events import OneAnswer, TitleMade, Titling, TurnEvent
    from exlchat.llm.info import LoadProgress, ModelInfo
    from exlchat.llm.port import Engine

    JobStep = TurnEvent | OneAnswer | Titling | TitleMade
    Loader = Callable[[Callable[[LoadProgress], None]], Engine]


@dataclass(frozen=True, slots=True, eq=False)
class EngineJob:
    """Something to be done with the engine for one conversation.

    Args:
        conversation_id: which one.
        work: runs on a thread of its own.
        idle: nobody waits for it: it is given up for another model, and for any other job where the engine knows no
            ranks.
        kept: whether what goes wrong in it may be written to the log.
        cancellation: ends it.
    """

    conversation_id: str
    work: Callable[[Engine, Cancellation], Iterator[JobStep]]
    idle: bool = False
    kept: bool = True
    cancellation: Cancellation = field(default_factory=Cancellation)


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Something to be asked of the engine.

    Args:
        ask: runs on a thread of its own.
        tell: takes what it gave; whoever receives the reports calls it, on its own thread.
        fail: takes the one-line reason why it gave nothing, where somebody waits for that; else it is told as any line.
        kept: as of `EngineJob`.
        cancellation: ends a long one.
        conversation_id: which one it is about: what is being answered there ends first. `None` waits for nothing.
    """

    ask: Callable[[Engine], Any]
    tell: Callable[[Any], None]
    fail: Callable[[str], None] | None = None
    kept: bool = True
    cancellation: Cancellation = field(default_factory=Cancellation)
    conversation_id: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Loan:
    """The engine in the hands of somebody beside the chat, until it is given back; no other model comes before.

    Args:
        granted: takes the engine, or why there is none; runs on the thread that loads models, and comes back at once.
    """

    granted: Callable[[Engine | None, str | None], None]


@dataclass(frozen=True, slots=True)
class Answered:
    question: Question
    answer: Any
    error: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """A model that takes the place of the one that is there.

    Args:
        name: how people call it.
        load: builds the engine and calls back with its progress; runs on the thread that loads.
        check: raises what is wrong as far as that is known before the old model goes; runs there too.
    """

    name: str
    load: Loader
    check: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class LoadBegun:
    """No model is there now; one is being loaded."""

    name: str


@dataclass(frozen=True, slots=True)
class Loading:
    progress: LoadProgress


@dataclass(frozen=True, slots=True)
class Loaded:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class LoadRefused:
    """Another model cannot be loaded; the one that is there was not touched."""

    line: str


@dataclass(frozen=True, slots=True)
class WentBack:
    """Another model could not be loaded; the one before it, called `name`, is loaded again."""

    line: str
    name: str


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There is no model until another one is loaded; `line` says why and how to mend it."""

    line: str


@dataclass(frozen=True, slots=True)
class JobEvent:
    job: EngineJob
    event: JobStep


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The last word about a job; `error` is the one-line reason when it failed."""

    job: EngineJob
    error: str | None


Report = LoadBegun | Loading | Loaded | LoadRefused | WentBack | LoadFailed | JobEvent | JobEnded | Answered
