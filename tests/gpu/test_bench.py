"""What `exlchat bench` measures on a GPU: random models made on the card, its memory, its copy bandwidth."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from exlchat.engine import load
from exlchat.engine.bench.figures import BenchSettings, Report
from exlchat.engine.bench.measure import benchmark, copy_rates
from exlchat.engine.bench.mixes import parse_mix
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape

SETTINGS = BenchSettings(device="cuda", contexts=(128,), runs=2, new_tokens=16, turn_cached=256)
CUDA = torch.device("cuda")


@pytest.mark.parametrize("mix", ["4.1bpw", "2.5bpw", "gptq-g128-actorder"])
@pytest.mark.parametrize("extension", [False, True])
def test_a_random_8b_computes_numbers_of_ordinary_size(mix: str, extension: bool) -> None:
    checkpoint = RandomCheckpoint(named_shape("llama-8b-8layers"), parse_mix(mix), device=CUDA)
    engine = load(checkpoint, device="cuda", max_seq_len=512, extension=extension)
    logits = engine.logits([(7 * number) % 128256 for number in range(200)])
    assert bool(logits.isfinite().all())
    assert 1.5 < logits.std().item() < 6.0


def test_nothing_of_the_weights_is_on_the_host() -> None:
    checkpoint = RandomCheckpoint(named_shape("tiny"), parse_mix("4.1bpw"), device=CUDA)
    assert {checkpoint.tensor(name).device.type for name in checkpoint.names} == {"cuda"}


@pytest.mark.parametrize("extension", [False, True])
def test_a_report_from_the_card(extension: bool) -> None:
    report = Report(SETTINGS)

    def open_model() -> RandomCheckpoint:
        return RandomCheckpoint(named_shape("llama-1b-2layers"), parse_mix("4.1bpw"), device=CUDA)

    for result in benchmark(open_model, replace(SETTINGS, extension=extension), lambda _text: None):
        report.add(result)
    assert report.setting is not None
    assert report.setting.device_name == torch.cuda.get_device_name()
    assert report.find("decode", 128, "fp16") is not None
    assert report.find("turn", 256, "fp16") is not None
    for memory in report.memory:
        assert memory.footprint.weights < memory.load_peak
        assert memory.footprint.weights + memory.footprint.cache <= memory.run_peak
        assert memory.device_used is not None
        assert memory.device_used >= memory.footprint.weights
    # 384 M weights in layers and head: 0.77 GB in float16, 0.27 GB quantized.
    quantized = report.memory[0].footprint.weights_per_token < 0.5e9
    assert quantized == extension


@pytest.mark.whole_card
def test_the_copy_bandwidth_of_the_card() -> None:
    rates = copy_rates(CUDA)
    # Between an old card's and ten times that of the fastest there is.
    assert 1e11 < min(rates) <= max(rates) < 5e13
    assert max(rates) / min(rates) < 1.2
