"""What a model thinks before it answers: how that is marked, and the two told apart while they stream.

Thoughts stand at the beginning of an answer only: a mark behind its first word is text, as in an answer about marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from exlchat.llm.events import Channel, Event, Finished, OneOfSeveral, PrefillProgress, TextDelta


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


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Where the thoughts of an answer are, and how long they may be. A constraint holds behind them.

    Args:
        marks: around them; `opened` says whether the prompt ends inside them, but for `begun`.
        begun: the text of the answer so far, at the end of the prompt.
        tokens: at most this many, then they are closed; `None` lets them be as long as they want.
        closing_ids: what is put behind the last thought, as if the model had said it.
    """

    marks: ThinkingMarks
    begun: str = ""
    tokens: int | None = None
    closing_ids: tuple[int, ...] = ()

    @property
    def opened(self) -> bool:
        """Whether the prompt ends inside thoughts, with what was begun."""
        return ThoughtSplitter(self.marks, self.begun).thinking


class ThoughtSplitter:
    """Tells thoughts, marks and answer apart, as text comes: together the pieces are the text, to the last character.

    How the text is cut changes nothing about what thoughts and answer are. White space around thoughts belongs to their
    marks; without thoughts the answer is the text as it is.

    Args:
        begun: what has come before, of which no piece is told.
    """

    def __init__(self, marks: ThinkingMarks, begun: str = "") -> None:
        self._marks = marks
        self._state: Literal["between", "thought", "answer"] = "thought" if marks.opened else "between"
        self._held = ""
        self._silent = 0
        self._plain = not marks.opened
        """Whether no mark has come yet."""
        self._begun = False
        """Whether these thoughts have a word already."""
        self.ended = False
        """Whether thoughts have been closed, or none came."""
        self.before = self._so_far(begun)
        """What was begun, without what is a mark; of its end, which may become one, as it stands."""

    @property
    def thinking(self) -> bool:
        return self._state == "thought"

    def feed(self, text: str) -> list[TextDelta]:
        """What is certain with `text` behind what came before."""
        self._held += text
        pieces: list[TextDelta] = []
        while self._step(pieces):
            pass
        return self._told(pieces)

    def finish(self) -> list[TextDelta]:
        pieces: list[TextDelta] = []
        while self._state == "between" and self._between(pieces, final=True):
            self._step(pieces)
        if self._state == "thought":
            self._thoughts(self._held.rstrip(), pieces)
            self._take(len(self._held), "mark", pieces)
        elif self._state == "between" and not self._plain:
            self._take(len(self._held) - len(self._held.lstrip()), "mark", pieces)
        self._take(len(self._held), "answer", pieces)
        self._state, self.ended = "answer", True
        return self._told(pieces)

    def _so_far(self, begun: str) -> tuple[TextDelta, ...]:
        pieces = self.feed(begun)
        self._silent = len(self._held)
        held = self._held if (self._begun if self.thinking else self._plain) else self._held.lstrip()
        pieces.append(TextDelta(held, channel="thought" if self.thinking else "answer"))
        return tuple(piece for piece in pieces if piece.text and piece.channel != "mark")

    def _step(self, pieces: list[TextDelta]) -> bool:
        """Whether there may be more to find in what is held."""
        if self._state == "answer":
            self._take(len(self._held), "answer", pieces)
            return False
        return self._between(pieces) if self._state == "between" else self._within(pieces)

    def _between(self, pieces: list[TextDelta], *, final: bool = False) -> bool:
        bare = self._held.lstrip()
        white = len(self._held) - len(bare)
        marks = sorted((self._marks.opening, *self._marks.heads), key=len, reverse=True)
        if not final and any(len(mark) > len(bare) and mark.startswith(bare) for mark in marks):
            return False
        for mark in marks:
            if bare.startswith(mark):
                self._take(white + len(mark), "mark", pieces)
                self._plain = False
                if mark == self._marks.opening:
                    self._state, self._begun = "thought", False
                return True
        if final:
            return False
        if not self._plain:
            self._take(white, "mark", pieces)
        self._state, self.ended = "answer", True
        return True

    def _within(self, pieces: list[TextDelta]) -> bool:
        thoughts, found, _ = self._held.partition(self._marks.closing)
        if found:
            said = thoughts.rstrip()
            self._thoughts(said, pieces)
            self._take(len(thoughts) - len(said) + len(found), "mark", pieces)
            self._state, self.ended = "between", True
            return True
        self._thoughts(thoughts[: len(thoughts) - overlap(thoughts, self._marks.closing)].rstrip(), pieces)
        return False

    def _thoughts(self, text: str, pieces: list[TextDelta]) -> None:
        """Takes them; white space before their first word is none of theirs."""
        shown = text if self._begun else text.lstrip()
        self._begun = self._begun or bool(shown)
        self._take(len(text) - len(shown), "mark", pieces)
        self._take(len(shown), "thought", pieces)

    def _take(self, count: int, channel: Channel, pieces: list[TextDelta]) -> None:
        if count:
            pieces.append(TextDelta(self._held[:count], channel=channel))
        self._held = self._held[count:]

    def _told(self, pieces: list[TextDelta]) -> list[TextDelta]:
        """Those of one channel as one, without what was there before."""
        told: list[TextDelta] = []
        for piece in pieces:
            text = piece.text[self._silent :]
            self._silent -= len(piece.text) - len(text)
            if text and told and told[-1].channel == piece.channel:
                told[-1] = replace(piece, text=told[-1].text + text)
            elif text:
                told.append(replace(piece, text=text))
        return told


