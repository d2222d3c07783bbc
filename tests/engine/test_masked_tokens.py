"""Tokens under a mask, from a step that is played by the CPU: what is launched when, and what is told."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from exlchat.engine import SamplingSettings
from exlchat.engine.sampling import NothingAllowedError, NotNumbersError
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.schedule.token_sources import MaskedTokens
from exlchat.ext.chain import token_words
from exlchat.ext.sampling import DRAWN, NOT_NUMBERS, NOTHING_ALLOWED, TokenRing

VOCAB = 64
DRAWS = DeviceDraws(SamplingSettings(), seed=1, index=0)


class Step:
    """Draws the lowest token that its mask allows."""

    def __init__(self) -> None:
        self.ring = TokenRing(pinned=False)
        self.capacity = 5
        self.calls: list[str] = []
        self.status = DRAWN

    def begin(self, _sequence: object, context: Sequence[int], draws: DeviceDraws, *, masked: bool) -> None:
        assert masked
        self.context, self.sequence = list(context), draws.c_draw().sequence

    def grow(self, length: int) -> None:
        self.capacity = length

    def launch_forward(self) -> None:
        assert len(self.context) <= self.capacity
        self.calls.append("forward")

    def set_mask(self, words: torch.Tensor | None) -> None:
        self.calls.append("mask")
        self.words = words

    def launch_draw(self) -> None:
        self.calls.append("draw")
        bits = [0] * VOCAB if self.words is None else [int(self.words[i // 32]) >> i % 32 & 1 for i in range(VOCAB)]
        token = bits.index(1) if 1 in bits else 0
        self.context.append(token)
        self.sequence += 1
        self.ring.words[self.sequence] = self.sequence << 32 | self.status << 24 | token

    def check(self) -> None:
        """No card fails here."""

    def running(self) -> bool:
        return False


def test_the_mask_is_asked_for_while_the_step_runs() -> None:
    step, cached, asked = Step(), [1, 2], list[int]()

    def mask(token: int) -> torch.Tensor:
        asked.append(token)
        step.calls.append("asked")
        return token_words([min(token + 30, 63)], VOCAB)

    source = MaskedTokens(step, cached, [1, 2, 3], DRAWS, mask)
    assert [source.follow(3), source.follow(33), source.follow(63)] == [33, 63, 63]
    assert asked == [3, 33, 63]
    assert step.calls == ["forward", "asked", "mask", "draw"] * 3
    assert cached == [1, 2, 3, 33, 63]
    source.close()


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [(NOTHING_ALLOWED, NothingAllowedError, "no token may come here"), (NOT_NUMBERS, NotNumbersError, "not numbers")],
)
def test_a_draw_without_a_token_is_an_error(status: int, error: type[Exception], words: str) -> None:
    step = Step()
    step.status = status
    source = MaskedTokens(step, [1], [1, 2], DRAWS, lambda _token: None)
    with pytest.raises(error, match=words):
        source.follow(2)
