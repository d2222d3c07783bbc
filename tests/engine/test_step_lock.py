"""Who computes: in the order in which they came, unless what they wait for comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from exlchat.engine.schedule.step_lock import StepLock

SECONDS = 30


def begun(what: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


def wait_for_places(lock: StepLock, count: int) -> None:
    """Asked for by so many; there is nothing that tells of it."""
    while len(lock._waiting) < count:
        threading.Event().wait(1e-3)


def test_whoever_gives_it_back_and_asks_again_goes_behind_those_who_wait() -> None:
    lock, order = StepLock(), list[str]()

    def take(name: str) -> None:
        with lock.held():
            order.append(name)

    with lock.held():
        threads = []
        for number, name in enumerate("abc"):
            threads.append(begun(lambda name=name: take(name)))  # type: ignore[misc]
            wait_for_places(lock, number + 1)
    take("again")
    for thread in threads:
        thread.join(SECONDS)
    assert order == ["a", "b", "c", "again"]


def test_it_is_held_until_it_was_given_back_as_often_as_taken() -> None:
    lock, got = StepLock(), threading.Event()

    def take() -> None:
        with lock.held():
            got.set()

    with lock.held():
        with lock.held():
            begun(take)
            wait_for_places(lock, 1)
        assert not got.wait(0.05)
    assert got.wait(SECONDS)


def test_what_comes_first_ends_the_wait_while_another_holds_it() -> None:
    lock, told, held = StepLock(), list[int](), list[bool]()

    def take() -> None:
        with lock.held(unless=lambda: told) as mine:
            held.append(mine)

    with lock.held():
        thread = begun(take)
        wait_for_places(lock, 1)
        told.append(1)
        lock.look()
        thread.join(SECONDS)
        assert held == [False]
    with lock.held(unless=lambda: False) as mine:
        assert mine


def test_what_is_waited_for_without_a_place_may_come_when_it_is_given_back() -> None:
    lock, ended, seen = StepLock(), threading.Event(), threading.Event()

    def wait() -> None:
        lock.wait(ended.is_set)
        seen.set()

    with lock.held():
        begun(wait)
        with lock.held():
            pass
        assert not seen.wait(0.05)
        ended.set()
    assert seen.wait(SECONDS)


def test_whose_wait_breaks_off_leaves_the_line() -> None:
    lock, broken, got = StepLock(), threading.Event(), threading.Event()

    def breaks() -> bool:
        if broken.is_set():
            raise KeyboardInterrupt
        return False

    def first() -> None:
        with pytest.raises(KeyboardInterrupt), lock.held(unless=breaks):
            pass

    def second() -> None:
        with lock.held():
            got.set()

    with lock.held():
        thread = begun(first)
        wait_for_places(lock, 1)
        begun(second)
        wait_for_places(lock, 2)
        broken.set()
        lock.look()
        thread.join(SECONDS)
    assert got.wait(SECONDS)
