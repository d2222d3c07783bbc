"""A layer of experts behind a residual without a GPU, from the choice to what is added: kernels run on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from exlchat.ext import expert_weights, experts, products, routing
from exlchat.ext.experts import ExpertKernels
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.routing import Choice
from tests.ext import reference_experts
from tests.ext.chain_cases import Functions
from tests.ext.emulation import EXPERTS, emulated_library
from tests.ext.expert_layers import ExpertLayer
from tests.ext.matrix_cases import packed
from tests.ext.row_cases import same

pytestmark = pytest.mark.timeout(400)
LARGEST = 232448
Make = Callable[..., ExpertKernels]


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return emulated_library(tmp_path_factory.mktemp("emulated"), EXPERTS, ("-DEMULATED_DELAYS=3",))


@pytest.fixture
def make(functions: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Kernels on a card of so many multiprocessors."""
    for module in (experts, products, routing):
        monkeypatch.setattr(module, "check_on_gpu", lambda **_tensors: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=None))
    running: dict[str, Any] = {"exl_dense_product": None}
    for name in ("exl_route", "exl_expert_product", "exl_expert_sum"):
        running[name] = lambda *given, call=functions[name]: _checked(call(*given))

    def one(processors: int = 4, room: int = 0) -> ExpertKernels:
        functions["emulated_card"](LARGEST, processors, 9)
        card = SimpleNamespace(multi_processor_count=processors)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
        return ExpertKernels(Functions(running).library, room=room)

    return one


def _checked(code: int) -> int:
    assert code == 0
    return code


def layer_of(count: int, hidden: int, inner: int, recipe: str, slots: int, **others: bool) -> ExpertLayer:
    def matrix(features: int, outputs: int) -> PackedMatrix:
        return packed(features, outputs, recipe, "cpu")

    return ExpertLayer(count, hidden, inner, slots, matrix, **others)


# Several tokens go to one expert; blocks have several column tiles, some more than others; an expert has one warp or
# more; a card has as little shared memory as one of compute capability 7.5.
CASES = [
    (9, 8, 352, 128, "4", 3, 0),
    (6, 4, 256, 384, "8, 5, 4", 16, 0),
    (3, 2, 512, 640, "6, 5, 3, 2", 5, 65536),
    (4, 1, 96, 256, "GPTQ 32", 4, 0),
    (2, 2, 320, 1024, "4 in groups of 32", 7, 101376),
]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [1, 3])
def test_from_the_choice_to_what_is_added(make: Make, case: tuple[Any, ...], rows: int) -> None:
    count, slots, hidden, inner, recipe, processors, room = case
    torch.manual_seed(count * rows)
    layer_of(count, hidden, inner, recipe, slots).check(make(processors, room), torch.randn(rows, hidden))


def test_many_experts_whose_weights_are_those_among_all(make: Make) -> None:
    layer = layer_of(300, 64, 128, "GPTQ 32", 4, renormalised=False)
    layer.check(make(3), torch.randn(2, 64))


def test_what_other_experts_hold_does_not_matter(make: Make) -> None:
    kernels, layer, stream = make(3), layer_of(6, 256, 128, "4", 2), torch.randn(2, 256)
    before = layer.run(kernels, stream)
    chosen = set(reference_experts.made(Choice(before["logits"], layer.rules))[0].flatten().tolist())
    for number in set(range(6)) - chosen:
        for matrix in (*layer.downs.experts[number], *layer.gates.experts[number]):
            matrix.words.fill_(-1)
            matrix.scales.fill_(-1)  # NaN
    after = layer.run(kernels, stream)
    assert all(same(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    ("slots", "inner", "words"), [(3, 128, "3 experts of a token"), (2, 96, "96 rows are not whole pieces")]
)
def test_experts_that_no_product_adds_up_are_named(make: Make, slots: int, inner: int, words: str) -> None:
    layer = layer_of(4, 64, inner, "4", slots)
    assert words in str(layer.downs.why_not_summed(slots))
    with pytest.raises(ValueError, match=words):
        layer.run(make(), torch.randn(1, 64))
    assert "two matrices" in str(layer.gates.why_not_summed(2))


def test_experts_too_far_apart_for_32_bits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    downs = layer_of(4, 64, 128, "4", 2).downs
    assert downs.why_not_summed(2) is None
    monkeypatch.setattr(expert_weights, "_FARTHEST", downs.first[0].words.nbytes)
    assert "far apart" in str(downs.why_not_summed(2))
