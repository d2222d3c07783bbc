"""What cannot be converted, in one line that names it; nothing is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError
from exlchat.engine.convert import output
from exlchat.engine.convert.run import Wishes, convert
from exlchat.engine.convert.text import EVALUATION, bundled_text
from exlchat.engine.formats import gptq_writer
from exlchat.engine.formats.gptq_writer import GptqRecipe
from tests.engine.convert.sources import converted, save_source


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_source("llama", tmp_path_factory.mktemp("source") / "llama")


def changed(source: Path, folder: Path, name: str, value: float) -> Path:
    """A copy with one other weight."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    tensors[name].view(-1)[5] = value
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named(source: Path, tmp_path: Path, value: float) -> None:
    name = "model.layers.1.mlp.up_proj"
    broken = changed(source, tmp_path / "broken", f"{name}.weight", value)
    with pytest.raises(ModelError, match=rf"{name}: 1 of its weights are no numbers"):
        converted(broken, tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()


def test_what_float16_cannot_hold_is_named(source: Path, tmp_path: Path) -> None:
    broken = changed(source, tmp_path / "broken", "model.norm.weight", 1e6)
    with pytest.raises(ModelError, match=r"model\.norm\.weight holds 1e\+06; float16, .* ends at 65504"):
        converted(broken, tmp_path / "out", 4)


def test_a_text_that_is_too_short(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a few words")
    with pytest.raises(ModelError, match=r"the text has \d+ tokens, and one row takes \d+; give a longer one"):
        converted(source, tmp_path / "out", 4, text=tmp_path / "text")


def test_a_text_that_results_are_measured_on(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Something of my own. " * 50 + bundled_text(EVALUATION)[:40_000])
    with pytest.raises(ModelError, match="runs of 64 tokens of the text that results are measured on"):
        converted(source, tmp_path / "out", 4, text=tmp_path / "text", tokens=100_000, checked=8192)


def test_a_source_that_is_in_exl2_already(source: Path, tmp_path: Path) -> None:
    made = converted(source, tmp_path / "out", 4)[0]
    with pytest.raises(ModelError, match="is in EXL2 already; convert the model that it was made of"):
        converted(made.folder, tmp_path / "again", 3)


@pytest.mark.parametrize(
    ("bits", "line"), [(1.5, "1.5 bits a weight cannot be made"), (2.0, "so few bits cannot be met")]
)
def test_bits_that_cannot_be_met(source: Path, tmp_path: Path, bits: float, line: str) -> None:
    with pytest.raises(ModelError, match=line):
        converted(source, tmp_path / "out", bits, head_bits=2)
    assert not (tmp_path / "out").exists()


def test_a_size_that_leaves_no_bits(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="bits a weight, and EXL2 begins at 2; ask for more"):
        converted(source, tmp_path / "out", size=60_000)


def test_a_size_is_kept(source: Path, tmp_path: Path) -> None:
    made = converted(source, tmp_path / "out", size=200_000)[0]
    assert 170_000 < made.bytes <= 200_000


def test_a_folder_that_is_there(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("mine")
    with pytest.raises(ModelError, match="is there already; nothing is overwritten"):
        converted(source, tmp_path / "out", 4)
    assert (tmp_path / "out" / "mine").read_text() == "mine"


def test_the_work_folder_of_another_job(source: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    converted(source, tmp_path / "out", 4, work=work)
    with pytest.raises(ModelError, match=r"belongs to another conversion \(text, widths differ\)"):
        converted(source, tmp_path / "more", 8, work=work, tokens=600)
    work = tmp_path / "other"
    work.mkdir()
    (work / "mine").write_text("mine")
    with pytest.raises(ModelError, match="holds other files"):
        converted(source, tmp_path / "more", 4, work=work)


def test_a_disk_that_is_too_small(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: type("usage", (), {"free": 1000})())
    with pytest.raises(ModelError, match=r"GB are needed and 0\.0 GB free"):
        converted(source, tmp_path / "out", 4)


def test_a_disk_that_fills_up_keeps_what_is_done(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(output, "save_file", full)
        with pytest.raises(ModelError, match=r"cannot be written \(no space left on device\); what is done is kept"):
            converted(source, tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()
    assert converted(source, tmp_path / "out", 4)[0].folder == tmp_path / "out"


def test_weights_of_a_gptq_model_are_said_to_lose_twice(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "dense")
    tensors, config = load_file(source / "model.safetensors"), json.loads((source / "config.json").read_text())
    quantized = tmp_path / "gptq"
    gptq_writer.write_model(tensors, config, quantized, GptqRecipe(32), extra_files=[source / "tokenizer.json"])
    told: list[str] = []
    wishes = Wishes(quantized, tmp_path / "out", (3.0,), torch.device("cpu"), tokens=768, checked=512)
    assert convert(wishes, lambda _: None, told.append)[0].figures.divergence is not None
    assert any("lose what it lost once more" in line for line in told)
