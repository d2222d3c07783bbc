"""Tokens of an answer that a grammar watches: which may come is computed on the CPU while the step runs on the device.

The device cannot run ahead here, for the mask of a draw depends on the token before it. It waits only for what the mask
takes longer than the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.run_ahead import check_drawn, wait_for
from exlchat.ext.sampling import TokenRing
from exlchat.llm.events import DecodePath
from exlchat.llm.request import RequestError


class MaskedStep(Protocol):
    """A captured step in two parts; see `run_ahead.DecodeStep` for the rest."""

    @property
    def ring(self) -> TokenRing:
        """Where the draws report."""

    @property
    def capacity(self) -> int:
        """Tokens that the sequence holds without `grow`."""

    def grow(self, length: int) -> None:
        """Makes `capacity` at least `length`. Raises `PoolFullError`."""

    def begin(self, sequence: KVSequence, context: Sequence[int], draws: DeviceDraws, *, masked: bool = False) -> None:
        """As for a `DecodeStep`; `masked`: the parts are launched."""

    def launch_forward(self) -> None:
        """Enqueues a step without its draw and returns."""

    def set_mask(self, words: Tensor | None) -> None:
        """int32 `[ceil(vocab / 32)]` of the next draw, by `chain.token_words`; `None` allows all."""

    def launch_draw(self) -> None:
        """Enqueues the draw and returns."""

    def begin_draw(self, logits: Tensor, context: Sequence[int], draws: DeviceDraws, mask: Tensor | None) -> None:
        """The next draw draws from float32 `[vocab]` on the device, in the place of the step's own, what `mask` allows.

        The context is looked at only where draws depend on it.
        """

    def running(self) -> bool:
        """Whether something launched has not ended. Raises `RuntimeError` when the device has failed."""


class MaskedTokens:
    """The tokens of one answer behind those that it has. A `TokenSource`.

    Args:
        step, sequence, context, draws: see `run_ahead.RunAheadTokens`.
        mask: what may come behind a token, the last of the answer; asked once for each, in order.

    Raises:
        ModelError: no memory for one more token.
    """

    path: DecodePath = "synchronous"
    busy = False

    def __init__(
        self,
        step: MaskedStep,
        sequence: KVSequence,
        context: Sequence[int],
        draws: DeviceDraws,
        mask: Callable[[int], Tensor | None],
    ) -> None:
        self._step, self._sequence, self._mask = step, sequence, mask
        self._length = len(context)
        self._drawn = 0
        self._closed = False
        step.ring.clear()
        step.begin(sequence, context, draws, masked=True)

    def follow(self, token: int) -> int:
        """See `TokenSource`; raises what the mask does, too."""
        if self._closed:
            raise RequestError("this answer was ended by a newer request to the same engine")
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

    def close(self) -> None:
        """No step outlives its call."""
        self._closed = True


def draw_once(step: MaskedStep, logits: Tensor, context: Sequence[int], draws: DeviceDraws, mask: Tensor | None) -> int:
    """One token of logits that were computed elsewhere, float32 `[vocab]` on the device.

    Args:
        step, context, draws: see `run_ahead.RunAheadTokens`; the step is idle.
        mask: what may come, as `MaskedStep.set_mask` takes it.

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
