"""Where the tokens of one answer come from, behind the first, which is drawn from the logits of the prompt.

A decode step feeds itself: the device draws each token and goes on with it, so replay n + 1 can be launched before
token n is known. The host reads one step behind, in a ring in its own memory where the sampler puts tokens
(`exlchat.ext.sampling.TokenRing`); it never waits for the stream. An answer that ends by itself has computed one step
in vain; one that is ended from outside two. What such steps put into the cache lies behind its end and is overwritten.

Where a grammar watches, the device cannot run ahead, for the mask of a draw depends on the token before it: the mask is
computed on the CPU while the step runs, which waits only for what the mask takes longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, TypeVar

from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling import NothingAllowedError, NotNumbersError
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.ext.sampling import DRAWN, NOTHING_ALLOWED, TokenRing
from exlchat.llm.events import DecodePath
from exlchat.llm.info import ModelError

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

_Answer = TypeVar("_Answer")

_AHEAD = 2  # replays launched and not read: one at work, one behind it
_NAP = 20e-6
_LOOKS = 64  # between two questions whether the device still works; with naps some 5 ms


class TokenSource(Protocol):
    """One answer's tokens, in order."""

    @property
    def path(self) -> DecodePath: ...

    @property
    def busy(self) -> bool:
        """Whether it has computed, or is computing, what has not been asked for."""

    def follow(self, token: int) -> int:
        """The token after `token`, which is the last one that this source or the prompt has given.

        Then `token` is in the cache, and nothing behind it that counts.

        Raises:
            NotNumbersError: the logits are not numbers.
            NothingAllowedError: no token may come.
            ModelError: memory ran out, or the device failed.
        """

    def go_on(self) -> None:
        """The answer does not end with the last token: what can be begun without being asked for may begin."""

    def stands_by(self) -> bool:
        """Whether the next token is better asked for in the answer's next turn."""
        return False

    def close(self) -> None:
        """No more tokens are asked for; again is harmless.

        The cache ends with the last token that was followed. What a device still does for this answer stands behind
        that, and is done before anything that is launched later.
        """


class Reporting(Protocol):
    """What is waited for: the graphs of one answer, or the place of one among several."""

    @property
    def ring(self) -> TokenRing: ...

    def running(self) -> bool:
        """Whether a launched step has not ended. Raises `RuntimeError` when the device has failed."""

    def check(self) -> None:
        """Asks the device nothing. Raises `RuntimeError` where a step has ended without one of several cards."""


