"""Every architecture into EXL2 and back: bit for bit, by the rules of the format, and more bits lose less."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError, load
from exlchat.engine.convert import rules
from exlchat.engine.convert.observing import open_observed
from exlchat.engine.convert.passes import Passes
from exlchat.engine.formats import awq_writer, gptq_writer
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.inventory import describe_format
from exlchat.engine.layers.transformer import Stream
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.convert.sources import CPU, converted, save_source
from tests.engine.family_models import CASES

STACKED = [name for name in CASES if name.startswith("gpt_oss")]
NAMES = [name for name in CASES if name not in STACKED]


@pytest.mark.sweep(8)
@pytest.mark.parametrize("name", NAMES)
def test_it_is_written_as_the_format_wants_it_and_more_bits_lose_less(name: str, tmp_path: Path) -> None:
    source = save_source(name, tmp_path / "source")
    written = converted(source, tmp_path / "out", 6, 2.5)
    divergences = []
    for entry in written:
        assert rules.check_folder(entry.folder) == []
        assert describe_format(Checkpoint(entry.folder)).startswith("EXL2")
        assert entry.figures.divergence is not None
        divergences.append(entry.figures.divergence.mean)
    assert divergences == sorted(divergences)
    assert [entry.predicted for entry in written] == sorted(entry.predicted for entry in written)
    assert [entry.bytes for entry in written] == sorted((entry.bytes for entry in written), reverse=True)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", NAMES)
def test_what_was_measured_is_what_the_engine_computes(name: str, tmp_path: Path) -> None:
    """The engine reads the file on its own way, joined projections and all."""
    source = save_source(name, tmp_path / "source")
    written = converted(source, tmp_path / "out", 4)[0]
    ids = torch.randint(2, 300, (1, 48), generator=torch.Generator().manual_seed(1))
    checkpoint = Checkpoint(written.folder)
    spec = read_spec(checkpoint.config, "config.json")
    transformer, loader = open_observed(checkpoint, spec, CPU, 48)
    passes = Passes(transformer, loader, ids)
    for index in range(spec.num_layers):
        passes.forward(index)
    with torch.no_grad():
        found = transformer.scores(transformer.finish(Stream(passes.hidden[0].clone())))
    engine = load(written.folder, device="cpu")
    assert torch.allclose(found, engine.logits(ids[0].tolist()), atol=2e-3, rtol=1e-3)
    engine.unload()


def _saved_as(form: str, source: Path, folder: Path) -> Path:
    tensors, config = load_file(source / "model.safetensors"), json.loads((source / "config.json").read_text())
    files = [source / "tokenizer.json"]
    if form == "awq":
        awq_writer.write_model(tensors, config, folder, 32, extra_files=files)
    elif form.startswith("gptq"):
        gptq_writer.write_model(
            tensors, config, folder, GptqRecipe(32, act_order=form.endswith("order")), extra_files=files
        )
    else:
        shutil.copytree(source, folder)
        dtype = getattr(torch, form)
        save_file({name: one.to(dtype) for name, one in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.sweep(3)
@pytest.mark.parametrize("form", ["bfloat16", "float16", "gptq", "float32", "gptq act-order", "awq"])
def test_sources_in_every_form(form: str, tmp_path: Path) -> None:
    """The engine reads both on its own way: at 8 bits little moves."""
    source = _saved_as(form, save_source("llama", tmp_path / "dense"), tmp_path / "source")
    written = converted(source, tmp_path / "out", 8)[0]
    ids = torch.randint(2, 300, (48,), generator=torch.Generator().manual_seed(1)).tolist()
    before, after = (load(folder, device="cpu") for folder in (source, written.folder))
    wanted, found = (engine.logits(ids).log_softmax(-1) for engine in (before, after))
    assert float((wanted.exp() * (wanted - found)).sum(-1).mean()) < 4e-3
    before.unload()
    after.unload()


@pytest.mark.parametrize("name", STACKED[:1])
def test_experts_in_one_tensor_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="all experts of a layer stand in one tensor"):
        converted(save_source(name, tmp_path / "source"), tmp_path / "out", 4)
    assert not (tmp_path / "out").exists()
