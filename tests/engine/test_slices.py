"""Slices of prompts beside answers: as large as the time of those who wait allows, on fast devices and slow ones."""

from __future__ import annotations

import pytest

from exlchat.engine.schedule.slices import Slices
from exlchat.llm.request import Rank


class Device:
    """Takes its time for tokens and passes, by a clock of its own; what slices took is known two later."""

    def __init__(self, token_seconds: float, pass_seconds: float, chunk: int = 4096, lowest: Rank = Rank.API) -> None:
        self.slices = Slices(chunk, lowest=lowest)
        self._under_way: list[int] = []
        self.now = 100.0
        self._token, self._pass = token_seconds, pass_seconds

    def answer(self, passes: int) -> None:
        for _ in range(passes):
            self.slices.passed(self.now)
            self.now += self._pass

    def read_alone(self, slices: int) -> None:
        for _ in range(slices):
            self._read(None)

    def _read(self, front: Rank | None) -> None:
        tokens = self.slices.size(front)
        self.now += tokens * self._token
        self._under_way.append(tokens)
        if len(self._under_way) > 2:
            ended = self._under_way.pop(0)
            self.slices.took(ended, ended * self._token)

    def gaps(self, front: Rank, slices: int) -> list[float]:
        """Seconds between two tokens of the answers, a slice between two passes each time."""
        gaps = []
        for _ in range(slices):
            before = self.now
            self._read(front)
            self.answer(1)
            gaps.append(self.now - before)
        return gaps


@pytest.mark.parametrize(("token", "step"), [(2e-5, 1.7e-3), (1e-6, 1e-3), (2e-4, 5e-3), (1e-4, 2e-3)])
def test_a_chat_gets_its_tokens_in_time_beside_a_long_prompt(token: float, step: float) -> None:
    device = Device(token, step)
    device.answer(20)
    settled = device.gaps(Rank.CHAT, 80)[20:]
    assert max(settled) <= 1.2 * 0.011 + step
    # And the prompt is not starved: slices take a good part of what they may, or are whole chunks.
    assert max(settled) >= min(0.011 / 2.4, 4096 * token)


def test_a_device_with_slow_passes_reads_for_as_long_as_one_takes() -> None:
    device = Device(token_seconds=1e-3, pass_seconds=0.1)
    device.answer(20)
    settled = device.gaps(Rank.CHAT, 40)[6:]
    assert 0.13 <= max(settled) <= 0.26


def test_what_prompts_took_alone_is_known_at_the_first_slice() -> None:
    device = Device(token_seconds=2e-3, pass_seconds=0.02)
    device.read_alone(3)
    device.answer(5)
    assert device.gaps(Rank.CHAT, 1)[0] < 0.12


def test_those_who_serve_programs_wait_longer_and_on_a_card_low_ranks_leave_room_for_a_chat_that_comes() -> None:
    chat, api, whole = (Device(2e-5, 1e-3) for _ in range(3))
    bulk = Device(2e-5, 1e-3, lowest=Rank.IDLE)
    for device in (chat, api, bulk, whole):
        device.answer(20)
    assert max(chat.gaps(Rank.CHAT, 30)[6:]) < max(api.gaps(Rank.API, 30)[6:])
    assert 0.018 / 2.4 <= max(bulk.gaps(Rank.BULK, 30)[6:]) <= 1.2 * 0.018 + 1e-3
    assert bulk.slices.size(None) == 4096
    assert whole.gaps(Rank.BULK, 3)[-1] == pytest.approx(4096 * 2e-5 + 1e-3)


def test_where_a_card_loads_and_captures_what_it_runs_a_size_is_not_judged_by_that() -> None:
    slices = Slices(4096, judged=5)
    slices.passed(0.0)
    for seconds in (0.09, 0.06, 0.01, 0.01, 0.01, 0.09, 0.01):
        assert slices.size(Rank.CHAT) == 256
        slices.took(256, seconds)
    for _ in range(5):
        slices.took(256, 0.02)
    assert slices.size(Rank.CHAT) == 128


def test_the_end_of_a_prompt_says_nothing_of_what_a_token_takes() -> None:
    slices = Slices(4096, judged=5)
    slices.took(1024, 0.04)
    slices.took(7, 0.01)
    slices.passed(0.0)
    assert slices.size(Rank.CHAT) == 256


def test_where_few_tokens_take_as_long_as_more_slices_grow_until_they_take_longer() -> None:
    slices = Slices(4096, judged=5)
    slices.took(64, 0.006)
    slices.passed(0.0)
    assert slices.size(Rank.CHAT) == 64
    for _ in range(100):
        size = slices.size(Rank.CHAT)
        slices.took(size, max(0.006, size * 4e-5))
    assert slices.size(Rank.CHAT) == 256


def test_a_small_chunk_is_never_exceeded() -> None:
    device = Device(1e-5, 1e-3, chunk=16)
    assert device.gaps(Rank.CHAT, 5)[-1] == pytest.approx(16e-5 + 1e-3)
