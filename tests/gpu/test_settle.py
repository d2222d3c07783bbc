"""The end of a layer's half, and norms of heads, against their definitions.

Outputs are poisoned first, so that what is not written shows; places that nobody may write hold a number of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from exlchat.ext import layout
from exlchat.ext.errors import ExtensionError
from exlchat.ext.heads import HeadNormKind, HeadNorms
from exlchat.ext.job import Job
from exlchat.ext.ops import Kernels
from exlchat.ext.settle import Joining, KernelNorm, NormedCopy, NormKind
from tests.ext import reference, reference_heads, reference_settle
from tests.gpu.test_products import packed

HALF, FLOAT = torch.float16, torch.float32
BOTH_EDGES = pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
# Every kernel (2048 numbers more a kernel, from 8192 on 4096), at its ends and not only there.
WIDTHS = (16, 48, 768, 2032, 2048, 2064, 2880, 4096, 4112, 5120, 6144, 6160, 8192, 8208, 12288, 12304, 16368, 16384)
UNTOUCHED = -7.0


def numbers(*shape: int, dtype: torch.dtype = FLOAT, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device="cuda") * scale).to(dtype)


def weights_of(width: int) -> Tensor:
    return (torch.randn(width, device="cuda") * 0.3 + 1).half()


def a_norm(width: int, kind: NormKind = "rms", *, bias: bool = False) -> KernelNorm:
    return KernelNorm(weights_of(width), 1e-5, kind, numbers(width, dtype=HALF) if bias else None)


def same(what: str, found: Tensor, wanted: Tensor, *, relative: float, absolute: float) -> None:
    """Number by number; says the first of the worst."""
    found, wanted = found.double().flatten(), wanted.double().flatten()
    beyond = (found - wanted).abs() - relative * wanted.abs() - absolute
    beyond = torch.where(found.isnan() != wanted.isnan(), torch.inf, beyond)
    at = int(beyond.argmax())
    assert beyond[at] <= 0, f"{what}: number {at} of {len(found)} is {float(found[at])}, not {float(wanted[at])}"


def norm_of(kind: str, width: int) -> KernelNorm | None:
    return {
        "rms": lambda: a_norm(width),
        "layer": lambda: a_norm(width, "layer"),
        "layer with bias": lambda: a_norm(width, "layer", bias=True),
        "none": lambda: None,
    }[kind]()


def joining_of(kind: str, width: int) -> Joining | None:
    """What the architectures need, by name."""
    gate = numbers(1)
    return {
        "nothing": lambda: None,
        "half": lambda: Joining(numbers(1, width, dtype=HALF)),
        "float": lambda: Joining(numbers(1, width)),
        "norm behind": lambda: Joining(numbers(1, width, scale=30.0), norm=a_norm(width)),
        "multiplier": lambda: Joining(numbers(1, width), multiplier=0.22),
        "parallel": lambda: Joining(numbers(1, width), added=numbers(1, width)),
        "parallel of halves": lambda: Joining(numbers(1, width, dtype=HALF), added=numbers(1, width, dtype=HALF)),
        "only added": lambda: Joining(added=numbers(1, width)),
        "two experts": lambda: Joining(numbers(2, width), torch.rand(1, 2, device="cuda")),
        "eight experts of halves": lambda: Joining(numbers(8, width, dtype=HALF), torch.rand(1, 8, device="cuda")),
        "slots without weights": lambda: Joining(numbers(3, width)),
        "seventeen experts": lambda: Joining(numbers(17, width), torch.rand(1, 17, device="cuda")),
        "shared expert": lambda: Joining(numbers(4, width), torch.rand(1, 4, device="cuda"), numbers(1, width), gate),
        "everything": lambda: Joining(
            numbers(5, width), torch.rand(1, 5, device="cuda"), numbers(1, width, dtype=HALF), gate, a_norm(width), 1.7
        ),
    }[kind]()


JOININGS = (
    "nothing",
    "half",
    "float",
    "norm behind",
    "multiplier",
    "parallel",
    "parallel of halves",
    "only added",
    "two experts",
    "eight experts of halves",
    "slots without weights",
    "seventeen experts",
    "shared expert",
    "everything",
)


def some_copies(width: int, orders: tuple[int | None, ...], rows: int = 1) -> list[NormedCopy]:
    """A copy for each order: in that of the features (`None`), or scattered over so many places more than features."""
    copies = []
    for more in orders:
        places = width if more is None else width + more
        order = None if more is None else torch.randperm(places, device="cuda")[:width].to(torch.int32).to(torch.int16)
        copies.append(NormedCopy(torch.full((rows, places), UNTOUCHED, dtype=HALF, device="cuda"), order))
    return copies


def check(
    kernels: Kernels,
    what: str,
    hidden: Tensor,
    norm: KernelNorm | None,
    joining: Joining | None,
    *,
    orders: tuple[int | None, ...] = (0,),
    dependent: bool,
    absolute: float = 1e-4,
) -> None:
    ours = some_copies(hidden.shape[1], orders, len(hidden))
    theirs = [replace(copy, x=copy.x.clone()) for copy in ours]
    found, wanted = hidden.clone(), hidden.clone()
    kernels.settle(found, ours, norm=norm, joining=joining).launch(dependent=dependent)
    reference_settle.settle(wanted, theirs, norm=norm, joining=joining)
    if joining is None:
        assert torch.equal(found, hidden), f"{what}: the residual has changed"
    # Sums of up to 18 numbers in float32, in another order, some of which cancel out.
    same(f"{what}, hidden", found, wanted, relative=2e-6, absolute=2e-6 * float(wanted.abs().max()))
    for index, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        same(f"{what}, copy {index}", our.x, their.x, relative=1.1e-3, absolute=absolute)


@BOTH_EDGES
@pytest.mark.parametrize("kind", JOININGS)
@pytest.mark.parametrize("norm", ["rms", "layer", "layer with bias", "none"])
def test_every_kind_of_layer(kernels: Kernels, norm: str, kind: str, dependent: bool) -> None:
    for width in (48, 2048, 2880, 5120, 8192, 12288, 16384):
        hidden = numbers(1, width, scale=3.0) + 0.5
        given = norm_of(norm, width), joining_of(kind, width)
        check(kernels, f"{norm}, {kind}, {width} wide", hidden, *given, dependent=dependent)


@BOTH_EDGES
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("orders", [(), (None,), (0,), (32,), (None, None, None), (0, 64, None), (16, 0, 32)], ids=str)
def test_every_width_and_order(kernels: Kernels, width: int, orders: tuple[int | None, ...], dependent: bool) -> None:
    for norm, kind in (("rms", "norm behind"), ("layer with bias", "everything")):
        given = norm_of(norm, width), joining_of(kind, width)
        check(kernels, f"{norm}, {kind}", numbers(1, width), *given, orders=orders, dependent=dependent)


def test_places_that_nothing_scatters_to_stay(kernels: Kernels) -> None:
    for width in (64, 2880, 4096, 16384):
        (copy,) = some_copies(width, (32,))
        kernels.settle(numbers(1, width) + 100, [copy], norm=None).launch(dependent=False)
        assert int((copy.x == UNTOUCHED).sum()) == 32, width
        assert copy.scatter is not None
        copy.x[:, layout.unsigned(copy.scatter)] = UNTOUCHED
        assert bool((copy.x == UNTOUCHED).all()), width


@pytest.mark.parametrize("width", [2048, 5120, 16384])
def test_a_layer_norm_of_a_row_far_from_zero(kernels: Kernels, width: int) -> None:
    hidden = numbers(1, width) + 500
    norm = a_norm(width, "layer", bias=True)
    # A float32 of 500 is 3e-5 wide, the sum of a row of them less exact.
    check(kernels, "mean of 500", hidden, norm, None, dependent=False, absolute=1e-3)


@pytest.mark.parametrize("width", [2048, 16384])
def test_small_large_and_zero_rows(kernels: Kernels, width: int) -> None:
    for factor in (0.0, 1e-6, 1e4):
        for norm in (a_norm(width), a_norm(width, "layer")):
            joining = Joining(numbers(1, width) * factor, norm=a_norm(width), multiplier=factor)
            hidden = numbers(1, width) * factor
            check(kernels, f"{norm.kind}, times {factor}", hidden, norm, joining, dependent=False)


@pytest.mark.parametrize("gate", [-200.0, -20.0, 0.0, 20.0, 200.0])
def test_gates_of_every_size(kernels: Kernels, gate: float) -> None:
    joining = Joining(added=numbers(1, 2048), gate=torch.tensor([gate], device="cuda"))
    check(kernels, f"gate {gate}", numbers(1, 2048), a_norm(2048), joining, dependent=False)


def test_slots_that_are_not_there_are_not_read(kernels: Kernels) -> None:
    for slots in range(1, 18):
        whole = torch.full((17, 2048), float("nan"), device="cuda")
        weights = torch.full((1, 17), float("nan"), device="cuda")
        whole[:slots], weights[:, :slots] = numbers(slots, 2048), numbers(slots)
        joining = Joining(whole[:slots], weights[:, :slots].contiguous())
        check(kernels, f"{slots} slots", numbers(1, 2048), a_norm(2048), joining, dependent=True)


@pytest.mark.parametrize("width", [2048, 4096, 8192, 16384])
def test_a_hundred_runs_give_the_same_bits(kernels: Kernels, width: int) -> None:
    joining, norm = joining_of("everything", width), a_norm(width, "layer", bias=True)
    before, (copy,) = numbers(1, width), some_copies(width, (0,))
    results = []
    for _ in range(100):
        hidden = before.clone()
        copy.x.fill_(float("nan"))
        kernels.settle(hidden, [copy], norm=norm, joining=joining).launch(dependent=True)
        results.append((hidden, copy.x.clone()))
    for run, (hidden, x) in enumerate(results):
        assert torch.equal(hidden, results[0][0]), f"hidden of run {run}"
        assert torch.equal(x, results[0][1]), f"copy of run {run}"


def a_block(kernels: Kernels, width: int, inner: int) -> tuple[list[Job], Tensor, Callable[[Tensor], Tensor], Tensor]:
    """The MLP half of a Gemma layer, twice: jobs, token, what the definitions make of a table's row, and hidden."""
    gate, down = packed(width, inner, "8, 5, 4"), packed(inner, width, "6 in groups of 64")
    up = replace(packed(width, inner, "4"), gather=gate.gather)
    table, token = numbers(9, width, dtype=HALF), torch.zeros(1, dtype=torch.int64, device="cuda")
    before, behind = a_norm(width), a_norm(width)
    hidden, y = numbers(1, width), numbers(1, width)
    copy = NormedCopy(torch.zeros(1, gate.stored, dtype=HALF, device="cuda"), gate.scatter)
    inside = torch.zeros(1, down.stored, dtype=HALF, device="cuda")
    joining = Joining(y, norm=behind, multiplier=0.5)
    jobs = [kernels.embed(table, token, hidden, 8.0), kernels.settle(hidden, [copy], norm=before)]
    for _ in range(2):
        jobs += [
            kernels.product([gate, up], copy.x, inside, "gated", scatter=down.scatter, activation="gelu_tanh"),
            kernels.product([down], inside, y, "float"),
            kernels.settle(hidden, [copy], norm=before, joining=joining),
        ]

    def wanted(row: Tensor) -> Tensor:
        theirs = row.float() * 8.0
        other = NormedCopy(copy.x.clone(), copy.scatter)
        reference_settle.settle(theirs, [other], norm=before)
        for _ in range(2):
            found = torch.zeros_like(inside)
            found[:, layout.unsigned(down.scatter)] = reference.gated(gate, up, other.x, "gelu_tanh").half()
            mlp = replace(joining, y=reference.product([down], found).float())
            reference_settle.settle(theirs, [other], norm=before, joining=mlp)
        return theirs

    return jobs, token, lambda token: wanted(table[token]), hidden


