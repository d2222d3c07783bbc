"""The choice of experts against its reference. Outputs are poisoned first; messages name the case."""

from __future__ import annotations

import pytest
import torch

from exlchat.ext.ops import Kernels
from exlchat.ext.routing import RouteRules
from tests.gpu.expert_cases import BOTH_EDGES, DEVICE, FLOAT, HALF, Routed, randn


@BOTH_EDGES
@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("renormalised", [True, False], ids=["renormalised", "of all"])
@pytest.mark.parametrize("experts", [1, 2, 7, 8, 16, 60, 64, 128, 129, 256, 511, 512])
def test_route(kernels: Kernels, experts: int, dtype: torch.dtype, renormalised: bool, dependent: bool) -> None:
    for width in (8, 264, 2048, 2880, 4096, 4104, 7168):
        x = randn(3, width).half()
        router = (randn(experts, width) * 2 * width**-0.5).to(dtype)
        for slots in (1, 2, 4, 8, 10, 16):
            if slots > experts:
                continue
            routed = Routed(kernels, x, router, RouteRules(experts, slots, renormalised), None)
            for run in range(2):
                routed.chosen.fill_(-1)
                routed.job.launch(dependent=dependent)
                routed.check(x, router, None, f"width {width}, {slots} of {experts}, run {run}")


@pytest.mark.parametrize(
    ("logits", "slots", "wanted"),
    [
        ([0.0] * 8, 2, [0, 1]),
        ([0.0] * 128, 16, list(range(16))),
        ([1.0, 3.0, 3.0, 2.0, 3.0, 2.0, 0.0, 2.0], 4, [1, 2, 4, 3]),
        ([1.0, 3.0, 3.0, 2.0, 3.0, 2.0, 0.0, 2.0], 6, [1, 2, 4, 3, 5, 7]),
        ([-2.0, -1.0, -2.0, -1.0, -3.0], 3, [1, 3, 0]),
        ([0.0, -0.0, -0.0, 0.0], 4, [0, 1, 2, 3]),
        ([5.0 if i % 61 == 60 else 1.0 for i in range(512)], 10, [60, 121, 182, 243, 304, 365, 426, 487, 0, 1]),
        ([float(i) for i in range(60)], 4, [59, 58, 57, 56]),
        ([float(-i) for i in range(60)], 4, [0, 1, 2, 3]),
    ],
)
def test_of_equals_the_lower_number_comes_first(
    kernels: Kernels, logits: list[float], slots: int, wanted: list[int]
) -> None:
    x = torch.ones(1, 8, dtype=HALF, device=DEVICE)
    router = torch.zeros(len(logits), 8, dtype=HALF, device=DEVICE)
    router[:, 3] = torch.tensor(logits, device=DEVICE).half()
    routed = Routed(kernels, x, router, RouteRules(len(logits), slots, True), None)
    routed.job.launch(dependent=True)
    assert routed.logits.tolist() == [logits]
    assert routed.chosen.tolist() == [wanted]
    routed.check(x, router, None, "ties")


def test_a_bias_is_part_of_the_logits(kernels: Kernels) -> None:
    x, router = randn(1, 2880).half(), (randn(32, 2880) * 0.01).half()
    bias = torch.zeros(32, device=DEVICE)
    bias[[30, 5, 17, 2]] = torch.tensor([40.0, 30.0, 20.0, 10.0], device=DEVICE)
    routed = Routed(kernels, x, router, RouteRules(32, 4, True), bias)
    routed.job.launch(dependent=False)
    assert routed.chosen.tolist() == [[30, 5, 17, 2]]
    routed.check(x, router, bias, "bias")


def test_rows_behind_the_experts_are_products_alone(kernels: Kernels) -> None:
    x, router = randn(1, 2048).half(), (randn(61, 2048) * 0.02).half()
    router[60] = x[0]  # would be chosen by far
    for renormalised in (True, False):
        routed = Routed(kernels, x, router, RouteRules(60, 4, renormalised), None)
        routed.job.launch(dependent=False)
        routed.check(x, router, None, "60 experts and a gate")
        assert 60 not in routed.chosen


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("renormalised", [True, False])
def test_what_are_no_numbers_chooses_different_experts_all_the_same(
    kernels: Kernels, value: float, renormalised: bool
) -> None:
    for places in ([0], [3, 60], list(range(64)), [63]):
        router = (randn(64, 256) * 0.1).half()
        router[places] = value
        x = torch.ones(1, 256, dtype=HALF, device=DEVICE)
        routed = Routed(kernels, x, router, RouteRules(64, 8, renormalised), None)
        routed.job.launch(dependent=False)
        found = routed.chosen[0].tolist()
        assert len(set(found)) == 8, found
        assert all(0 <= expert < 64 for expert in found), found


def test_a_hundred_routes_give_the_same_bits(kernels: Kernels) -> None:
    x, router = randn(1, 2048).half(), (randn(128, 2048) * 0.02).half()
    routed = Routed(kernels, x, router, RouteRules(128, 8, True), None)
    routed.job.launch(dependent=False)
    first = [tensor.clone() for tensor in (routed.logits, routed.chosen, routed.weights)]
    for run in range(100):
        for tensor in (routed.logits, routed.weights):
            tensor.fill_(float("nan"))
        routed.job.launch(dependent=True)
        again = (routed.logits, routed.chosen, routed.weights)
        assert all(torch.equal(a, b) for a, b in zip(again, first, strict=True)), f"run {run}"
