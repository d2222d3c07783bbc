"""Routing and products of chosen experts against their references. Outputs are poisoned first; messages name the case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from exlchat.engine.formats.exl2_tiles import pack_exl2
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.ext import layout, reference_experts
from exlchat.ext.build import ensure_library
from exlchat.ext.errors import ExtensionError
from exlchat.ext.expert_weights import DenseExperts, ExpertMatrices
from exlchat.ext.experts import ExpertActivation, ExpertKernels, ExpertKind, RouteRules
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.job import Job
from exlchat.ext.layout import NO_FEATURE, PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from exlchat.ext.tiles import pack_tiles

DEVICE = torch.device("cuda")
RECIPES = {
    **{str(bits): (Section(bits, 1.0, 128),) for bits in (2, 3, 4, 5, 6, 8)},
    "4 in groups of 32": (Section(4, 1.0, 32),),
    "8, 5, 4": (Section(8, 0.05, 32), Section(5, 0.10, 128), Section(4, 0.85, 128)),
    "6, 5, 3, 2": (Section(6, 0.1, 32), Section(5, 0.2, 64), Section(3, 0.3, 32), Section(2, 0.4, 64)),
}
GPTQ = {"GPTQ 128": 128, "GPTQ 64": 64, "GPTQ 32": 32}
BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
HALF, FLOAT = torch.float16, torch.float32
# Rounding of x and of sums; a half that is stored adds its own.
FLOAT_ERROR, HALF_ERROR = 1e-3, 2e-3


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype, device=DEVICE)


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def ticket() -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=DEVICE)


def packed(features: int, outputs: int, recipe: str, *, empty: int = 0, bias: bool = False) -> PackedMatrix:
    """A matrix with an input order of its own; `empty` stored rows of GPTQ take no feature."""
    biases = randn(outputs).half() if bias else None
    if recipe in GPTQ:
        return replace(gptq(features, outputs, GPTQ[recipe], empty), bias=biases)
    return pack_exl2(quantize_matrix(randn(features, outputs) * 0.05, RECIPES[recipe]), biases)


def gptq(features: int, outputs: int, group: int, empty: int) -> PackedMatrix:
    stored = -(-(features + empty) // 32) * 32
    pieces = -(-stored // 128)
    section = layout.Section(4, "plain", group, 0, 0, pieces, 0, 0)
    count = pieces * 128 // group
    codes = torch.randint(16, (pieces * 128, outputs), device=DEVICE)
    scale = (torch.rand(count, outputs, device=DEVICE) * 0.01 + 0.001).half()
    zero = torch.randint(16, (count, outputs), device=DEVICE, dtype=torch.uint8)
    gather = torch.full((stored,), NO_FEATURE, device=DEVICE)
    # Features stand in the first rows where nothing is to be empty between them.
    rows = torch.randperm(stored if empty else features, device=DEVICE)[:features]
    gather[rows] = torch.randperm(features, device=DEVICE)
    words, scales = pack_tiles(codes, 4), layout.plain_scales(scale, zero, section)
    return PackedMatrix(features, outputs, (section,), words, scales, gather.to(torch.int32).to(torch.int16))


def pairs(count: int, features: int, outputs: int, recipe: str, *, bias: bool = False, empty: int = 0) -> list:
    """Gate and up of each expert, which read one order; that of each expert is another one."""
    found = []
    for _ in range(count):
        gate = packed(features, outputs, recipe, bias=bias, empty=empty)
        up = packed(features, outputs, recipe, bias=bias, empty=empty)
        found.append((gate, replace(up, gather=gate.gather)))
    return found


def singles(count: int, features: int, outputs: int, recipe: str, *, bias: bool = False, empty: int = 0) -> list:
    return [(packed(features, outputs, recipe, bias=bias, empty=empty),) for _ in range(count)]


def error_of(found: Tensor, wanted: Tensor) -> float:
    """NaN, and so more than any bound, where something was not written."""
    return float((found.double() - wanted).norm() / wanted.norm())


def check_close(found: Tensor, wanted: Tensor, bound: float, case: object) -> None:
    """Row by row, so that the message says which slot is wrong."""
    errors = [error_of(a, b) for a, b in zip(found, wanted, strict=True)]
    assert all(error < bound for error in errors), f"{case}: relative errors of the slots {errors}, bound {bound}"


class Routed:
    """A route and where it writes."""

    def __init__(
        self, kernels: ExpertKernels, x: Tensor, router: Tensor, rules: RouteRules, bias: Tensor | None
    ) -> None:
        self.rules = rules
        self.logits = poisoned(len(router), dtype=FLOAT)
        self.chosen = torch.full((rules.slots,), -1, dtype=torch.int32, device=DEVICE)
        self.weights = poisoned(rules.slots, dtype=FLOAT)
        self.ticket = ticket()
        self.job: Job = kernels.route(
            x,
            router,
            rules,
            logits=self.logits,
            chosen=self.chosen,
            weights=self.weights,
            ticket=self.ticket,
            bias=bias,
        )

    def check(self, x: Tensor, router: Tensor, bias: Tensor | None, case: object) -> None:
        logits, _, _ = reference_experts.route(x, router, self.rules, bias=bias)
        assert error_of(self.logits, logits) < 1e-5, f"{case}: logits off by {error_of(self.logits, logits):.2e}"
        # Chosen among the logits as they were rounded.
        chosen, weights = reference_experts.choose(self.logits, self.rules)
        assert self.chosen.tolist() == chosen.tolist(), f"{case}: chosen"
        worst = float((self.weights - weights).abs().max() / weights.abs().max())
        assert worst < 1e-5, f"{case}: weights {self.weights.tolist()}, wanted {weights.tolist()}"
        assert self.ticket.item() == 0, f"{case}: the ticket is left at {self.ticket.item()}"


# ---- the choice


@BOTH_EDGES
@pytest.mark.parametrize("dtype", [HALF, FLOAT], ids=["half", "float"])
@pytest.mark.parametrize("renormalised", [True, False], ids=["renormalised", "of all"])
@pytest.mark.parametrize("experts", [1, 2, 7, 8, 16, 60, 64, 128, 129, 256, 511, 512])
def test_route(kernels: Kernels, experts: int, dtype: torch.dtype, renormalised: bool, dependent: bool) -> None:
    for width in (8, 264, 2048, 2880, 4096, 4104, 7168):
        x = randn(1, width).half()
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
    assert routed.logits.tolist() == logits
    assert routed.chosen.tolist() == wanted
    routed.check(x, router, None, "ties")


def test_a_bias_is_part_of_the_logits(kernels: Kernels) -> None:
    x, router = randn(1, 2880).half(), (randn(32, 2880) * 0.01).half()
    bias = torch.zeros(32, device=DEVICE)
    bias[[30, 5, 17, 2]] = torch.tensor([40.0, 30.0, 20.0, 10.0], device=DEVICE)
    routed = Routed(kernels, x, router, RouteRules(32, 4, True), bias)
    routed.job.launch(dependent=False)
    assert routed.chosen.tolist() == [30, 5, 17, 2]
    routed.check(x, router, bias, "bias")


def test_rows_behind_the_experts_are_products_alone(kernels: Kernels) -> None:
    x, router = randn(1, 2048).half(), (randn(61, 2048) * 0.02).half()
    router[60] = x[0]  # would be chosen by far
    for renormalised in (True, False):
        routed = Routed(kernels, x, router, RouteRules(60, 4, renormalised), None)
        routed.job.launch(dependent=False)
        routed.check(x, router, None, "60 experts and a gate")
        assert 60 not in routed.chosen.tolist()


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
        found = routed.chosen.tolist()
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


# ---- quantized experts


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
        ExpertMatrices(pairs(4, 64, 350 // 16 * 16, "4"), into=ExpertMatrices(singles(4, 336, 64, "GPTQ 32", empty=20)))
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


# ---- dense experts


def dense(
    count: int, inputs: int, outputs: int, *, matrices: int, bias: bool = False, fused: bool = False
) -> DenseExperts:
    size = inputs**-0.5
    if fused:
        both = (randn(count, matrices, outputs, inputs) * size).half()
        weights: Sequence[Tensor] = both.unbind(1)
    else:
        weights = [(randn(count, outputs, inputs) * size).half() for _ in range(matrices)]
    biases = tuple(randn(count, outputs).half() for _ in range(matrices)) if bias else ()
    return DenseExperts(tuple(weights), biases)


@BOTH_EDGES
@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [(8, 2), (352, 96), (768, 2048), (1408, 162), (2048, 768), (2880, 2880), (4096, 50), (14336, 64)],
)
def test_dense_experts(kernels: Kernels, inputs: int, outputs: int, dependent: bool) -> None:
    for chosen in (numbers(3), numbers(4, 0), numbers(2, 2, 4, 1, 0, 3, 3, 2)):
        for kind, matrices in (("gated", 2), ("float", 1)):
            for rows, fused, bias in ((1, False, False), (len(chosen), True, True)):
                experts = dense(5, inputs, outputs, matrices=matrices, bias=bias, fused=fused)
                x = randn(rows, inputs).half()
                y = poisoned(len(chosen), outputs, dtype=HALF if kind == "gated" else FLOAT)
                kernels.dense_expert_product(experts, chosen, x, y, kind).launch(dependent=dependent)
                wanted = reference_experts.dense_expert_product(experts, chosen, x)
                bound = HALF_ERROR if kind == "gated" else 1e-5
                check_close(
                    y, wanted, bound, f"{kind} of {chosen.tolist()}, {rows} rows of x, fused {fused}, bias {bias}"
                )


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh", "swiglu_oai"])
def test_activations_of_dense_experts(kernels: Kernels, activation: ExpertActivation) -> None:
    experts, chosen = dense(3, 512, 256, matrices=2, bias=True), numbers(1, 2)
    for size in (0.1, 1.0, 10.0):
        x, y = (randn(1, 512) * size).half(), poisoned(2, 256, dtype=HALF)
        kernels.dense_expert_product(experts, chosen, x, y, "gated", activation=activation).launch(dependent=True)
        wanted = reference_experts.dense_expert_product(experts, chosen, x, activation=activation)
        check_close(y, wanted, HALF_ERROR, f"x of {size}")


# ---- all of it in a graph


class Mixture:
    """route, gate and up, down as a step has them, and what they should give."""

    def __init__(self, kernels: Kernels, *, quantized: bool, count: int, slots: int, hidden: int, inner: int) -> None:
        self.x = randn(1, hidden).half()
        self.router = (randn(count, hidden) * 2 * hidden**-0.5).half()
        self.routed = Routed(kernels, self.x, self.router, RouteRules(count, slots, True), None)
        self.y, chosen = poisoned(slots, hidden, dtype=FLOAT), self.routed.chosen
        self.quantized = quantized
        if quantized:
            self.downs = ExpertMatrices(singles(count, inner, hidden, "8, 5, 4"))
            self.gates = ExpertMatrices(pairs(count, hidden, inner, "4"), into=self.downs)
            self.mixed = torch.zeros(slots, self.downs.stored, dtype=HALF, device=DEVICE)
            jobs = [
                kernels.expert_product(self.gates, chosen, self.x, self.mixed, "gated"),
                kernels.expert_product(self.downs, chosen, self.mixed, self.y, "float", order="stored"),
            ]
        else:
            self.dense_downs = dense(count, inner, hidden, matrices=1)
            self.dense_gates = dense(count, hidden, inner, matrices=2)
            self.mixed = poisoned(slots, inner, dtype=HALF)
            jobs = [
                kernels.dense_expert_product(self.dense_gates, chosen, self.x, self.mixed, "gated"),
                kernels.dense_expert_product(self.dense_downs, chosen, self.mixed, self.y, "float"),
            ]
        self.jobs = [self.routed.job, *jobs]

    def launch(self, *, dependent: bool) -> None:
        for job in self.jobs:
            job.launch(dependent=dependent)

    def check(self, case: object) -> None:
        self.routed.check(self.x, self.router, None, case)
        chosen = self.routed.chosen
        if self.quantized:
            inner = reference_experts.expert_product(self.gates, chosen, self.x)
            wanted = reference_experts.expert_product(self.downs, chosen, inner.half())
        else:
            inner = reference_experts.dense_expert_product(self.dense_gates, chosen, self.x)
            wanted = reference_experts.dense_expert_product(self.dense_downs, chosen, inner.half())
        check_close(self.y, wanted, 3e-3, f"{case}: experts {chosen.tolist()}")


@BOTH_EDGES
@pytest.mark.parametrize("quantized", [True, False], ids=["quantized", "dense"])
@pytest.mark.parametrize(
    ("count", "slots", "hidden", "inner"), [(8, 2, 1024, 768), (24, 8, 512, 352), (16, 4, 704, 1408)]
)
def test_a_graph_follows_the_choice(
    kernels: Kernels, quantized: bool, count: int, slots: int, hidden: int, inner: int, dependent: bool
) -> None:
    mixture = Mixture(kernels, quantized=quantized, count=count, slots=slots, hidden=hidden, inner=inner)
    mixture.launch(dependent=dependent)
    mixture.check("outside a graph")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mixture.launch(dependent=dependent)
    seen = set()
    for replay in range(12):
        mixture.x.copy_(randn(1, hidden))
        mixture.y.fill_(float("nan"))
        graph.replay()
        mixture.check(f"replay {replay}")
        seen.add(tuple(mixture.routed.chosen.tolist()))
    assert len(seen) > 1, "every replay chose the same experts"


def test_replays_one_behind_the_other_give_the_same_bits(kernels: Kernels) -> None:
    """Four layers a replay with dependent edges, nothing between replays: what is not waited for shows."""
    layers = [Mixture(kernels, quantized=True, count=8, slots=2, hidden=512, inner=352) for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in layers:
            layer.launch(dependent=True)
    first: list[Tensor] = []
    for run in range(50):
        for layer in layers:
            layer.y.fill_(float("nan"))
        for _ in range(5):
            graph.replay()
        found = [layer.y.clone() for layer in layers]
        first = first or found
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True)), f"run {run}"
    for number, layer in enumerate(layers):
        layer.check(f"layer {number}")
