"""Products of chosen experts that are quantized against their references. Outputs are poisoned first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from exlchat.ext import layout
from exlchat.ext.build import ensure_library
from exlchat.ext.errors import ExtensionError
from exlchat.ext.expert_weights import ExpertMatrices
from exlchat.ext.experts import ExpertActivation, ExpertKernels, ExpertKind
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.layout import NO_FEATURE, PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from tests.ext import reference_experts
from tests.gpu.expert_cases import (
    BOTH_EDGES,
    DEVICE,
    FLOAT,
    FLOAT_ERROR,
    GPTQ,
    HALF,
    HALF_ERROR,
    RECIPES,
    check_close,
    numbers,
    packed,
    pairs,
    poisoned,
    randn,
    singles,
)


def run_product(
    kernels: ExpertKernels,
    experts: ExpertMatrices,
    chosen: Tensor,
    x: Tensor,
    kind: ExpertKind,
    *,
    case: object,
    activation: ExpertActivation = "silu",
    limit: float = 7.0,
) -> Tensor:
    """With plain edges and dependent; both must be right and the same."""
    wanted = reference_experts.expert_product(experts, chosen, x, activation=activation, limit=limit)
    dtype, bound = (HALF, HALF_ERROR) if kind == "gated" else (FLOAT, FLOAT_ERROR)
    results = []
    for dependent in (False, True):
        y = poisoned(len(chosen), experts.outputs, dtype=dtype)
        job = kernels.expert_product(experts, chosen, x, y, kind, activation=activation, limit=limit)
        job.launch(dependent=dependent)
        check_close(y, wanted, bound, f"{case}, {'dependent' if dependent else 'plain'}")
        results.append(y)
    assert torch.equal(results[0], results[1]), f"{case}: dependent differs from plain"
    return results[0]


SIZES = [(128, 32), (352, 96), (768, 2048), (1408, 160), (2048, 768), (96, 2080)]


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
@pytest.mark.parametrize(("features", "outputs"), SIZES)
def test_down_of_chosen_experts(kernels: Kernels, recipe: str, features: int, outputs: int) -> None:
    experts = ExpertMatrices(singles(5, features, outputs, recipe))
    for chosen in (numbers(3), numbers(4, 0), numbers(1, 4, 0, 2), numbers(2, 2, 4, 1, 0, 3, 3, 2)):
        for rows in {1, len(chosen)}:
            x = randn(rows, features).half()
            run_product(kernels, experts, chosen, x, "float", case=f"{chosen.tolist()}, {rows} rows of x")


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
@pytest.mark.parametrize(("features", "outputs"), SIZES)
def test_gate_and_up_of_chosen_experts(kernels: Kernels, recipe: str, features: int, outputs: int) -> None:
    experts = ExpertMatrices(pairs(4, features, outputs, recipe))
    for chosen in (numbers(3), numbers(2, 0), numbers(1, 3, 0, 2), numbers(2, 2, 3, 1, 0, 3, 3, 2)):
        x = randn(1, features).half()
        run_product(kernels, experts, chosen, x, "gated", case=f"{chosen.tolist()}")


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swiglu_oai"])
@pytest.mark.parametrize("recipe", ["8, 5, 4", "GPTQ 128"])
def test_biases_and_activations(kernels: Kernels, recipe: str, activation: ExpertActivation) -> None:
    gates = ExpertMatrices(pairs(3, 1408, 352, recipe, bias=True))
    downs = ExpertMatrices(singles(3, 352, 1408, recipe, bias=True))
    chosen = numbers(2, 0)
    # 10 reaches beyond the limits.
    for size in (0.1, 1.0, 10.0):
        x = (randn(1, 1408) * size).half()
        run_product(kernels, gates, chosen, x, "gated", activation=activation, limit=3.0, case=f"x of {size}")
        run_product(kernels, downs, chosen, x[:, :352].contiguous(), "float", case=f"x of {size}")


@pytest.mark.parametrize("recipe", ["4", "8, 5, 4", "GPTQ 128"])
@pytest.mark.parametrize("inner", [352, 768, 1408])
@BOTH_EDGES
def test_gated_goes_to_the_order_of_the_chosen_experts_down(
    kernels: Kernels, recipe: str, inner: int, dependent: bool
) -> None:
    downs = ExpertMatrices(singles(6, inner, 512, recipe))
    gates = ExpertMatrices(pairs(6, 512, inner, recipe), into=downs)
    x, chosen = randn(1, 512).half(), numbers(5, 0, 3)
    mixed = torch.zeros(3, downs.stored, dtype=HALF, device=DEVICE)
    y = poisoned(3, 512, dtype=FLOAT)
    jobs = [
        kernels.expert_product(gates, chosen, x, mixed, "gated"),
        kernels.expert_product(downs, chosen, mixed, y, "float", order="stored"),
    ]
    # Other experts in the same buffers, to and fro.
    for experts in ((5, 0, 3), (1, 5, 0), (2, 2, 4), (5, 0, 3)):
        chosen.copy_(numbers(*experts))
        y.fill_(float("nan"))
        for job in jobs:
            job.launch(dependent=dependent)
        inner_wanted = reference_experts.expert_product(gates, chosen, x)
        placed = reference_experts.to_places(gates, chosen, inner_wanted)
        check_close(mixed, placed, HALF_ERROR, f"{experts} gated, stored order")
        wanted = reference_experts.expert_product(downs, chosen, inner_wanted.half())
        check_close(y, wanted, 3e-3, f"{experts} down")


def test_places_without_a_feature(kernels: Kernels) -> None:
    """Of every expert elsewhere: only the order of the features will do."""
    downs = ExpertMatrices(singles(4, 350, 64, "GPTQ 32", empty=20))
    assert not downs.same_places
    chosen = numbers(3, 1, 2)
    run_product(kernels, downs, chosen, randn(1, 350).half(), "float", case="350 features, one row")
    with pytest.raises(ValueError, match="empty places differ"):
        ExpertMatrices(pairs(4, 64, 336, "GPTQ 32"), into=ExpertMatrices(singles(4, 336, 64, "GPTQ 32", empty=20)))
    rows = singles(4, 336, 64, "GPTQ 32", empty=20)
    run_product(kernels, ExpertMatrices(rows), chosen, randn(3, 336).half(), "float", case="336 features, three rows")


def test_the_same_empty_places_stay_zero(kernels: Kernels) -> None:
    rows = singles(4, 336, 64, "GPTQ 32", empty=20)
    order = rows[0][0].gather
    kept = (layout.unsigned(order) != NO_FEATURE).nonzero().flatten()

    def shuffled(matrix: PackedMatrix) -> PackedMatrix:
        gather = order.clone()
        gather[kept] = order[kept[torch.randperm(len(kept), device=DEVICE)]]
        return replace(matrix, gather=gather)

    downs = ExpertMatrices([(shuffled(row[0]),) for row in rows])
    assert downs.same_places
    gates = ExpertMatrices(pairs(4, 64, 336, "GPTQ 32"), into=downs)
    x, chosen = randn(1, 64).half(), numbers(0, 3)
    mixed = torch.zeros(2, downs.stored, dtype=HALF, device=DEVICE)
    for experts in ((0, 3), (2, 1), (1, 0)):
        chosen.copy_(numbers(*experts))
        kernels.expert_product(gates, chosen, x, mixed, "gated").launch(dependent=True)
        wanted = reference_experts.to_places(gates, chosen, reference_experts.expert_product(gates, chosen, x))
        check_close(mixed, wanted, HALF_ERROR, experts)
        assert (mixed[:, layout.unsigned(order) == NO_FEATURE] == 0).all()


def test_what_other_experts_hold_does_not_matter(kernels: Kernels) -> None:
    rows = pairs(8, 1024, 256, "8, 5, 4")
    experts, chosen, x = ExpertMatrices(rows), numbers(6, 1), randn(1, 1024).half()
    before = run_product(kernels, experts, chosen, x, "gated", case="before")
    for number, matrices in enumerate(rows):
        for matrix in matrices:
            if number not in {6, 1}:
                matrix.words.fill_(-1)
                matrix.scales.fill_(-1)  # NaN
    after = run_product(kernels, experts, chosen, x, "gated", case="after")
    assert torch.equal(before, after)


# Of compute capability 7.5, and of 8.6 and 8.9; and so little that the ring has one slot.
@BOTH_EDGES
@pytest.mark.parametrize(
    ("room", "features"), [(65536, 2048), (65536, 7168), (101376, 4096), (101376, 14336), (49152, 2048)]
)
def test_cards_with_less_shared_memory(build_cache: Path, room: int, features: int, dependent: bool) -> None:
    kernels = ExpertKernels(open_library(ensure_library(build_cache), FUNCTIONS), room=room)
    experts, chosen = ExpertMatrices(singles(3, features, 160, "8, 5, 4")), numbers(2, 0)
    x, y = randn(1, features).half(), poisoned(2, 160, dtype=FLOAT)
    kernels.expert_product(experts, chosen, x, y, "float").launch(dependent=dependent)
    check_close(y, reference_experts.expert_product(experts, chosen, x), FLOAT_ERROR, room)


def test_what_does_not_fit_a_card_is_refused(build_cache: Path) -> None:
    kernels = ExpertKernels(open_library(ensure_library(build_cache), FUNCTIONS), room=24576)
    experts = ExpertMatrices(singles(2, 14336, 32, "4"))
    x, y = torch.zeros(1, 14336, dtype=HALF, device=DEVICE), poisoned(1, 32, dtype=FLOAT)
    with pytest.raises(ExtensionError):
        kernels.expert_product(experts, numbers(0), x, y, "float").launch(dependent=False)


@pytest.mark.parametrize(
    ("hidden", "inner", "count", "slots"),
    [(2048, 768, 16, 8), (4096, 14336, 3, 2), (2048, 1408, 8, 4), (2880, 2880, 5, 4)],
)
def test_layers_of_real_width(kernels: Kernels, hidden: int, inner: int, count: int, slots: int) -> None:
    """Wide, with random codes: to quantize that many weights would take minutes."""
    narrow = {size: packed(size, 32, "GPTQ 32" if size % 128 else "4") for size in {hidden, inner}}

    def wide(features: int, outputs: int) -> PackedMatrix:
        one = narrow[features]
        tiles = outputs // 16
        words = torch.randint(-(2**31), 2**31, (tiles, one.words.shape[1]), dtype=torch.int32, device=DEVICE)
        order = torch.randperm(features, device=DEVICE).to(torch.int32).to(torch.int16)
        return replace(one, outputs=outputs, words=words, scales=one.scales[:1].repeat(tiles, 1), gather=order)

    downs = ExpertMatrices([(wide(inner, hidden),) for _ in range(count)])
    gate_rows = [(wide(hidden, inner), wide(hidden, inner)) for _ in range(count)]
    gates = ExpertMatrices([(gate, replace(up, gather=gate.gather)) for gate, up in gate_rows], into=downs)
    chosen = torch.randperm(count, device=DEVICE)[:slots].to(torch.int32)
    x = randn(1, hidden).half()
    mixed, y = torch.zeros(slots, downs.stored, dtype=HALF, device=DEVICE), poisoned(slots, hidden, dtype=FLOAT)
    # Codes are half a step off their middle, which would add up to more than a half holds.
    x *= 0.05
    kernels.expert_product(gates, chosen, x, mixed, "gated").launch(dependent=True)
    kernels.expert_product(downs, chosen, mixed, y, "float", order="stored").launch(dependent=True)
    wanted = reference_experts.expert_product(gates, chosen, x)
    placed = reference_experts.to_places(gates, chosen, wanted)
    check_close(mixed, placed, HALF_ERROR, "gated")
    features = torch.stack(
        [mixed[slot, layout.unsigned(downs.experts[expert][0].scatter)] for slot, expert in enumerate(chosen.tolist())]
    )
    check_close(y, reference_experts.expert_product(downs, chosen, features), FLOAT_ERROR, "down")
