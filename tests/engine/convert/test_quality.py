"""What the parts of the recipe are for: without one of them more is lost, or what is wrong goes unseen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError
from exlchat.engine.convert import conversion, rounding, rules
from exlchat.engine.convert.allocation import Table
from exlchat.engine.convert.budget import body_bits
from exlchat.engine.convert.rounding import lost, round_matrix, statistics
from exlchat.engine.evaluate.measures import Figures
from exlchat.engine.evaluate.run import Wishes, evaluate
from exlchat.engine.formats import exl2
from exlchat.engine.formats.exl2_writer import Section, write_model
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.paths import bundled_model
from tests.engine.convert.sources import CPU, converted, save_source
from tests.engine.convert.test_rounding import STEPS, inputs, matrix

LAYERS = 1
"""Of the guide's six; whole, it would take minutes."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first layers of the guide, the one trained model that is here, as floats."""
    source, folder = bundled_model(), tmp_path_factory.mktemp("trained")
    stored = load_file(source / "output.safetensors")
    tensors = {}
    for name, tensor in stored.items():
        key, _, part = name.rpartition(".")
        if key.startswith("model.layers.") and int(key.split(".")[2]) >= LAYERS:
            continue
        if part == "weight":
            tensors[name] = tensor
        elif part == "q_weight":
            parts = {short: stored[f"{key}.{short}"] for short in exl2.TENSORS if f"{key}.{short}" in stored}
            tensors[f"{key}.weight"] = exl2.dequantize(parts).T.contiguous()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": LAYERS}
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(source / "tokenizer.json", folder)
    return folder


def moved(figures: Figures) -> float:
    assert figures.divergence is not None
    return figures.divergence.mean


def test_it_moves_less_than_equal_widths_and_than_rounding_to_more_bits(trained: Path, tmp_path: Path) -> None:
    own, same = converted(trained, tmp_path / "own", 3, verify=True, tokens=8192, checked=4096)
    tensors, config = load_file(trained / "model.safetensors"), json.loads((trained / "config.json").read_text())
    five = [Section(5, 1.0, 64)]
    write_model(tensors, config, tmp_path / "plain", body=five, head=five, extra_files=[trained / "tokenizer.json"])
    wishes = Wishes((tmp_path / "plain",), CPU, trained, tokens=4096, context=1024)
    plain = evaluate(wishes, lambda *_: None).entries[0]
    assert own.bytes < plain.bytes
    assert moved(own.figures) < 0.7 * moved(plain.figures)
    assert moved(own.figures) < 0.5 * moved(same.figures)
    assert own.predicted < same.predicted
    # A prediction of another size would predict nothing.
    assert 0.4 < own.predicted / moved(own.figures) < 1.5


def test_a_matrix_that_matters_little_gets_fewer_bits(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "source")
    tensors = load_file(source / "model.safetensors")
    idle, other = (f"model.layers.{index}.mlp.up_proj" for index in (0, 1))
    # What it gives is multiplied by what follows.
    tensors["model.layers.0.mlp.down_proj.weight"] *= 1e-3
    save_file(tensors, source / "model.safetensors")
    made = Checkpoint(converted(source, tmp_path / "out", 4)[0].folder)

    def bits(key: str) -> float:
        groups = exl2.read_groups(made.tensors(key, exl2.TENSORS))
        return sum(group.bits * group.rows for group in groups) / sum(group.rows for group in groups)

    assert bits(idle) < bits(other) - 1


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_codes_that_are_improved_lose_less(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = inputs(128), matrix(128, 64)
    stats = statistics(x.T @ x / len(x), "m")

    def once() -> float:
        rounded = round_matrix(STEPS, weight[stats.order], stats, [(bits, 64)] * 2, torch.ones(64))
        return lost(rounded, weight[stats.order])[0]

    improved = once()
    monkeypatch.setattr(rounding, "_PASSES", 0)
    assert improved < 0.97 * once()


def test_no_more_bits_than_a_file_of_the_original_are_spent() -> None:
    """Its file of 4.0 bits for tiny-llama has 3.9988, and ours shall not be larger."""
    weights = 9_732_096
    table = Table(weights // 64, 64, (4,), {})
    assert 3.98 * weights < body_bits({"m": table}, 4.0) <= 3.9988 * weights


def test_what_does_not_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack = exl2.pack

    def wrong(codes: torch.Tensor, bits: int) -> torch.Tensor:
        words = pack(codes, bits)
        words[0, 0] ^= 1
        return words

    monkeypatch.setattr(rounding.exl2, "pack", wrong)
    with pytest.raises(ModelError, match="what was written does not read back as it was"):
        converted(save_source("llama", tmp_path / "source"), tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()


def test_a_file_that_breaks_a_rule_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever broke it on the way to the disk."""
    write = conversion.output.write_folder

    def wrong(folder: Path, *others: object) -> None:
        write(folder, *others)  # type: ignore[arg-type]
        tensors = load_file(folder / "output.safetensors")
        del tensors["model.norm.weight"]
        save_file(tensors, folder / "output.safetensors")

    monkeypatch.setattr(conversion.output, "write_folder", wrong)
    with pytest.raises(ModelError, match=r"breaks a rule of the format: .*model\.norm\.weight is missing"):
        converted(save_source("llama", tmp_path / "source"), tmp_path / "out", 4)
    assert rules.check_folder(tmp_path / "out")
