"""Products of one to eight rows without a GPU: kernels run on the CPU, with and without blocks that share x."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from exlchat.ext import exchange, products
from exlchat.ext.exchange import Exchange, ExchangeKernels, Peers, make_peers, silent_card
from exlchat.ext.job import Job
from exlchat.ext.layout import PackedMatrix, to_stored
from exlchat.ext.plan import make_plan
from exlchat.ext.products import MAX_ROWS, Deferred, NormCopy, Normed, Products, Residual
from tests.ext import reference
from tests.ext.chain_cases import Functions
from tests.ext.emulation import GEMV, another_card, emulated_library
from tests.ext.matrix_cases import GPTQ, RECIPES, packed, relative_error
from tests.ext.row_cases import same

pytestmark = pytest.mark.timeout(400)
LARGEST = 232448
Make = Callable[..., Products]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("emulated")


@pytest.fixture(scope="module")
def functions(folder: Path) -> dict[str, Any]:
    return emulated_library(folder, (*GEMV, "head", "step", "exchange"), ("-DEMULATED_DELAYS=3",))


@pytest.fixture(params=[9, 8], ids=["two blocks share x", "each by itself"])
def make(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Make:
    """Products on a card of so many multiprocessors."""
    monkeypatch.setattr(products, "check_on_gpu", lambda **_tensors: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=None))
    running: dict[str, Any] = {"exl_dequantize": None}
    for name in ("exl_gemv", "exl_embed", "exl_head"):
        running[name] = lambda *given, call=functions[name]: _checked(call(*given))

    def one(processors: int = 4, room: int = 0) -> Products:
        functions["emulated_card"](LARGEST, processors, request.param)
        card = SimpleNamespace(multi_processor_count=processors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
        return Products(Functions(running).library, room=room)

    return one


def _checked(code: int) -> int:
    assert code == 0
    return code


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full(shape, float("nan"), dtype=dtype)


def check(kernels: Products, matrices: list[PackedMatrix], rows: int, *, dependent: bool = True) -> None:
    """As the reference; and of each row the bits that it has alone."""
    x = to_stored(torch.randn(rows, matrices[0].features).half(), matrices[0])

    def multiplied(part: Tensor) -> Tensor:
        y = poisoned(len(part), sum(matrix.outputs for matrix in matrices))
        kernels.product(matrices, part, y, "float").launch(dependent=dependent)
        return y

    found = multiplied(x)
    assert relative_error(found, reference.product(matrices, x)) < 1e-3
    assert same(found, torch.cat([multiplied(row) for row in x.split(1)]))


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
def test_every_width_and_mix(make: Make, recipe: str) -> None:
    kernels, matrix = make(), packed(416, 96, recipe, "cpu")
    for rows in (2, 4, 8):
        check(kernels, [matrix], rows)


@pytest.mark.parametrize("rows", range(1, MAX_ROWS + 1))
def test_any_number_of_rows(make: Make, rows: int) -> None:
    check(make(), [packed(1056, 128, "8, 5, 4", "cpu")], rows, dependent=rows % 2 == 0)


# Few rows of weights are shared by fewer warps; some warps, and some blocks, have nothing to do.
@pytest.mark.parametrize("processors", [2, 3, 8])
@pytest.mark.parametrize(("features", "outputs"), [(32, 32), (96, 64), (416, 32), (640, 352)])
def test_where_some_have_nothing_to_do(make: Make, features: int, outputs: int, processors: int) -> None:
    kernels = make(processors)
    for rows in (2, 3, 8):
        check(kernels, [packed(features, outputs, "4 in groups of 32", "cpu")], rows)


# The last with room for three rows at once, where blocks do not share x, and for all where they do.
@pytest.mark.parametrize("room", [101376, 65536])
def test_with_less_shared_memory(make: Make, room: int) -> None:
    matrix = packed(4096, 32, "4", "cpu")
    check(make(2, room), [matrix], 8)


def test_a_warp_with_more_segments_than_lanes(make: Make) -> None:
    kernels, matrix = make(1), packed(3072, 512, "6, 5, 3, 2", "cpu")
    assert make_plan([matrix], blocks=1, paired=False).segments > 33
    check(kernels, [matrix], 4)


@pytest.mark.parametrize("rows", [3, 8])
def test_behind_a_norm_more_than_is_brought_at_once(make: Make, rows: int) -> None:
    kernels, matrix = make(2), packed(4640, 32, "4", "cpu")
    hidden = torch.randn(rows, 4640)

    def multiplied(part: Tensor) -> Tensor:
        x = Normed(to_stored(part, matrix), (part.view(len(part), -1, 16) ** 2).sum(2), 1e-5)
        y = poisoned(len(part), 32)
        kernels.product([matrix], x, y, "float").launch(dependent=False)
        return y

    found = multiplied(hidden)
    normed = hidden * (hidden.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    assert relative_error(found, reference.product([matrix], to_stored(normed, matrix).half())) < 1e-3
    assert same(found, torch.cat([multiplied(row) for row in hidden.split(1)]))


def test_matrices_side_by_side(make: Make) -> None:
    first = packed(512, 288, "8, 5, 4", "cpu")
    others = [replace(packed(512, 64, recipe, "cpu"), gather=first.gather) for recipe in ("4", "6 in groups of 64")]
    others[0] = replace(others[0], bias=torch.randn(64).half())
    check(make(6), [first, *others], 5)


@pytest.mark.parametrize("rows", [1, 2, 4, 7])
def test_norm_gate_and_residual(make: Make, rows: int) -> None:
    """The MLP of a layer: what is read behind a norm, what goes to scattered places, what is added and left behind."""
    kernels = make()
    gate = packed(512, 352, "8, 5, 4", "cpu")
    up, down = replace(packed(512, 352, "4", "cpu"), gather=gate.gather), packed(352, 512, "6 in groups of 64", "cpu")
    up = replace(up, bias=torch.randn(352).half())
    hidden, weight = torch.randn(rows, 512), (torch.randn(512) * 0.1 + 1).half()
    of_next = packed(512, 32, "4", "cpu")

    def mlp(part: Tensor) -> list[Tensor]:
        x = Normed(to_stored(part * weight, gate), (part.view(len(part), -1, 16) ** 2).sum(2), 1e-5)
        inner = torch.zeros(len(part), down.stored).half()
        kernels.product([gate, up], x, inner, "gated", scatter=down.scatter).launch(dependent=True)
        copy = NormCopy(torch.zeros(len(part), of_next.stored), of_next.scatter, weight)
        residual = Residual(part.clone(), poisoned(len(part), 32), (copy,))
        kernels.add_product(down, inner, residual).launch(dependent=False)
        return [inner, residual.hidden, residual.squares, copy.values]

    found = mlp(hidden)
    x = Normed(to_stored(hidden * weight, gate), (hidden.view(rows, -1, 16) ** 2).sum(2), 1e-5)
    wanted = torch.zeros(rows, down.stored, dtype=torch.float64)
    wanted[:, down.scatter.long()] = reference.gated(gate, up, x).double()
    assert relative_error(found[0], wanted) < 2e-3
    assert relative_error(found[1], hidden + reference.product([down], found[0])) < 1e-3
    assert torch.allclose(found[2], (found[1].view(rows, -1, 16) ** 2).sum(2), rtol=1e-5)
    assert torch.allclose(found[3], to_stored(found[1] * weight, of_next), rtol=1e-5, atol=1e-6)
    for row in range(rows):
        for whole, one in zip(found, mlp(hidden[row : row + 1]), strict=True):
            assert same(whole[row : row + 1], one)


@pytest.mark.parametrize("before", [True, False], ids=["normed before, too", "only behind"])
@pytest.mark.parametrize(("rows", "room"), [(1, 0), (2, 0), (4, 0), (7, 0), (7, 65536), (2, 49152)])
def test_norms_behind_products(make: Make, rows: int, room: int, before: bool) -> None:
    """An embedding, two products that add to it, each with one before it that reads it, and a head of either kind."""
    kernels, width, eps, multiplier = make(6, room), 512, 1e-5, 0.5
    gates = [packed(width, 352, recipe, "cpu") for recipe in ("8, 5, 4", "4")]
    downs = [packed(352, width, recipe, "cpu") for recipe in ("6 in groups of 64", "4")]
    last, head = packed(width, 96, "4", "cpu"), (torch.randn(100, width) * 0.1).half()
    weights = [(torch.randn(width) * 0.1 + 1).half() if before else None for _ in range(3)]
    behind_weights = [(torch.randn(width) * 0.1 + 1).half() for _ in range(2)]
    table, tokens = torch.randn(20, width).half(), torch.randint(20, (rows,))
    in_order = torch.arange(width).to(torch.int16)

    def step(token: Tensor) -> list[Tensor]:
        rows = len(token)
        deferred = Deferred(poisoned(rows, width), poisoned(rows))
        squares, stream = poisoned(rows, width // 16, 4), poisoned(rows, width)
        places = [(matrix.stored, matrix.scatter) for matrix in (*gates, last)]
        copies = [
            NormCopy(torch.zeros(rows, stored, 2), scatter, weight)
            for (stored, scatter), weight in zip([*places, (width, in_order)], [*weights, weights[2]], strict=True)
        ]
        residual = Residual(stream, squares, (copies[0],), multiplier=multiplier, deferred=deferred)
        kernels.embed(table, token, residual, 3.0).launch(dependent=True)
        found = []
        for index, (gate, down, behind) in enumerate(zip(gates, downs, behind_weights, strict=True)):
            x = Normed(copies[index].values, squares, eps, deferred, before=before)
            inner = torch.zeros(rows, down.stored).half()
            kernels.product([gate], x, inner, "activated", scatter=down.scatter).launch(dependent=True)
            following = (copies[1],) if index == 0 else (copies[2], copies[3])
            adding = replace(residual, copies=following, post_norm=behind)
            kernels.add_product(down, inner, adding).launch(dependent=index == 0)
            found.append(inner)
        logits = [poisoned(rows, 96), poisoned(rows, 100)]
        x = Normed(copies[2].values, squares, eps, deferred, before=before)
        kernels.product([last], x, logits[0], "float").launch(dependent=True)
        kernels.head_product(head, replace(x, values=copies[3].values), logits[1]).launch(dependent=True)
        return [*found, *logits, stream + deferred.delta * deferred.scale.unsqueeze(1)]

    def rms_norm(x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else torch.nn.functional.rms_norm(x, (width,), eps=eps) * weight.double()

    found, stream = step(tokens), table[tokens].double() * 3.0
    for gate, down, weight, behind, inner in zip(gates, downs, weights, behind_weights, found, strict=False):
        wanted = torch.zeros(rows, down.stored, dtype=torch.float64)
        x = to_stored(rms_norm(stream, weight).half(), gate)
        wanted[:, down.scatter.long()] = reference.activated(reference.product([gate], x), "silu")
        assert relative_error(inner, wanted) < 2e-3
        stream += multiplier * rms_norm(reference.product([down], inner), behind)
    normed = rms_norm(stream, weights[2]).half()
    assert relative_error(found[2], reference.product([last], to_stored(normed, last))) < 2e-3
    assert relative_error(found[3], reference.head_product(head, normed)) < 2e-3
    assert relative_error(found[4], stream) < 1e-3
    for row in range(rows):
        for whole, one in zip(found, step(tokens[row : row + 1]), strict=True):
            assert same(whole[row : row + 1], one)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_head_of_halves(make: Make, rows: int) -> None:
    kernels, weight = make(2), (torch.randn(100, 544) * 0.1).half()
    hidden = torch.randn(rows, 544)

    def inputs(part: Tensor) -> list[Tensor | Normed]:
        return [part.half(), Normed(part, (part.view(len(part), -1, 16) ** 2).sum(2), 1e-5)]

    def multiplied(x: Tensor | Normed, rows: int) -> Tensor:
        y = poisoned(rows, 100)
        kernels.head_product(weight, x, y).launch(dependent=True)
        return y

    for number, x in enumerate(inputs(hidden)):
        found = multiplied(x, rows)
        assert relative_error(found, reference.head_product(weight, x)) < 1e-3
        alone = [multiplied(inputs(hidden[row : row + 1])[number], 1) for row in range(rows)]
        assert same(found, torch.cat(alone))


class Card(Products, ExchangeKernels):
    """One of two that run beside each other."""

    def __init__(self, functions: dict[str, Any], peers: Peers) -> None:
        unused = dict.fromkeys(("exl_dequantize", "exl_embed", "exl_head"))
        own = {name: lambda *given, call=call: _checked(call(*given)) for name, call in functions.items()}
        library = Functions({**unused, **own}).library
        Products.__init__(self, library)
        ExchangeKernels.__init__(self, library)
        self.peers = peers

    def exchange(self, number: int) -> Exchange:
        return Exchange(self.peers, number)


@pytest.fixture(scope="module")
def three_cards(folder: Path, functions: dict[str, Any]) -> list[dict[str, Any]]:
    return [functions, *(another_card(folder, number) for number in (1, 2))]


@pytest.fixture
def cards(three: list[Card]) -> list[Card]:
    """Two of them."""
    peers = make_peers([torch.device("cpu")] * 2, 8 * 512, staged=False)
    for card, own in zip(three, peers, strict=False):
        card.peers = own
    return three[:2]


@pytest.fixture
def three(
    three_cards: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> list[Card]:
    for module in (products, exchange):
        monkeypatch.setattr(module, "check_on_gpu", lambda **_tensors: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=None))
    card = SimpleNamespace(multi_processor_count=4)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    for one in three_cards:
        one["emulated_card"](LARGEST, 4, getattr(request, "param", 9))
    peers = make_peers([torch.device("cpu")] * 3, 8 * 512, staged=False)
    return [Card(one, its) for one, its in zip(three_cards, peers, strict=True)]


def beside(*lists: list[Job]) -> None:
    """Runs the operations of each card, one after the other."""
    threads = [Thread(target=lambda jobs=jobs: [job.launch(dependent=True) for job in jobs]) for jobs in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("three", [9, 8], ids=["two blocks share x", "each by itself"], indirect=True)
@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.usefixtures("three")
def test_what_is_added_is_a_sum_over_cards(cards: list[Card], rows: int) -> None:
    matrices = [packed(features, 512, recipe, "cpu") for features, recipe in ((416, "8, 5, 4"), (352, "4"))]
    of_next, weight = packed(512, 32, "4", "cpu"), (torch.randn(512) * 0.1 + 1).half()
    hidden = torch.randn(rows, 512)
    streams = [hidden.clone(), hidden.clone()]
    wanted = hidden.double()
    # Two exchanges a list, so that both places are used, and the second list goes on where the first one ended.
    for _ in range(2):
        lists: list[list[Job]] = []
        inputs = [to_stored(torch.randn(rows, one.features).half(), one) for one in (*matrices, *matrices)]
        for card, matrix, stream, *both in zip(cards, matrices, streams, inputs[:2], inputs[2:], strict=True):
            jobs = []
            for number, x in enumerate(both):
                copy = NormCopy(torch.zeros(rows, of_next.stored), of_next.scatter, weight)
                residual = Residual(stream, poisoned(rows, 32), (copy,), card.exchange(number))
                jobs.append(card.add_product(matrix, x, residual))
                assert jobs[-1].meets
            lists.append([*jobs, card.count_exchanges(card.peers, 2)])
        beside(*lists)
        wanted += sum(reference.product([one], x) for one, x in zip([*matrices, *matrices], inputs, strict=True))
        assert same(*streams)
        assert relative_error(streams[0], wanted) < 1e-3
    assert [int(card.peers.state[0]) for card in cards] == [4, 4]


@pytest.mark.parametrize(("rows", "dtype"), [(1, torch.float32), (8, torch.float32), (11, torch.float16)])
def test_sums_of_other_layers(cards: list[Card], rows: int, dtype: torch.dtype) -> None:
    parts = [torch.randn(rows, 320).to(dtype) for _ in cards]
    values = [part.clone() for part in parts]
    beside(*([card.exchange_sums(own, card.exchange(0))] for card, own in zip(cards, values, strict=True)))
    assert same(*values)
    assert same(values[0], (parts[0].float() + parts[1].float()).to(dtype))


@pytest.mark.parametrize("to", [[0], [1], [0, 1]])
def test_parts_come_to_who_is_to_have_them(cards: list[Card], to: list[int]) -> None:
    whole, ends = torch.randn(3, 320), (144, 320)
    values = []
    for card, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
        if card in to:
            values.append(poisoned(3, 320))
            values[-1][:, begin:end] = whole[:, begin:end]
        else:
            values.append(whole[:, begin:end].clone())
    found = [
        card.exchange_parts(own, card.exchange(0), ends=ends, to=to) for card, own in zip(cards, values, strict=True)
    ]
    beside(*([job] for job in found))
    assert all(same(values[card], whole) for card in to)


def test_a_step_of_three_cards(three: list[Card]) -> None:
    """Sums, logits to the last card alone, its token to the others; twice, so that numbers go on."""
    ends = (64, 96, 160)
    for step in range(2):
        parts, whole = [torch.randn(2, 96) for _ in three], torch.randn(2, 160)
        sums = [part.clone() for part in parts]
        logits = [whole[:, :64].clone(), whole[:, 64:96].clone(), poisoned(2, 160)]
        logits[2][:, 96:] = whole[:, 96:]
        fed = [torch.zeros(1, 6, dtype=torch.int32) for _ in three]
        fed[2] += step + 7
        lists: list[list[Job]] = []
        for card, own, logit, words in zip(three, sums, logits, fed, strict=True):
            jobs = [card.exchange_sums(own, card.exchange(0))]
            jobs.append(card.exchange_parts(logit, card.exchange(1), ends=ends, to=[2]))
            jobs.append(card.exchange_parts(words, card.exchange(2), ends=(0, 0, 6), to=[0, 1]))
            lists.append([*jobs, card.count_exchanges(card.peers, 3)])
        beside(*lists)
        assert same(sums[0], parts[0] + parts[1] + parts[2])
        assert same(sums[0], sums[1])
        assert same(sums[0], sums[2])
        assert same(logits[2], whole)
        assert [words.tolist() for words in fed] == [[[step + 7] * 6]] * 3


def test_tokens_of_the_last_card(cards: list[Card]) -> None:
    """Of one the words, of the other the same ones behind it."""
    fed = [torch.zeros(1, 24, dtype=torch.int32), torch.arange(24, dtype=torch.int32).view(1, 24)]
    beside(
        *(
            [card.exchange_parts(own, card.exchange(0), ends=(0, 24), to=[0])]
            for card, own in zip(cards, fed, strict=True)
        )
    )
    assert same(*fed)


def test_what_is_sent_from_card_to_card(cards: list[Card]) -> None:
    sources = [torch.randn(3, 4100), torch.randn(3, 512).half(), torch.arange(24, dtype=torch.int32)]
    targets = [poisoned(3, 4100), torch.zeros(3, 512).half(), torch.zeros(24, dtype=torch.int32)]
    beside([cards[0].send(list(zip(sources, targets, strict=True)))])
    assert all(map(same, targets, sources))
    with pytest.raises(ValueError, match="source has 6 bytes; they must be whole words of 4"):
        cards[0].send([(torch.zeros(3).half(), torch.zeros(3).half())])


def test_cards_that_the_driver_keeps_apart_do_not_reach_each_other(
    cards: list[Card], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices = [torch.device("cuda", number) for number in range(2)]
    assert not cards[0].reach(devices)
    assert cards[0].reach(devices[:1])
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native,expandable_segments:True")
    assert not cards[0].reach(devices[:1])


def test_nobody_waits_for_long(cards: list[Card], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PATIENCE", 1.0)
    peers = make_peers([torch.device("cpu")] * 2, 512, staged=False)
    alone = torch.randn(1, 512)
    assert silent_card(peers) is None
    # Once one has waited in vain, those behind it do not wait at all.
    begun = time.monotonic()
    beside([cards[0].exchange_sums(alone, Exchange(peers[0], number)) for number in range(5)])
    assert 1 < time.monotonic() - begun < 4
    assert silent_card(peers) == 1


def test_what_does_not_fit_is_refused(cards: list[Card]) -> None:
    with pytest.raises(ValueError, match="9 rows of 512 words; cards exchange 4096 at once"):
        cards[0].exchange_sums(torch.zeros(9, 512), cards[0].exchange(0))
    with pytest.raises(ValueError, match="two are a word"):
        cards[0].exchange_sums(torch.zeros(2, 31).half(), cards[0].exchange(0))
    with pytest.raises(ValueError, match="it must hold the columns of its card"):
        cards[0].exchange_parts(torch.zeros(1, 10), cards[0].exchange(0), ends=(20, 40), to=[1])