def told_apart(events: Iterator[Event], thoughts: Thoughts | None) -> Iterator[Event]:
    """The events of an answer with each text in its channel.

    Args:
        events: with all texts in one channel.
        thoughts: how they are marked; `None` leaves the events as they are.
    """
    return events if thoughts is None else _told_apart(events, Channels(thoughts))


def several_told_apart(
    events: Iterator[PrefillProgress | OneOfSeveral], thoughts: Thoughts | None, answers: int
) -> Iterator[PrefillProgress | OneOfSeveral]:
    if thoughts is None:
        return events
    return _several_told_apart(events, [Channels(thoughts) for _ in range(answers)])


def _told_apart(events: Iterator[Event], channels: Channels) -> Iterator[Event]:
    with _closing(events):
        try:
            for event in events:
                if isinstance(event, PrefillProgress):
                    yield event
                else:
                    yield from channels.told(event)
        except Exception:
            yield from channels.rest()
            raise


def _several_told_apart(
    events: Iterator[PrefillProgress | OneOfSeveral], channels: Sequence[Channels]
) -> Iterator[PrefillProgress | OneOfSeveral]:
    with _closing(events):
        try:
            for event in events:
                if isinstance(event, PrefillProgress):
                    yield event
                else:
                    for told in channels[event.index].told(event.event):
                        yield OneOfSeveral(event.index, told)
        except Exception:
            for index, one in enumerate(channels):
                yield from (OneOfSeveral(index, delta) for delta in one.rest())
            raise


class Channels:
    def __init__(self, thoughts: Thoughts) -> None:
        self._splitter = ThoughtSplitter(thoughts.marks, thoughts.begun)

    def told(self, event: TextDelta | Finished) -> Iterator[TextDelta | Finished]:
        if isinstance(event, Finished):
            yield from self.rest()
            yield event
            return
        deltas = self._splitter.feed(event.text)
        if event.token_ids or event.chances:
            last = deltas.pop() if deltas else TextDelta("")
            deltas.append(replace(last, token_ids=event.token_ids, chances=event.chances))
        yield from deltas

    def rest(self) -> list[TextDelta]:
        return self._splitter.finish()


@contextmanager
def _closing(events: Iterator[object]) -> Iterator[None]:
    try:
        yield
    finally:
        close = getattr(events, "close", None)
        if close is not None:
            close()


def overlap(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a proper beginning of `mark`."""
    return next((size for size in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:size])), 0)
