"""Which code is made for which cards, and which cards a library runs on."""

from __future__ import annotations

import pytest

from exlchat.ext.errors import BuildError
from exlchat.ext.targets import FAT, Targets, covers, parse_capability, targets_for


def test_each_card_once_with_machine_code_only() -> None:
    targets = targets_for([(9, 0), (8, 6), (9, 0)])
    assert targets.names == ("sm_86", "sm_90a")
    assert targets.flags == ("-gencode=arch=compute_86,code=sm_86", "-gencode=arch=compute_90a,code=sm_90a")


def test_ptx_of_the_last() -> None:
    targets = Targets(((8, 9), (12, 0)), ptx=True)
    assert targets.names == ("sm_89", "sm_120", "compute_120")
    assert targets.flags[-1] == "-gencode=arch=compute_120,code=compute_120"


def test_no_card_and_a_card_that_is_too_old() -> None:
    with pytest.raises(BuildError, match="no card to build for"):
        targets_for([])
    with pytest.raises(BuildError, match=r"compute capability 7\.0 is too old: .* needs 7\.5 .* or newer"):
        targets_for([(9, 0), (7, 0)])


@pytest.mark.parametrize("card", [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (12, 0), (12, 1), (13, 0)])
def test_a_wheel_runs_on(card: tuple[int, int]) -> None:
    assert covers(FAT.names, card)


@pytest.mark.parametrize("card", [(7, 0), (10, 0)])
def test_a_wheel_does_not_run_on(card: tuple[int, int]) -> None:
    assert not covers(FAT.names, card)


def test_machine_code_runs_on_its_own_generation_only() -> None:
    assert covers(["sm_80"], (8, 6))
    assert not covers(["sm_86"], (8, 0))
    assert not covers(["sm_90"], (12, 0))


def test_code_with_what_one_card_alone_has_runs_there_alone() -> None:
    assert covers(["sm_90a"], (9, 0))
    assert not covers(["sm_100a"], (10, 3))


@pytest.mark.parametrize(
    ("text", "expected"), [("8.9", (8, 9)), ("89", (8, 9)), ("sm_120", (12, 0)), (" 10.3 ", (10, 3))]
)
def test_ways_to_write_a_capability(text: str, expected: tuple[int, int]) -> None:
    assert parse_capability(text) == expected


@pytest.mark.parametrize("text", ["", "8", "ada", "8.9.1", "sm_90a"])
def test_what_is_no_capability(text: str) -> None:
    with pytest.raises(ValueError, match="write it as"):
        parse_capability(text)
