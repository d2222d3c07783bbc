"""Tokens from a decode step that feeds itself: the host reads one step behind, and the device never waits for it.

The device draws each token and goes on with it, so replay n + 1 can be launched before token n is known. The host
finds tokens in a ring in its own memory, where the sampler puts them (`exlchat.ext.sampling.TokenRing`); it never waits
for the stream. An answer that ends by itself has computed one step in vain; one that is ended from outside two. What
such steps put into the cache lies behind its end and is overwritten.

What a step must be is `DecodeStep`, and no more. A step is used by one answer at a time and from one thread.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling import NothingAllowedError, NotNumbersError
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.ext.sampling import DRAWN, NOTHING_ALLOWED, TokenRing
from exlchat.llm.events import DecodePath
from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError

_AHEAD = 2  # replays launched and not read: one at work, one behind it
_NAP = 20e-6
_LOOKS = 64  # between two questions whether the device still works; with naps some 5 ms


class DecodeStep(Protocol):
    """One captured step: reads token and position on the device, writes key and value, draws, counts on, reports.

    Everything happens on one stream, in the order of the calls. `begin` and prefills of the same cache are only called
    when every launched step has reported.
    """

    @property
    def ring(self) -> TokenRing:
        """Where the steps report."""

    @property
    def capacity(self) -> int:
        """Tokens that the sequence holds without `grow`."""

    def grow(self, length: int) -> None:
        """Makes `capacity` at least `length`; token, position and draw stay. Raises `PoolFullError`."""

    def begin(self, sequence: KVSequence, context: Sequence[int], draws: DeviceDraws, *, masked: bool = False) -> None:
        """The next step feeds the last token of the context, at its place, and draws by `draws`, which are numbered on.

        Steps number their reports from 1 on. `masked`: the parts of a step are launched, see `masked_tokens`.
        """

    def launch(self) -> None:
        """Enqueues one step and returns."""

    def running(self) -> bool:
        """Whether a launched step has not ended. Raises `RuntimeError` when the device has failed."""


class RunAheadTokens:
    """The tokens of one answer behind those that it has.

    Args:
        step: idle.
        sequence: all of the context but its last token; gets those that the device feeds.
        context: prompt and answer so far.
        draws: of the next token of the answer, and of those behind it.
        most: steps that may be launched, as many as tokens may follow.

    Raises:
        ModelError: no memory for one more token.
    """

    path: DecodePath = "run-ahead"

    def __init__(
        self, step: DecodeStep, sequence: KVSequence, context: Sequence[int], draws: DeviceDraws, *, most: int
    ) -> None:
        self._step = step
        self._sequence = sequence
        self._start = len(context) - 1
        self._most = most
        self._launched = self._read = 0
        self._closed = False
        step.ring.clear()
        step.begin(sequence, context, draws)
        self._launch_up_to(1)

    @property
    def busy(self) -> bool:
        """See `TokenSource`."""
        return self._launched > self._read

    def follow(self, token: int) -> int:
        """See `TokenSource`."""
        if self._closed:
            raise RequestError("this answer was ended by a newer request to the same engine")
        self._launch_up_to(self._read + 1)
        found, status = wait_for(self._step, self._read + 1)
        self._read += 1
        check_drawn(status)
        self._sequence.extend((token,))
        return found

    def go_on(self) -> None:
        """See `TokenSource`."""
        self._launch_up_to(self._read + _AHEAD)

    def close(self) -> None:
        """See `TokenSource`."""
        if self._closed:
            return
        self._closed = True
        if self._launched > self._read:
            with suppress(ModelError):  # a device that has failed works for nobody
                wait_for(self._step, self._launched)

    def _launch_up_to(self, count: int) -> None:
        while self._launched < min(count, self._most):
            length = self._start + self._launched + 1
            if length > self._step.capacity:
                self._step.grow(length)
            self._step.launch()
            self._launched += 1


class ReportingStep(Protocol):
    """What is waited for."""

    @property
    def ring(self) -> TokenRing:
        """Where the steps report."""

    def running(self) -> bool:
        """Whether a launched step has not ended. Raises `RuntimeError` when the device has failed."""


def check_drawn(status: int) -> None:
    """Raises what a status that is not `DRAWN` means: `NotNumbersError`, or `NothingAllowedError`."""
    if status == NOTHING_ALLOWED:
        raise NothingAllowedError(["what holds for it (banned_tokens, no_repeat_ngram, or what it has to be)"])
    if status != DRAWN:
        raise NotNumbersError


def wait_for(step: ReportingStep, sequence: int) -> tuple[int, int]:
    """Token and status of a launched step.

    Looks and naps: a nap of 20 us lasts about 75 on Linux, leaves the interpreter to other threads, and is hidden
    behind the step that runs meanwhile. Read so, steps of 0.25 ms on an H200 come at the full rate with 8 % of a
    core; waiting for an event gave 91 % of the rate, and looking without naps took the whole core.

    Raises:
        ModelError: the device failed.
    """
    looks = 0
    while (word := step.ring.read(sequence)) is None:
        looks += 1
        if looks % _LOOKS == 0 and not _still_running(step) and step.ring.read(sequence) is None:
            raise ModelError("the GPU ended a decode step without a token; start exlchat again")
        time.sleep(_NAP)
    return word


def _still_running(step: ReportingStep) -> bool:
    try:
        return step.running()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"the GPU failed in a decode step ({reason}); start exlchat again") from error
