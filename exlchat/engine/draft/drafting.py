"""Guessing tokens ahead and checking them all in one pass. The answer is the same; only how fast it comes changes.

Every token is drawn from the model's own logits, in order and by its own random number, as without a draft (exllamav2
does the same; Leviathan et al. 2023, arXiv 2211.17192, accept by chance instead, which draws other tokens for the same
seed). A guess only decides whether the logits behind it can be used.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from exlchat.engine.schedule.token_sources import TokenSource
from exlchat.llm.events import DecodePath

# Chances that are left out before guesses that did not pay are tried again; twice as many each time, up to the last.
_TRY_AGAIN, _LONGEST_PAUSE = 64, 1024
# Checks behind which a plain step is taken, to see what one takes now.
_LOOK_AGAIN = 100
MOST_ROWS = 8
"""Rows of one pass: the last token, and up to seven guesses."""


_Row = TypeVar("_Row")
"""What a pass gives for each of its tokens, and a token is drawn from."""


class Drafter(Protocol):
    """Who guesses. It is told the whole context each time, which may have become shorter."""

    def guess(self, context: Sequence[int], most: int) -> list[int]:
        """What may follow, at most so many tokens; nothing where it has no idea."""


@dataclass(slots=True)
class DraftCount:
    drafted: int = 0
    accepted: int = 0


class DraftLength:
    """How many guesses pay, from how often they are right and what they and a pass take.

    With each guess right at a rate p, a pass of k guesses gives (1 - p^(k+1)) / (1 - p) tokens. The rate and all
    seconds are running means of what was seen.

    Args:
        row_cost: of a plain step, what each row more is thought to cost before one was measured.
    """

    def __init__(self, row_cost: float) -> None:
        self._rate = 0.6
        self._cost: list[float | None] = [None] * MOST_ROWS
        self._seen = [0] * MOST_ROWS
        self._row_cost = row_cost
        self._draw_seconds = self._guess_seconds = 0.0
        self._skipped, self._pause = 0, _TRY_AGAIN
        self._checks = 0  # since the last plain step

    @property
    def best(self) -> int:
        """Guesses to check now; 0 where none pay, or while plain steps are not known. Now and then it tries again."""
        plain = self._cost[0]
        if plain is None or self._checks >= _LOOK_AGAIN:
            return 0
        gains = [self._tokens(count) * plain / self._pass(count) for count in range(MOST_ROWS)]
        best = max(range(MOST_ROWS), key=gains.__getitem__)
        if best:
            self._skipped, self._pause = 0, _TRY_AGAIN
            return best
        self._skipped += 1
        if self._skipped < self._pause:
            return 0
        self._skipped, self._pause = 0, min(2 * self._pause, _LONGEST_PAUSE)
        return 2

    def saw(self, guesses: int, right: int) -> None:
        """So many of these guesses were right, in a row."""
        for hit in [1.0] * right + [0.0] * (right < guesses):
            self._rate += 0.1 * (hit - self._rate)

    def took(self, guesses: int, seconds: float) -> None:
        """A pass with so many guesses, and the first token that was drawn from it; 0 is a plain step."""
        self._seen[guesses] += 1
        self._checks = self._checks + 1 if guesses else 0
        if self._seen[guesses] == 1:
            return  # a device prepares what it does first
        before = self._cost[guesses]
        weight = 0.2 if guesses else 0.5  # of plain steps few may be taken
        self._cost[guesses] = seconds if before is None else before + weight * (seconds - before)

    def guessed(self, guesses: int, seconds: float) -> None:
        self._guess_seconds += 0.2 * (seconds / guesses - self._guess_seconds)

    def drew(self, seconds: float) -> None:
        self._draw_seconds += 0.1 * (seconds - self._draw_seconds)

    def _pass(self, count: int) -> float:
        """Seconds of guesses, of the pass that checks them, and of the tokens that are drawn from it.

        In a plain step, and in the time of a pass, one draw is included.
        """
        drawing = (self._tokens(count) - 1) * self._draw_seconds
        return self._seconds(count) + count * self._guess_seconds + drawing

    def _tokens(self, count: int) -> float:
        rate = min(self._rate, 0.98)
        return (1 - rate ** (count + 1)) / (1 - rate)

    def _seconds(self, count: int) -> float:
        known = self._cost[count]
        if known is not None:
            return known
        # From the nearest size that was measured.
        near = min(
            (other for other in range(MOST_ROWS) if self._cost[other] is not None),
            key=lambda other: abs(other - count),
            default=None,
        )
        if near is None:
            return 1 + self._row_cost * count
        measured = self._cost[near]
        assert measured is not None
        return measured * (1 + self._row_cost * count) / (1 + self._row_cost * near)


class DraftedTokens(Generic[_Row]):
    """A `TokenSource` that checks guesses where there are any, and takes plain tokens where there are none.

    Args:
        plain: another source behind the last token of the context, which is not in the cache yet.
        check: feeds tokens and gives what is behind each, as logits; they are in the cache then.
        cut: so many tokens stay in the cache.
        draw: a token of one of these.
        context: prompt and answer as it grows, with the token that is followed next.
        room: tokens that may be in the cache.
    """

    def __init__(
        self,
        *,
        plain: Callable[[], TokenSource],
        check: Callable[[list[int]], Sequence[_Row]],
        cut: Callable[[int], None],
        draw: Callable[[_Row], int],
        context: Sequence[int],
        room: int,
        drafter: Drafter,
        length: DraftLength,
        count: DraftCount,
    ) -> None:
        self._open_plain, self._check, self._cut, self._draw = plain, check, cut, draw
        self._context, self._room = context, room
        self._drafter, self._length, self._count = drafter, length, count
        self._plain: TokenSource | None = None
        self._path: DecodePath = "synchronous"
        self._rows: deque[tuple[int, _Row]] = deque()
        self._checked = self._right = 0
        self._planned: tuple[int, list[int]] = (-1, [])
        self._followed = len(context) - 1

    @property
    def path(self) -> DecodePath:
        return self._path

    @property
    def busy(self) -> bool:
        return bool(self._rows) or (self._plain is not None and self._plain.busy)

    def follow(self, token: int) -> int:
        self._followed = len(self._context)
        if self._rows:
            guess, row = self._rows.popleft()
            if guess == token:
                self._right += 1
                self._count.accepted += 1
                start = time.perf_counter()
                following = self._draw(row)
                self._length.drew(time.perf_counter() - start)
                return following
            self._rows.clear()
        self._settle(self._followed - 1)
        guesses = self._guesses()
        # What a plain source has begun is used up before a guess is checked.
        if not guesses or (self._plain is not None and self._plain.busy):
            return self._plainly(token)
        self._leave_plain()
        start = time.perf_counter()
        rows = self._check([token, *guesses])
        self._checked, self._right = len(guesses), 0
        self._count.drafted += len(guesses)
        self._rows.extend(zip(guesses, rows[1:], strict=True))
        # A device may still be computing until something is drawn.
        following = self._draw(rows[0])
        self._length.took(len(guesses), time.perf_counter() - start)
        return following

    def go_on(self) -> None:
        """See `TokenSource`. A plain source does not run ahead where there is a guess to check."""
        if self._plain is not None and not self._guesses():
            self._plain.go_on()

    def stands_by(self) -> bool:
        return False

    def close(self) -> None:
        self._leave_plain()
        self._rows.clear()
        self._settle(self._followed)

    def _plainly(self, token: int) -> int:
        if self._plain is None:
            self._plain = self._open_plain()
            self._path = self._plain.path
        start = time.perf_counter()
        following = self._plain.follow(token)
        self._length.took(0, time.perf_counter() - start)
        return following

    def _leave_plain(self) -> None:
        if self._plain is not None:
            self._plain.close()
            self._plain = None

    def _guesses(self) -> list[int]:
        """Of what follows the context; asked once for each."""
        length = len(self._context)
        if self._planned[0] != length:
            most = min(self._length.best, self._room - length)
            start = time.perf_counter()
            guesses = self._drafter.guess(self._context, most) if most > 0 else []
            if guesses:
                self._length.guessed(len(guesses), time.perf_counter() - start)
            self._planned = (length, guesses)
        return self._planned[1]

    def _settle(self, length: int) -> None:
        """A check is over: what came of it, and wrong guesses out of the cache, which keeps so many tokens."""
        if not self._checked:
            return
        self._length.saw(self._checked, self._right)
        if self._right < self._checked:
            self._cut(length)
        self._checked = 0
