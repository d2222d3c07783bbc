"""What pays: rates from few or many observations, kept over a restart."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from exlchat.engine.kv.disk.rates import Average, Rates
from tests.engine.random_pages import hash_of, make_page, opened, put_all


class Clock:
    """Seconds that pass when they are told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def rates(tmp_path: Path, clock: Clock) -> Rates:
    return Rates(tmp_path / "rates.json", clock)


def read(rates: Rates, clock: Clock, size: int, seconds: float) -> None:
    rates.start_read()
    clock.now += seconds
    rates.end_read(size)


def test_while_a_rate_is_unknown_reading_pays(rates: Rates, clock: Clock) -> None:
    assert rates.pays(10**12, 1)
    rates.note_prefill(1000, 1.0)
    assert rates.pays(10**12, 1)
    read(rates, clock, 10**6, 1.0)
    assert not rates.pays(10**12, 1)


def test_the_faster_way_pays(rates: Rates, clock: Clock) -> None:
    rates.note_prefill(5000, 1.0)
    read(rates, clock, 10**9, 1.0)
    assert rates.pays(10**8 - 10**6, 500)
    assert not rates.pays(10**8 + 10**6, 500)


def test_a_moment_decides_nothing(rates: Rates, clock: Clock) -> None:
    rates.note_prefill(5000, 1.0)
    for _ in range(4):
        read(rates, clock, 1000, 0.01)
    assert rates.read is None
    for _ in range(2):
        read(rates, clock, 1000, 0.01)
    assert rates.read == pytest.approx(100_000)


def test_a_short_prompt_says_nothing_about_the_rate_of_long_ones(rates: Rates) -> None:
    rates.note_prefill(4000, 1.0)
    for _ in range(100):
        rates.note_prefill(5, 0.5)
    assert rates.prefill == pytest.approx(4000)


def test_reads_at_the_same_time_share_it_and_pauses_do_not_count(rates: Rates, clock: Clock) -> None:
    rates.start_read()
    rates.start_read()
    clock.now += 1.0
    rates.end_read(100)
    clock.now += 1.0
    rates.end_read(100)
    clock.now += 1000.0
    assert rates.read == pytest.approx(100)


def test_a_read_of_nothing_useful_is_no_observation(rates: Rates, clock: Clock) -> None:
    read(rates, clock, 0, 10.0)
    assert rates.read is None


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_ignored(rates: Rates, seconds: float) -> None:
    rates.note_prefill(1000, seconds)
    assert rates.prefill is None


def test_newer_observations_count_more() -> None:
    average = Average()
    average.note(100, 1.0)
    average.note(300, 1.0)
    # The first counts half: (100 / 2 + 300) / (1 / 2 + 1).
    assert average.rate == pytest.approx(350 / 1.5)


def test_rates_survive_a_restart(tmp_path: Path, rates: Rates, clock: Clock) -> None:
    rates.note_prefill(5000, 100.0)
    read(rates, clock, 10**9, 2.0)
    rates.save()
    again = Rates(tmp_path / "rates.json", clock)
    assert again.prefill == pytest.approx(50)
    assert again.read == pytest.approx(5e8)
    assert [path.name for path in tmp_path.iterdir()] == ["rates.json"]


def test_an_old_rate_is_forgotten_after_some_starts_without_a_new_figure(tmp_path: Path, clock: Clock) -> None:
    rates = Rates(tmp_path / "rates.json", clock)
    read(rates, clock, 1, 1000.0)
    for _ in range(10):
        rates.note_prefill(1000, 0.2)
        assert rates.pays(10, 1) == (rates.read is None)
        rates.save()
        rates = Rates(tmp_path / "rates.json", clock)
    assert rates.read is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 5000,
        b'{"version": 2, "read": [1, 1], "prefill": [1, 1]}',
        b'{"version": 1, "read": [1, 1]}',
        b'{"version": 1, "read": 1, "prefill": 2}',
        b'{"version": 1, "read": [1], "prefill": [1, 2, 3]}',
        b'{"version": 1, "read": [NaN, 1], "prefill": [1, NaN]}',
        b'{"version": 1, "read": [1e999, 1], "prefill": [1, 1e999]}',
        b'{"version": 1, "read": [-1, 1], "prefill": [1, -1]}',
        b'{"version": 1, "read": [0, 0], "prefill": [1, 1e-300]}',
        b'{"version": 1, "read": [[], {}], "prefill": ["x", null]}',
        b'{"version": 1, "read": [1' + b"0" * 400 + b', 1], "prefill": [1, 1]}',
    ],
)
def test_a_damaged_file_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rates.json").write_bytes(content)
    rates = Rates(tmp_path / "rates.json")
    assert rates.read is None
    assert rates.prefill is None
    assert rates.pays(10**15, 1)
    rates.note_prefill(1000, 1.0)
    rates.save()
    assert json.loads((tmp_path / "rates.json").read_text())["prefill"] == [1000, 1.0]


def test_a_pipe_in_its_place_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rates.json")
    assert Rates(tmp_path / "rates.json").read is None


def test_no_folder_is_made_for_rates(tmp_path: Path) -> None:
    rates = Rates(tmp_path / "absent" / "rates.json")
    rates.note_prefill(1000, 1.0)
    rates.save()
    assert not (tmp_path / "absent").exists()


def test_a_store_observes_its_own_reads_and_remembers_them(tmp_path: Path) -> None:
    page = make_page(range(256))
    with opened(tmp_path) as files:
        put_all(files, [page])
        for _ in range(2000):
            assert files.read(hash_of(page)) is not None
        files.note_prefill(10**9, 1.0)
        assert not files.pays(files.page_bytes(), 1)
        assert files.pays(files.page_bytes(), 10**9)
    with opened(tmp_path) as files:
        assert not files.pays(files.page_bytes(), 1)
