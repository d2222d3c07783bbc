"""Attention of several tokens without a GPU: its kernels run on the CPU, where each comes to what it does alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from exlchat.ext import attention
from exlchat.ext.attention import Attention, AttentionRules
from exlchat.ext.job import Job
from tests.ext import reference_attention
from tests.ext.chain_cases import Functions
from tests.ext.emulation import ATTENTION, emulated_library
from tests.ext.row_cases import KIND_AND_DIM, Rows, same

CPU = torch.device("cpu")
LARGE, SMALL, OLD = 232448, 101376, 65536
"""Shared memory of a block on an H200, a 30- or 40-series card, and a 20-series card."""
# Compiling takes a minute on a busy machine.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return emulated_library(tmp_path_factory.mktemp("emulated"), ATTENTION)


@pytest.fixture
def rows(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Rows]:
    monkeypatch.setattr(attention, "check_on_gpu", lambda **_tensors: None)

    def launch(job: Job) -> None:
        assert job._function(job._argument, False, None) == 0

    def make(*given: Any, shared: int = LARGE, processors: int = 3, **named: Any) -> Rows:
        functions["emulated_card"](shared, processors, 9)
        return Rows(Attention(Functions(functions).library), launch, CPU, *given, **named)

    return make


ONE = [5, 2, 7, 0]
"""The pages of a sequence."""


@pytest.mark.parametrize("processors", [1, 3, 200], ids=["one multiprocessor", "few", "many"])
@pytest.mark.parametrize("start", [0, 9, 250, 505, 760, 800])
def test_tokens_of_one_sequence(rows: Callable[..., Rows], start: int, processors: int) -> None:
    made = rows([ONE] * 8, [start + row for row in range(8)], processors=processors, heads=(8, 2))
    made.check(own=False)


@pytest.mark.sweep(12)
@pytest.mark.parametrize(("kind", "head_dim"), KIND_AND_DIM)
def test_a_token_alone_comes_to_its_definition(rows: Callable[..., Rows], kind: str, head_dim: int) -> None:
    for position in (0, 40, 777):
        made = rows([ONE], [position], kind=kind, head_dim=head_dim, heads=(8, 2))
        found = made.run([0])[0].double()
        for part, old in zip(made.stored(), made.before, strict=True):
            part.copy_(old)
        assert made.rules is not None
        wanted = reference_attention.attention(
            made.qkv[0],
            pages=made.pages,
            page_table=torch.tensor(ONE, dtype=torch.int32),
            position=position,
            turns=made.turns,
            rules=made.rules,
        )
        assert (found - wanted.flatten()).norm() / wanted.norm() < 2e-3


ANSWERS = [[5, 2, 7, 0], [5, 2, 6, 8], [5, 2, 1, 9], [5, 2, 10, 3], [5, 11, 12, 13], [14, 15, 16, 17]]
"""Four that share 512 tokens with each other, one that shares half of them, and one that shares none."""


@pytest.mark.sweep(16)
@pytest.mark.parametrize(("kind", "head_dim"), KIND_AND_DIM)
@pytest.mark.parametrize("shared", [LARGE, SMALL, OLD], ids=["large", "small", "old"])
def test_answers_to_one_prompt(rows: Callable[..., Rows], kind: str, head_dim: int, shared: int) -> None:
    positions = [700, 640, 513, 1000, 650, 645]
    rows(ANSWERS, positions, kind=kind, head_dim=head_dim, shared=shared).check()


@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (3, 1), (5, 1), (8, 1), (12, 1), (20, 1)], ids=str)
@pytest.mark.parametrize("head_dim", [64, 256])
def test_groups_of_heads(rows: Callable[..., Rows], heads: tuple[int, int], head_dim: int) -> None:
    rows(
        [*ANSWERS, [5, 2, 4, 4], [5, 2, 18, 18]],
        [700, 640, 513, 1000, 650, 645, 517, 518],
        heads=heads,
        head_dim=head_dim,
    ).check()


@pytest.mark.parametrize(
    "rules",
    [
        AttentionRules(0.1, window=300),
        AttentionRules(0.1, window=1),
        AttentionRules(0.3, softcap=5.0),
        AttentionRules(0.1, sinks=torch.linspace(-3, 6, 4)),
        AttentionRules(0.2, query_norm=torch.linspace(0, 2, 64).half(), key_norm=torch.ones(64).half(), eps=1e-5),
        AttentionRules(0.2, window=257, sinks=torch.linspace(-3, 6, 4), interleaved=True),
    ],
    ids=["window", "itself", "softcap", "sinks", "norms", "window and sinks"],
)
@pytest.mark.parametrize("kind", ["fp16", "q6"])
def test_rules(rows: Callable[..., Rows], rules: AttentionRules, kind: str) -> None:
    rows(ANSWERS, [700, 698, 694, 703, 693, 700], rules=rules, kind=kind, splits=7).check()
    rows([ONE] * 8, [690 + row for row in range(8)], rules=rules, kind=kind, splits=7).check(own=False)


def test_tokens_that_are_no_numbers_leave_their_neighbours_alone(rows: Callable[..., Rows]) -> None:
    """Those behind a token of its own sequence, and those of another answer to the same prompt."""
    found = rows([ONE] * 8, [701 + row for row in range(8)], broken=(5,)).check(own=False)
    assert found[:5].isfinite().all()
    assert found[5:].isnan().any(1).all()
    found = rows(ANSWERS, [700, 640, 513, 1000, 650, 645], broken=(0, 3)).check()
    assert found[[1, 2, 4, 5]].isfinite().all()


def test_pages_that_a_shorter_sequence_does_not_have(rows: Callable[..., Rows]) -> None:
    """What stands behind a sequence in its table may be anything, also what another one has there."""
    rows([[5, 2, 7, 9], [5, 3, 7, 9], [5, 2, 4, 9], [8, 2, 7, 9]], [900, 300, 520, 40]).check()


@pytest.mark.parametrize("splits", [1, 2, 64])
def test_splits(rows: Callable[..., Rows], splits: int) -> None:
    rows([ONE] * 8, [750 + row for row in range(8)], splits=splits).check(own=False)
    rows(ANSWERS, [700, 640, 513, 1000, 650, 645], splits=splits).check()


def test_any_number_of_tokens(rows: Callable[..., Rows]) -> None:
    made = rows([*ANSWERS, [5, 2, 4, 4], [5, 2, 18, 18]], [700, 640, 513, 1000, 650, 645, 517, 518])
    alone = torch.cat([made.run([row]) for row in range(8)])
    for count in range(2, 9):
        assert same(made.run(list(range(count))), alone[:count]), count
        assert same(made.run(list(range(8 - count, 8))[::-1]), alone[8 - count :].flip(0)), count


@pytest.mark.parametrize(("count", "least"), [(9, 0), (9, 512), (40, 64), (128, 256)])
def test_many_sequences(rows: Callable[..., Rows], count: int, least: int) -> None:
    """More than a warp has lanes, of all lengths, some of them empty; each to the last bit as alone."""
    positions = [(row * 89) % (900 if count < 20 else 330) if row % 7 else 0 for row in range(count)]
    tables = [[5 + row % 3, 2, 7, 9] for row in range(count)]
    for row, table in enumerate(tables):
        table[positions[row] // 256] = 10 + row  # what it writes is its own
    made = rows(tables, positions, splits=5, least=least, processors=2)
    together = made.check().double()
    assert made.rules is not None
    for row in range(0, count, 16):
        wanted = reference_attention.attention(
            made.qkv[row],
            pages=made.pages,
            page_table=torch.tensor(tables[row], dtype=torch.int32),
            position=positions[row],
            turns=made.turns,
            rules=made.rules,
        ).flatten()
        assert (together[row] - wanted).norm() / wanted.norm() < 2e-3
