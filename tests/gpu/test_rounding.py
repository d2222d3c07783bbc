"""The converter's kernels on a card, against the same steps in plain torch on it."""

from __future__ import annotations

import pytest
import torch

from exlchat.engine.convert.steps import KernelSteps, TorchSteps
from exlchat.ext.ops import Kernels
from tests.ext.test_rounding import alike, random, upper

PLAIN = TorchSteps()


@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize(("batch", "candidates", "columns"), [(1, 1, 32), (5, 16, 4096), (1, 16, 28672)])
def test_errors_are_handed_on(kernels: Kernels, size: int, batch: int, candidates: int, columns: int) -> None:
    steps = KernelSteps(kernels)
    rows, half = random(size, batch, columns).cuda(), torch.tensor([8.0, 2.0, 128.0, 4.0, 16.0])[:batch].cuda()
    scale, coupling = (0.05 + random(batch, candidates, columns, seed=3).abs()).cuda(), upper(size).cuda()
    found, wanted = steps.losses(rows, coupling, scale, half), PLAIN.losses(rows, coupling, scale, half)
    assert alike(found, wanted) > 0.95
    for own, other in zip(
        steps.rounded(rows, coupling, scale[:, 0], half), PLAIN.rounded(rows, coupling, scale[:, 0], half), strict=True
    ):
        assert alike(own, other) > 0.95


@pytest.mark.parametrize("size", [32, 64, 96, 128])
@pytest.mark.parametrize("columns", [32, 4096])
def test_codes_are_improved(kernels: Kernels, size: int, columns: int) -> None:
    factor = random(size, 2 * size, seed=4)
    curve = (factor @ factor.T / (2 * size)).cuda()
    scale, weight = (0.1 + random(columns, seed=5).abs()).cuda(), random(size, columns).cuda()
    codes = (weight / scale).round().clamp(-4, 3)
    gradient = curve @ ((codes * scale).half().float() - weight)
    wanted, found = codes.clone(), codes.clone()
    PLAIN.improve(wanted, gradient, curve, scale, 4)
    KernelSteps(kernels).improve(found, gradient, curve, scale, 4)
    assert alike(found, wanted) > 0.95
