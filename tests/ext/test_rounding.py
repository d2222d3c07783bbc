"""The converter's kernels, which run on the CPU here, against the same steps in plain torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from exlchat.engine.convert.steps import KernelSteps, TorchSteps
from exlchat.ext import rounding
from exlchat.ext.job import Job
from exlchat.ext.rounding import RoundingKernels
from tests.ext.chain_cases import Functions
from tests.ext.emulation import emulated_library

pytestmark = pytest.mark.timeout(400)
PLAIN = TorchSteps()


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return emulated_library(tmp_path_factory.mktemp("emulated"), ("rounding",))


@pytest.fixture
def steps(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> KernelSteps:
    monkeypatch.setattr(rounding, "check_on_gpu", lambda **_tensors: None)

    def launch(job: Job, *, dependent: bool) -> None:
        assert job._function(job._argument, dependent, None) == 0

    monkeypatch.setattr(Job, "launch", launch)
    return KernelSteps(RoundingKernels(Functions(functions).library))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def upper(size: int) -> Tensor:
    return torch.triu(0.1 * random(size, size, seed=1)) + torch.diag(0.7 + random(size, seed=2).abs())


def alike(found: Tensor, wanted: Tensor) -> float:
    """Sums have another order, so that a code may fall to the other side of a half, and all rows below differ with it:
    the part of the columns where nothing does."""
    close = torch.isclose(found, wanted, rtol=1e-3, atol=1e-4)
    while close.ndim > 1:
        close = close.all(0)
    return float(close.double().mean())


@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize(("batch", "candidates", "columns"), [(1, 1, 32), (3, 5, 96), (2, 16, 300)])
def test_errors_are_handed_on(steps: KernelSteps, size: int, batch: int, candidates: int, columns: int) -> None:
    rows, half = random(size, batch, columns), torch.tensor([8.0, 2.0, 128.0])[:batch]
    scale = 0.05 + random(batch, candidates, columns, seed=3).abs()
    assert alike(steps.losses(rows, upper(size), scale, half), PLAIN.losses(rows, upper(size), scale, half)) > 0.95
    codes, errors = steps.rounded(rows, upper(size), scale[:, 0], half)
    wanted_codes, wanted_errors = PLAIN.rounded(rows, upper(size), scale[:, 0], half)
    assert alike(codes, wanted_codes) > 0.95
    assert alike(errors, wanted_errors) > 0.95
    assert bool((codes.amin((0, 2)) >= -half).all())
    assert bool((codes.amax((0, 2)) <= half - 1).all())


@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize("columns", [1, 32, 300])
def test_codes_are_improved(steps: KernelSteps, size: int, columns: int) -> None:
    factor = random(size, 2 * size, seed=4)
    curve = factor @ factor.T / (2 * size)
    scale, weight = 0.1 + random(columns, seed=5).abs(), random(size, columns)
    codes = (weight / scale).round().clamp(-4, 3)
    gradient = curve @ ((codes * scale).half().float() - weight)
    wanted, found = codes.clone(), codes.clone()
    PLAIN.improve(wanted, gradient, curve, scale, 4)
    steps.improve(found, gradient, curve, scale, 4)
    assert alike(found, wanted) > 0.95

    def loss(of: Tensor) -> float:
        error = (of * scale).half().float() - weight
        return float((error * (curve @ error)).sum())

    assert loss(found) < loss(codes)


def test_wrong_tensors_are_refused(steps: KernelSteps) -> None:
    rows, scale, half = random(48, 1, 32), torch.ones(1, 1, 32), torch.ones(1)
    with pytest.raises(ValueError, match="a group of 48 rows; it must be a multiple of 32, at most 128"):
        steps.losses(rows, upper(48), scale, half)
    with pytest.raises(ValueError, match=r"upper is .*\(64, 64\)"):
        steps.losses(rows[:32], upper(64), scale, half)
    with pytest.raises(ValueError, match="half is"):
        steps.losses(rows[:32], upper(32), scale, torch.ones(2))
