"""Which dtype a model gets in the memory that is free."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.engine import ModelError, load, placement
from exlchat.engine.formats.inventory import WeightSizes
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.random_models import save_random_llama

CPU = torch.device("cpu")


def with_free_bytes(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(placement, "free_memory", lambda _device: free)


@pytest.mark.parametrize(
    ("stored", "free_per_weight", "chosen"),
    [
        (torch.float16, 8, torch.float32),
        (torch.float16, 3, torch.float16),
        (torch.bfloat16, 8, torch.float32),
        (torch.bfloat16, 3, torch.bfloat16),
    ],
)
def test_the_most_exact_dtype_that_fits(
    stored: torch.dtype, free_per_weight: int, chosen: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_random_llama(tmp_path).to(stored).save_pretrained(tmp_path)
    with_free_bytes(monkeypatch, 1_000_000 * free_per_weight)
    assert placement.choose_dtype(Checkpoint(tmp_path), CPU, WeightSizes(1_000_000)) == chosen


def test_a_16_bit_model_computes_what_float32_does_nearly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random_llama(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    exact = load(tmp_path, device="cpu").logits(range(30))
    with_free_bytes(monkeypatch, 300_000)
    narrow = load(tmp_path, device="cpu")
    assert narrow.info.dtype == "bfloat16"
    assert (narrow.logits(range(30)) - exact).norm() / exact.norm() < 0.05


def test_a_model_that_does_not_fit_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_random_llama(tmp_path)
    with_free_bytes(monkeypatch, 1 << 30)
    with pytest.raises(ModelError, match=r"needs 3\.7 GiB .* 1\.0 GiB free"):
        placement.choose_dtype(Checkpoint(tmp_path), CPU, WeightSizes(2_000_000_000))


def test_a_small_model_computes_on_one_thread(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        save_random_llama(tmp_path)
        load(tmp_path, device="cpu")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def test_free_memory_is_what_the_kernel_says() -> None:
    free = placement.free_memory(CPU)
    assert 64 * 2**20 < free < 2**46


def test_a_card_that_a_variable_hides_is_named_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(placement, "hidden_cards", lambda: "CUDA_VISIBLE_DEVICES='' hides every NVIDIA card")
    with pytest.raises(ModelError, match=r"^device cuda: CUDA_VISIBLE_DEVICES='' hides every NVIDIA card$"):
        placement.choose_device("cuda")