class SynchronousTokens:
    """Computes logits, draws, and only then goes on: any device, any sampler.

    Args:
        compute: feeds a token and gives float32 logits `[vocab]`.
        draw: a token of them.
    """

    path: DecodePath = "synchronous"
    busy = False

    def __init__(self, compute: Callable[[int], Tensor], draw: Callable[[Tensor], int]) -> None:
        self._compute = compute
        self._draw = draw

    def follow(self, token: int) -> int:
        return self._draw(self._compute(token))

    def go_on(self) -> None:
        """Nothing: the host draws."""

    def stands_by(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing: no step outlives its call."""


class RunAheadTokens:
    """The tokens of one answer behind those that it has.

    Args:
        step: idle.
        sequence: all of the context but its last token; gets those that the device feeds.
        context: prompt and answer so far.
        draws: of the next token of the answer, and of those behind it.
        most: steps that may be launched, as many as tokens may follow.
        leaves: gets, at the end, what was drawn and not asked for, and what tells Mirostat's mu behind that: nothing
            where a draw behind these has failed.

    Raises:
        ModelError: no memory for one more token.
    """

    path: DecodePath = "run-ahead"

    def __init__(
        self,
        step: DecodeGraphs,
        sequence: KVSequence,
        context: Sequence[int],
        draws: DeviceDraws,
        *,
        most: int,
        leaves: Callable[[list[int], Callable[[], float] | None], None] | None = None,
    ) -> None:
        self._step = step
        self._sequence = sequence
        self._start = len(context) - 1
        self._most = most
        self._leaves = leaves
        self._launched = self._read = 0
        self._closed = False
        step.ring.clear()
        step.begin(sequence, context, draws)
        self._launch_up_to(1)

    @property
    def busy(self) -> bool:
        return self._launched > self._read

    def follow(self, token: int) -> int:
        self._launch_up_to(self._read + 1)
        found, status = wait_for(self._step, self._read + 1)
        self._read += 1
        check_drawn(status)
        self._sequence.extend((token,))
        return found

    def go_on(self) -> None:
        self._launch_up_to(self._read + _AHEAD)

    def stands_by(self) -> bool:
        return False

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with suppress(ModelError, RuntimeError):  # a device that has failed works for nobody
            reports = [wait_for(self._step, number) for number in range(self._read + 1, self._launched + 1)]
            if self._leaves is not None:
                found = [token for token, _ in takewhile(lambda report: report[1] == DRAWN, reports)]
                self._leaves(found, self._step.mu if len(found) == len(reports) else None)

    def _launch_up_to(self, count: int) -> None:
        while self._launched < min(count, self._most):
            length = self._start + self._launched + 1
            if length > self._step.capacity:
                self._step.grow(length)
            self._step.launch()
            self._launched += 1


class MaskedTokens:
    """The tokens of one answer behind those that it has. A `TokenSource`.

    Args:
        step, sequence, context, draws: as of `RunAheadTokens`.
        mask: what may come behind a token, the last of the answer; asked once for each, in order.

    Raises:
        ModelError: no memory for one more token.
    """

    path: DecodePath = "synchronous"
    busy = False

    def __init__(
        self,
        step: DecodeGraphs,
        sequence: KVSequence,
        context: Sequence[int],
        draws: DeviceDraws,
        mask: Callable[[int], Tensor | None],
    ) -> None:
        self._step, self._sequence, self._mask = step, sequence, mask
        self._length = len(context)
        self._drawn = 0
        step.ring.clear()
        step.begin(sequence, context, draws, masked=True)

    def follow(self, token: int) -> int:
        """See `TokenSource`; raises what the mask does, too."""
        length = self._length + self._drawn
        if length > self._step.capacity:
            self._step.grow(length)
        self._step.launch_forward()
        self._step.set_mask(self._mask(token))
        self._step.launch_draw()
        self._drawn += 1
        found, status = wait_for(self._step, self._drawn)
        check_drawn(status)
        self._sequence.extend((token,))
        return found

    def go_on(self) -> None:
        """Nothing: the mask of the next draw is not known."""

    def stands_by(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing: no step outlives its call."""


def draw_once(
    step: DecodeGraphs, logits: Tensor, context: Sequence[int], draws: DeviceDraws, mask: Tensor | None
) -> int:
    """One token of logits that were computed elsewhere, float32 `[vocab]` on the device.

    Args:
        step, context, draws: as of `RunAheadTokens`; the step is idle.
        mask: what may come, as `DecodeGraphs.set_mask` takes it.

    Raises:
        NotNumbersError: the logits are not numbers.
        NothingAllowedError: no token may come.
        ModelError: the device failed.
    """
    step.ring.clear()
    step.begin_draw(logits, context, draws, mask)
    step.launch_draw()
    found, status = wait_for(step, 1)
    check_drawn(status)
    return found


def check_drawn(status: int) -> None:
    """Raises what a status that is not `DRAWN` means: `NotNumbersError`, or `NothingAllowedError`."""
    if status == NOTHING_ALLOWED:
        raise NothingAllowedError(["what holds for it (banned_tokens, no_repeat_ngram, or what it has to be)"])
    if status != DRAWN:
        raise NotNumbersError


def wait_for(step: Reporting, sequence: int) -> tuple[int, int]:
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
        if looks % _LOOKS == 0 and not _asked(step.running) and step.ring.read(sequence) is None:
            raise ModelError("the GPU ended a decode step without a token; start exlchat again")
        time.sleep(_NAP)
    # A step in which a card waited for another one in vain has a token, too, but drawn of nothing.
    _asked(step.check)
    return word


def _asked(question: Callable[[], _Answer]) -> _Answer:
    try:
        return question()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"the GPU failed in a decode step ({reason}); start exlchat again") from error
