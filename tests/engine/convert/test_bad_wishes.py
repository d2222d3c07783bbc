"""What cannot be converted, in one line that names it; nothing is overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError
from exlchat.engine.convert import output
from exlchat.engine.convert.run import Wishes, convert
from exlchat.engine.convert.text import CALIBRATION, EVALUATION, bundled_text, check_apart
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


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.v_proj.weight", "lm_head.weight"])
def test_a_matrix_that_float16_cannot_hold_is_named(source: Path, tmp_path: Path, name: str) -> None:
    broken = changed(source, tmp_path / "broken", name, 1e5)
    with pytest.raises(ModelError, match=rf"{name.removesuffix('.weight')}: holds 100000; float16, .* ends at 65504"):
        converted(broken, tmp_path / "out", 4)


def test_a_model_of_which_no_matrix_fits_is_refused_at_once(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "odd", hidden_size=72, head_dim=18, intermediate_size=100)
    with pytest.raises(ModelError, match="EXL2 can hold none of its matrices"):
        converted(source, tmp_path / "out", 4)
    assert not (tmp_path / "out.work").exists()


def test_a_text_that_is_too_short(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a few words")
    with pytest.raises(ModelError, match=r"the text has \d+ tokens, and one row takes \d+; give a longer one"):
        converted(source, tmp_path / "out", 4, text=tmp_path / "text")


def test_a_text_that_results_are_measured_on(source: Path, tmp_path: Path) -> None:
    middle = bundled_text(EVALUATION)[90_000:91_000]
    (tmp_path / "text").write_text("Something of my own. " * 50 + " ".join(middle.split()))
    with pytest.raises(ModelError, match="runs of 256 characters of the text that results are measured on"):
        converted(source, tmp_path / "out", 4, text=tmp_path / "text")


def test_the_bundled_texts_are_apart() -> None:
    check_apart(bundled_text(CALIBRATION), bundled_text(EVALUATION))


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
    with pytest.raises(ModelError, match=r"[\d.]+ MB are needed and 0\.0 MB free"):
        converted(source, tmp_path / "out", 4)


def test_a_disk_that_is_too_small_for_all_files_together(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = converted(source, tmp_path / "one", 8)[0].bytes
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _: type("usage", (), {"free": int(2.5 * one)})())
    with pytest.raises(ModelError, match="are needed and"):
        converted(source, tmp_path / "out", 8, 7, 6)
    with pytest.raises(ModelError, match="are needed and"):
        converted(source, tmp_path / "out", 8, verify=True)
    converted(source, tmp_path / "out", 8)


_FULL = """
import resource, signal, sys
from pathlib import Path
from tests.engine.convert.sources import converted
from exlchat.llm.info import ModelError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
limit, *folders = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
try:
    converted(*map(Path, folders), 4)
except ModelError as error:
    print(error)
"""


@pytest.mark.parametrize("limit", [100_000, 40_000])
def test_a_disk_that_takes_no_more_keeps_what_is_done(source: Path, tmp_path: Path, limit: int) -> None:
    """The kernel refuses what is too long for a file: that of the weights, or before that a layer's codes."""
    out = tmp_path / "out"
    command = [sys.executable, "-c", _FULL, str(limit), source, out]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "cannot be written" in ran.stdout, ran.stderr
    assert "what is done is kept" in ran.stdout
    assert "file too large" in ran.stdout.lower()
    assert ran.stdout.count("\n") == 1
    assert not out.exists()
    assert converted(source, out, 4)[0].folder == out


def test_weights_of_a_gptq_model_are_said_to_lose_twice(tmp_path: Path) -> None:
    source = save_source("llama", tmp_path / "dense")
    tensors, config = load_file(source / "model.safetensors"), json.loads((source / "config.json").read_text())
    quantized = tmp_path / "gptq"
    gptq_writer.write_model(tensors, config, quantized, GptqRecipe(32), extra_files=[source / "tokenizer.json"])
    told: list[str] = []
    wishes = Wishes(quantized, tmp_path / "out", (3.0,), torch.device("cpu"), tokens=768, checked=512)
    assert convert(wishes, lambda _: None, told.append)[0].figures.divergence is not None
    assert any("lose what it lost once more" in line for line in told)