@BOTH_EDGES
@pytest.mark.parametrize("width", [1024, 2304, 5120])
def test_a_chain_of_products_in_a_graph(kernels: Kernels, width: int, dependent: bool) -> None:
    jobs, token, wanted, hidden = a_block(kernels, width, 1536)
    for job in jobs:
        job.launch(dependent=dependent)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for job in jobs:
            job.launch(dependent=dependent)
    for number in (3, 8, 0, 3):
        token.fill_(number)
        expected = wanted(token)
        results = []
        for _ in range(20):
            hidden.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            results.append(hidden.clone())
        error = float((results[0].double() - expected.double()).norm() / expected.double().norm())
        assert error < 3e-3, f"token {number}: off by {error}"
        for run, result in enumerate(results):
            assert torch.equal(result, results[0]), f"token {number}: run {run} differs"


@BOTH_EDGES
@pytest.mark.parametrize("kind", ["layer", "rms_together"])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(8, 8), (40, 40), (64, 8), (3, 1)], ids=str)
def test_norms_of_heads(
    kernels: Kernels, kind: HeadNormKind, head_dim: int, heads: tuple[int, int], dependent: bool
) -> None:
    count, kv_heads = heads
    before = numbers(3, count + 2 * kv_heads, head_dim, dtype=HALF, scale=2.0) + 0.5
    query = (numbers(count, head_dim, scale=0.3) + 1).half()
    key = (numbers(kv_heads, head_dim, scale=0.3) + 1).half()
    for norms in (
        HeadNorms(kind, query, key, 1e-5),
        HeadNorms(kind, query, None, 1e-6),
        HeadNorms(kind, None, key, 1e-2),
    ):
        found, wanted = before.clone(), before.clone()
        kernels.norm_heads(found, norms, kv_heads=kv_heads).launch(dependent=dependent)
        reference_heads.norm_heads(wanted, norms, kv_heads=kv_heads)
        present = [name for name, weight in (("queries", norms.query), ("keys", norms.key)) if weight is not None]
        same(" and ".join(present), found, wanted, relative=1.1e-3, absolute=1e-4)
        assert torch.equal(found[:, count + kv_heads :], before[:, count + kv_heads :]), "values have changed"
        if norms.query is None:
            assert torch.equal(found[:, :count], before[:, :count]), "queries have changed"
        if norms.key is None:
            assert torch.equal(found[:, count : count + kv_heads], before[:, count : count + kv_heads]), (
                "keys have changed"
            )


def test_rows_that_do_not_begin_where_the_kernels_can_read_them(kernels: Kernels) -> None:
    y = torch.zeros(65, device="cuda")[1:].view(1, 64)
    with pytest.raises(ExtensionError):
        kernels.settle(numbers(1, 64), [], norm=None, joining=Joining(y)).launch(dependent=False)


def test_tensors_that_are_not_on_the_gpu(kernels: Kernels) -> None:
    with pytest.raises(ValueError, match="on cpu and cuda"):
        kernels.settle(numbers(1, 64), [], norm=None, joining=Joining(numbers(1, 64).cpu()))
    with pytest.raises(ValueError, match="on cpu and cuda"):
        kernels.norm_heads(
            numbers(1, 4, 64, dtype=HALF), HeadNorms("layer", torch.ones(2, 64).half(), None, 1e-5), kv_heads=1
        )
