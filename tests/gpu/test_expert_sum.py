"""Layers of experts behind a residual on the card, from the choice to what is added, against their references."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from exlchat.ext.build import ensure_library
from exlchat.ext.experts import ExpertKernels
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels
from tests.ext.expert_layers import ExpertLayer
from tests.gpu.expert_cases import GPTQ, RECIPES, packed, randn


def layer_of(count: int, hidden: int, inner: int, recipe: str, slots: int) -> ExpertLayer:
    def matrix(features: int, outputs: int) -> PackedMatrix:
        return packed(features, outputs, recipe)

    return ExpertLayer(count, hidden, inner, slots, matrix)


@pytest.mark.parametrize("recipe", [*RECIPES, *GPTQ])
@pytest.mark.parametrize(("slots", "hidden", "inner"), [(8, 2048, 768), (4, 352, 1408), (2, 1024, 2048), (1, 96, 128)])
def test_every_width_and_mix(kernels: Kernels, recipe: str, slots: int, hidden: int, inner: int) -> None:
    layer = layer_of(slots + 3, hidden, inner, recipe, slots)
    for rows in (1, 2, 8):
        layer.check(kernels, randn(rows, hidden))


def test_a_layer_of_mixtrals_width(kernels: Kernels) -> None:
    layer = layer_of(4, 4096, 14336, "GPTQ 128", 2)
    for rows in (1, 5):
        layer.check(kernels, randn(rows, 4096))


@pytest.mark.parametrize("room", [65536, 101376])
def test_cards_with_less_shared_memory(build_cache: Path, room: int) -> None:
    kernels = ExpertKernels(open_library(ensure_library(build_cache), FUNCTIONS), room=room)
    layer_of(6, 1024, 1408, "8, 5, 4", 4).check(kernels, randn(3, 1024))


def test_x_that_would_take_most_of_a_blocks_memory_is_not_added_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wide, narrow = (layer_of(2, 64, inner, "GPTQ 128", 2).downs for inner in (14336, 768))
    assert wide.why_not_summed(2) is None
    card = SimpleNamespace(shared_memory_per_multiprocessor=102400)  # of compute capability 8.6 and 8.9
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    assert "14336 wide" in str(wide.why_not_summed(2))
    assert narrow.why_not_summed(2) is None


def test_a_thousand_equal_runs(kernels: Kernels) -> None:
    layer, stream = layer_of(16, 2048, 768, "4", 8), randn(1, 2048)
    first = layer.run(kernels, stream)
    for run in range(1000):
        again = layer.run(kernels, stream)
        assert all(torch.equal(again[name], one) for name, one in first.items()), f"run {run}"
