"""Where the tokens of one answer come from, behind the first, which is drawn from the logits of the prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from exlchat.llm.events import DecodePath


class TokenSource(Protocol):
    """One answer's tokens, in order."""

    @property
    def path(self) -> DecodePath:
        """What the statistics say."""

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
            RequestError: a newer request has ended this answer.
        """

    def go_on(self) -> None:
        """The answer does not end with the last token: what can be begun without being asked for may begin."""

    def close(self) -> None:
        """No more tokens are wanted. Returns when the device no longer works for this answer; again is harmless.

        Then the cache ends with the last token that was followed.
        """


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
        """See `TokenSource`."""
        return self._draw(self._compute(token))

    def go_on(self) -> None:
        """Nothing: the host draws."""

    def close(self) -> None:
        """Nothing: no step outlives its call."""
