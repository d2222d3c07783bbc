"""Where the tokens of one answer come from, behind the first, which is drawn from the logits of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from exlchat.engine.events import DecodePath
from exlchat.engine.sampling import Sampler


class TokenSource(Protocol):
    """One answer's tokens, in order."""

    @property
    def path(self) -> DecodePath:
        """What the statistics say."""

    def follow(self, token: int) -> int:
        """The token after `token`, which is the last one that this source or the prompt has given.

        Then `token` is in the cache.

        Raises:
            NotNumbersError: the logits are not numbers.
            ModelError: memory ran out, or the device failed.
            RequestError: a newer request has ended this answer.
        """

    def go_on(self) -> None:
        """The answer does not end with the last token: what can be begun without being asked for may begin."""

    def close(self) -> None:
        """No more tokens are wanted. Returns when the device no longer works for this answer; again is harmless."""


class SynchronousTokens:
    """Computes logits, draws, and only then goes on: any device, any sampler.

    Args:
        compute: feeds a token and gives float32 logits `[vocab]`.
        sampler: has drawn the first token.
    """

    path: DecodePath = "synchronous"

    def __init__(self, compute: Callable[[int], Tensor], sampler: Sampler) -> None:
        self._compute = compute
        self._sampler = sampler

    def follow(self, token: int) -> int:
        """See `TokenSource`."""
        self._sampler.accept(token)
        return self._sampler.draw(self._compute(token))

    def go_on(self) -> None:
        """Nothing: the host draws."""

    def close(self) -> None:
        """Nothing: no step outlives its call."""
