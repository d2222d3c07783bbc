"""Draws of many rows without a GPU: the kernels run on the CPU, where each row comes to what it does alone."""

from __future__ import annotations

import pytest
import torch

from exlchat.ext import many_draws
from tests.ext.chain_cases import Functions, unchecked
from tests.ext.emulation import emulated_library
from tests.ext.many_draw_cases import Rows, check_alike
from tests.ext.test_chain import launch

# Compiling takes half a minute on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> Functions:
    return Functions(emulated_library(tmp_path_factory.mktemp("emulated")))


@pytest.fixture(autouse=True)
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a chain alone as well, so that not even sums of doubles differ."""
    unchecked(monkeypatch, processors=1)
    monkeypatch.setattr(many_draws, "check_on_gpu", lambda **_tensors: None)


@pytest.mark.parametrize(("count", "vocab"), [(1, 300), (9, 300), (40, 300), (16, 5000)])
def test_each_row_draws_as_it_would_alone(functions: Functions, count: int, vocab: int) -> None:
    def make(alone: bool) -> Rows:
        return Rows(functions.library, count, vocab, launch, torch.device("cpu"), alone=alone)

    check_alike(make, range(1, count, 6) if count > 1 else ())


@pytest.mark.parametrize("count", [2, 8])
def test_chains_by_launches_of_their_own_have_all_their_blocks(
    functions: Functions, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    unchecked(monkeypatch, processors=3)

    def make(alone: bool) -> Rows:
        return Rows(functions.library, count, 700, launch, torch.device("cpu"), alone=alone, chains=False)

    check_alike(make, (1,))


def test_more_rows_than_there_is_room_for_are_refused(functions: Functions) -> None:
    with pytest.raises(ValueError, match="0 rows of 0 kinds"):
        many_draws.ManyDrawKernels(functions.library).draw_rows(many_draws.DrawTable(4, torch.device("cpu")), [], [])
