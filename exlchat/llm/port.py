"""The engine as the chat floor sees it: a protocol, so that a remote engine can stand in its place."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Event, OneOfSeveral, PrefillProgress, Scored
from exlchat.llm.info import CacheReport, MemoryReport, ModelInfo
from exlchat.llm.request import GenerationRequest, ScoreRequest
from exlchat.llm.sampling import SamplingSettings

_Event = TypeVar("_Event")


class TextPort(Protocol):
    """What prompts need of a model: its tokenizer, and what is known of it."""

    @property
    def info(self) -> ModelInfo:
        """What the floors above may know of the model."""

    def encode(self, text: str) -> list[int]:
        """Special tokens in `text` are recognised; no BOS is added."""

    def encode_ordinary(self, text: str) -> list[int]:
        """Like `encode`, but the text of a special token stays ordinary text."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""


class SpellingPort(TextPort, Protocol):
    """A tokenizer that shows everything."""

    def spell(self, ids: Sequence[int]) -> str:
        """The text of `ids` with all special tokens."""


class EnginePort(SpellingPort, Protocol):
    """A loaded model. `exlchat.engine.Engine` satisfies it; tests use a scripted one.

    Everything is called from one thread at a time, but `cancel`, `check` and `count`, which may be called from any.
    """

    def count(self, text: str) -> int:
        """`len(encode(text))`."""

    def cached_tokens(self, ids: Sequence[int]) -> int:
        """How many of the first tokens of a prompt would not have to be computed now."""

    def cache_report(self) -> CacheReport:
        """The pages of the cache and what they have saved."""

    def memory_report(self) -> MemoryReport:
        """What is in use now of the card's memory and of the machine's."""

    def close(self) -> None:
        """Ends what is being written in the background, within seconds."""

    def unload(self) -> None:
        """Closes, and gives all memory back; only `info` may be asked afterwards."""

    def check(self, sampling: SamplingSettings, constraint: Constraint | None = None) -> None:
        """Raises `RequestError` in one line where answers cannot be drawn so, or be so, with this model."""

    def constraint_notice(self, constraint: Constraint) -> str | None:
        """In a line what a constraint asks for that answers are not held to, if anything; None of a wrong one, too."""

    def generate(self, request: GenerationRequest) -> Iterator[Event]:
        """Events of one answer, `Finished` last. Closing the iterator cancels without a last event."""

    def generate_several(
        self, request: GenerationRequest, seeds: Sequence[int | None]
    ) -> Iterator[PrefillProgress | OneOfSeveral]:
        """Events of 1 to 8 answers to one prompt, which is read once; `Finished` of each. Closing the iterator cancels
        all of them, without a last event.
        """

    def score(self, request: ScoreRequest) -> Iterator[PrefillProgress | Scored]:
        """How likely the tokens of a sequence are, `Scored` last. Closing the iterator cancels without a last event."""

    def cancel(self) -> None:
        """Ends the running answer within one token, with `Finished("cancelled")`; a scoring within one chunk, without
        a last event. Harmless when idle."""


@contextmanager
def closing_events(events: Iterator[_Event]) -> Iterator[Iterator[_Event]]:
    """`events`, closed as soon as nobody wants them any more: closing is what stops the engine."""
    try:
        yield events
    finally:
        if isinstance(events, Generator):
            events.close()
