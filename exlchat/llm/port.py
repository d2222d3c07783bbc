"""What may be known of a model, here or far away: protocols that whoever answers implements.

What not every model has is a protocol of its own, asked for with `isinstance`; what a request may ask for beside plain
text is told by `Capabilities`. Nobody has to implement what it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, OneOfSeveral, PrefillProgress, Scored
from exlchat.llm.info import CacheReport, MemoryReport, ModelInfo
from exlchat.llm.request import GenerationRequest, RequestError, ScoreRequest

_Event = TypeVar("_Event")


class Handle(Protocol):
    """Something that was asked for."""

    def cancel(self) -> None:
        """Ends an answer within one token, with `Finished("cancelled")`, and a scoring within one chunk, without a last
        event. From any thread, before its first event as well; harmless when it has ended."""


@runtime_checkable
class CanRest(Protocol):
    """A `Handle` of an answer that can stand still and go on. From any thread; harmless when it has ended."""

    def rest(self) -> None:
        """No more is made of it, from the next token on. It can be cancelled."""

    def go_on(self) -> None:
        """It is made further, and comes to what it would have been."""


class Running(Generic[_Event]):
    """The events of a request, made while they are read. A `Handle`; leaving `with` wants no more of them.

    Args:
        events: closing them, where that can be done, is what ends the work.
        cancel: as of `Handle`.
    """

    def __init__(self, events: Iterator[_Event], cancel: Callable[[], None]) -> None:
        self._events = events
        self.cancel = cancel

    def __iter__(self) -> Iterator[_Event]:
        return self

    def __next__(self) -> _Event:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it without a last event. In the thread that reads."""
        close = getattr(self._events, "close", None)
        if close is not None:
            close()


class Cancellation:
    """What a piece of work with several requests, one after the other, is cancelled by: the one that runs, and all that
    would come after it."""

    def __init__(self) -> None:
        self.asked = False
        self._handle: Handle | None = None

    def cancel(self) -> None:
        """From any thread, and from a signal's handler: it waits for nothing."""
        # Who asks sets first and looks then, who runs the other way about: one of the two sees the other.
        self.asked = True
        handle = self._handle
        if handle is not None:
            handle.cancel()

    @contextmanager
    def over(self, running: Running[_Event]) -> Iterator[Running[_Event]]:
        """A request that is cancelled with the work; closed in the end."""
        self._handle = running
        if self.asked:
            running.cancel()
        try:
            with running:
                yield running
        finally:
            self._handle = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that came to nothing: a `RequestError` or a `ModelError`, or what nobody expected."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a `GenerationRequest` may ask for of a model, by the fields that ask for it."""

    alternatives: bool = True
    banned: bool = True
    begun: bool = True
    """Whether an answer can go on where its text so far ends, or begin with given words."""
    constraint: bool = True
    guidance_ids: bool = True
    heal: bool = True
    draft_model: bool = True
    """Whether `draft` may be "model"."""
    same_when_greedy: bool = False
    """Whether two greedy answers to one prompt are the same; not asked for, but told."""
    ranks: bool = False
    """Whether requests of a higher rank go first; not asked for, but told."""

    def check(self, request: GenerationRequest) -> None:
        """Raises `RequestError` in one line for what cannot be had."""
        if request.draft == "model" and not self.draft_model:
            raise RequestError("there is no draft model; load one with --draft MODEL, or draft by ngram")
        if request.begun and not self.begun:
            raise RequestError("this model cannot go on with what was begun; have the answer given again")
        for name in ("alternatives", "banned", "constraint", "guidance_ids", "heal"):
            if getattr(request, name) and not getattr(self, name):
                raise RequestError(f"this model cannot do {name.replace('_ids', '')}; leave it out")


class TextModel(Protocol):
    """What prompts need of a model: its tokenizer, and what is known of it. From any thread."""

    @property
    def info(self) -> ModelInfo:
        """Name, sizes, special tokens and templates."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Ids; no BOS is added. `special`: whether the text of a special token becomes that token."""

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """Their text. `special`: with that of all special tokens."""


class Engine(TextModel, Protocol):
    """A model that answers. `exlchat.engine.LocalEngine` is one; tests use a scripted one.

    Everything is called from any thread.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What requests may ask for."""

    def check(self, request: GenerationRequest) -> None:
        """Raises `RequestError` in one line where no answer can be made so, whatever the prompt, which may be empty."""

    def submit(
        self, request: GenerationRequest | ScoreRequest, sink: Callable[[Event | Scored | Failed], None]
    ) -> Handle:
        """Begins an answer, or a scoring where it `CanScore`, and comes back at once. `sink` is told its events in
        order, `Finished`, `Scored` or `Failed` last, in a thread of the engine's; of a cancelled scoring none is last.

        Raises:
            RequestError: it cannot be carried out.
        """

    def generate(self, request: GenerationRequest) -> Running[Event]:
        """An answer, made in the thread that reads its events, `Finished` last.

        Raises:
            RequestError: it cannot be carried out; by the events: `ModelError`.
        """

    def close(self) -> None:
        """Ends what is being written in the background, within `CLOSE_SECONDS`. It can still be used."""


@runtime_checkable
class AnswersSeveral(Protocol):
    """An engine that reads a prompt once for several answers."""

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Running[PrefillProgress | OneOfSeveral]:
        """Events of 1 to `MOST_ANSWERS` answers, `Finished` of each; cancelling ends all of them."""


@runtime_checkable
class CanScore(Protocol):
    """An engine that tells how likely a text is."""

    def score(self, request: ScoreRequest) -> Running[PrefillProgress | Scored]:
        """Progress, and `Scored` last."""


@runtime_checkable
class SpellsTokens(Protocol):
    """A model whose tokens are known byte by byte."""

    def spell(self, ids: Sequence[int]) -> list[bytes]:
        """What each adds to a text, of UTF-8 that may be cut between two; of a special token its name. From any
        thread."""


@runtime_checkable
class NamesWhatIsNotHeld(Protocol):
    """An engine that holds answers to constraints, but not to all that one may ask for."""

    def constraint_notice(self, constraint: Constraint) -> str | None:
        """What of it answers are not held to, in a line; `None` where that is nothing, and of a wrong constraint."""


@runtime_checkable
class HasCache(Protocol):
    """An engine that does not compute again what it has read."""

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a prompt would not have to be computed now."""

    def cache_report(self) -> CacheReport:
        """The pages of the cache and what they have saved."""


@runtime_checkable
class HoldsMemory(Protocol):
    """An engine whose weights lie in this machine."""

    def memory_report(self) -> MemoryReport:
        """Bytes in use now of the card's memory and of the machine's."""

    def unload(self) -> None:
        """Closes, and gives all memory back; only `info` may be asked afterwards."""
