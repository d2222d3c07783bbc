"""The draws of one answer: the context, and what is remembered from token to token."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exlchat.engine.sampling.adjustments import Adjustments, check_numbers
from exlchat.engine.sampling.distribution import Moment, distribution, drawn, next_surprise
from exlchat.engine.sampling.vocabulary import TokenTexts
from exlchat.ext.philox import uniform_bits
from exlchat.llm.sampling import SamplingSettings

_WHOLE = 2**53


class Sampler:
    """Draws the tokens of one answer.

    One uniform number a token, by seed and index of the token in the answer (Philox4x32-10), turned into a token by
    the inverse of the cumulative distribution in id order. The kernels of `exlchat.ext` do the same, so a seed means
    the same on every device, as far as the logits agree.

    Args:
        settings: of the answer.
        seed: of its random numbers.
        texts: of the model's tokens. Without them tokens are named by ids alone, none breaks a passage of DRY, and XTC
            protects none.

    Raises:
        ValueError: a token that the settings name does not exist; in one line.
    """

    def __init__(self, settings: SamplingSettings, seed: int, texts: TokenTexts | None = None) -> None:
        self._settings = settings
        self._steps = settings.steps
        self._seed = seed
        self._adjustments = Adjustments(settings, texts)
        self._protected: Tensor | None = None
        if "xtc" in self._steps and texts is not None:
            self._protected = torch.from_numpy(texts.protected().copy())
        self.begin(())

    def begin(self, context: Sequence[int]) -> None:
        """The prompt; forgets the answer."""
        self._context = _Ids(context)
        self._prompt = len(self._context)
        self._attempt = 0
        # Mirostat's mu at each place of the answer, the next one last; old at places that a device has drawn (`steer`).
        self._surprises = [2.0 * self._settings.mirostat_tau]
        self._drawn: tuple[int, float] | None = None

    @property
    def index(self) -> int:
        """Of the next draw: how many tokens of the answer stand."""
        return len(self._context) - self._prompt

    @property
    def attempt(self) -> int:
        """Of the next draw: how often the answer has gone back, see `philox.uniform_bits`."""
        return self._attempt

    @property
    def surprise(self) -> float:
        """Mirostat's mu at the next draw, in bits."""
        return self._surprises[-1]

    def steer(self, surprise: float) -> None:
        """Mirostat's mu at the next draw, where a device has drawn the tokens before."""
        self._surprises[-1] = surprise

    def draw(
        self,
        logits: Tensor,
        *,
        guidance: Tensor | None = None,
        allowed: Tensor | None = None,
        barred: Collection[int] = (),
    ) -> int:
        """A token. It does not stand before it is accepted; until then another call draws the same.

        Args:
            logits: float `[vocab]`, on any device.
            guidance: those behind the negative prompt.
            allowed: bool `[vocab]`; other tokens may not come.
            barred: ids that may not come here.

        Raises:
            NotNumbersError: logits that are NaN or infinite.
            NothingAllowedError: no token is left.
        """
        if self._settings.greedy:
            return int(self._bare_or_adjusted(logits, guidance, allowed, barred).argmax())
        adjusted = self.adjusted(logits, guidance=guidance, allowed=allowed, barred=barred)
        found = distribution(adjusted, self._settings, self._steps, self._moment(adjusted.device))
        token = drawn(found.left, self._uniform())
        if found.steered is not None:
            self._drawn = token, float(found.steered.p[found.steered.ids == token])
        return token

    def adjusted(
        self,
        logits: Tensor,
        *,
        guidance: Tensor | None = None,
        allowed: Tensor | None = None,
        barred: Collection[int] = (),
    ) -> Tensor:
        """Float64 `[vocab]` before the steps of the distribution, -inf where a token may not come; see `draw`."""
        context = self._context.array
        return self._adjustments.apply(logits, context, guidance=guidance, allowed=allowed, barred=barred)

    def accept(self, token: int) -> None:
        """The token stands. One that was not drawn moves nothing but the context."""
        self._context.append(token)
        surprise = self._surprises[-1]
        if self._drawn is not None and self._drawn[0] == token:
            settings = self._settings
            surprise = next_surprise(surprise, self._drawn[1], settings.mirostat_tau, settings.mirostat_eta)
        self._surprises.append(surprise)
        self._drawn = None

    def back(self, count: int) -> None:
        """Forgets the last `count` accepted tokens, perhaps none; all draws from now on have other random numbers.

        With the number that has drawn a token that may not stay, those left would not come as often as they should.

        Raises:
            ValueError: the answer has not so many tokens.
        """
        if not 0 <= count <= self.index:
            raise ValueError(f"{count} tokens are to be taken back; the answer has {self.index:,}")
        self._attempt += 1
        self._context.shorten(count)
        del self._surprises[len(self._surprises) - count :]
        self._drawn = None

    def _bare_or_adjusted(
        self, logits: Tensor, guidance: Tensor | None, allowed: Tensor | None, barred: Collection[int]
    ) -> Tensor:
        """Logits whose best token is that of the adjusted ones: the same, where nothing adjusts them."""
        if self._adjustments.any or guidance is not None or allowed is not None or barred:
            return self.adjusted(logits, guidance=guidance, allowed=allowed, barred=barred)
        check_numbers(logits)
        return logits

    def _uniform(self, *, coin: bool = False) -> float:
        """From 0 below 1."""
        return uniform_bits(self._seed, self.index, attempt=self.attempt, coin=coin) / _WHOLE

    def _moment(self, device: torch.device) -> Moment:
        if self._protected is not None:
            self._protected = self._protected.to(device)
        coin = self._uniform(coin=True) if "xtc" in self._steps else 1.0
        return Moment(self.surprise, coin, self._protected)


class _Ids:
    """Ids in one array that grows at its end."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._length = len(ids)
        self._room: NDArray[np.int64] = np.empty(max(2 * self._length, 1024), np.int64)
        self._room[: self._length] = ids

    def __len__(self) -> int:
        return self._length

    @property
    def array(self) -> NDArray[np.int64]:
        """All of them, until there are more or fewer."""
        return self._room[: self._length]

    def append(self, token: int) -> None:
        if self._length == len(self._room):
            self._room = np.concatenate([self._room, np.empty_like(self._room)])
        self._room[self._length] = token
        self._length += 1

    def shorten(self, count: int) -> None:
        self._length -= count
