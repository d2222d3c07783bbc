"""On a GPU an unloaded model gives its memory back to the driver, so that another one finds room."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.engine import GenerationRequest, load
from exlchat.engine.model_card import describe, look_around
from exlchat.paths import bundled_model

pytestmark = [pytest.mark.gpu, pytest.mark.whole_card]


@pytest.mark.parametrize("extension", [True, False])
def test_memory_goes_back_to_the_driver(tmp_path: Path, extension: bool) -> None:
    def once() -> tuple[int, int]:
        engine = load(bundled_model(), device="cuda", extension=extension, cache_gigabytes=0.5)
        list(engine.generate(GenerationRequest(engine.encode("How do I load a model?"), max_new_tokens=8)))
        torch.cuda.synchronize()
        loaded = torch.cuda.mem_get_info()[0]
        engine.unload()
        return loaded, torch.cuda.mem_get_info()[0]

    before = torch.cuda.memory_allocated()  # engines of other tests
    once()
    # The first product in a process has cuBLAS keep a workspace, 32 MiB on an H200.
    kept = torch.cuda.memory_allocated()
    assert kept - before <= 32 * 2**20
    loaded, first = once()
    _, second = once()
    # The cache alone is 512 MiB.
    assert first - loaded > 400 * 2**20
    assert abs(second - first) < 32 * 2**20
    assert torch.cuda.memory_allocated() <= kept


def test_the_card_reckons_with_what_the_loaded_model_gives_back() -> None:
    before = look_around("cuda").room[0]
    engine = load(bundled_model(), device="cuda", cache_gigabytes=2.0)
    list(engine.generate(GenerationRequest(engine.encode("hello"), max_new_tokens=2)))
    there = look_around("cuda").room[0]
    engine.unload()
    assert abs(there - before) < 0.7 * 2**30
    fit = describe(bundled_model(), look_around("cuda"), kv_cache="fp16").fit
    assert fit is not None
    assert fit.problem is None
    # Quantized layers stay so: less than the 21 MB of float16.
    assert fit.weights < 15e6


def test_the_report_of_memory_is_that_of_the_card() -> None:
    engine = load(bundled_model(), device="cuda", cache_gigabytes=0.5)
    report = engine.memory_report()
    free, total = torch.cuda.mem_get_info()
    assert report.cards[0].total == total
    assert len(report.cards) == 1
    # Other programs may take or give a little in between.
    assert abs(report.cards[0].used - (total - free)) < 64 * 2**20
    assert report.cards[0].used > report.weights + report.cache > 400 * 2**20
    engine.unload()
