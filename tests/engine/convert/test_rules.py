"""The rules of the original's reader: our files keep them, the original's own do, and broken ones are told."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from exlchat.engine.convert import rules
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.paths import bundled_model
from tests.engine.convert.sources import converted, save_source
from tests.shared_data import DATA, needs_shared

MATRIX = "model.layers.1.mlp.down_proj"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    return converted(save_source("llama", folder / "source"), folder / "out", 4)[0].folder


def broken(made: Path, folder: Path, **changes: Tensor | None) -> list[str]:
    """What is found where a matrix has other tensors."""
    folder.mkdir()
    for file in made.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "output.safetensors")
    for name, tensor in changes.items():
        tensors.pop(f"{MATRIX}.{name}", None)
        if tensor is not None:
            tensors[f"{MATRIX}.{name}"] = tensor.contiguous()
    save_file(tensors, folder / "output.safetensors")
    return rules.check_folder(folder)


@needs_shared
@pytest.mark.parametrize("name", ["tiny-llama-exl2-4.0bpw", "converted/qwen3", "converted/mixtral", "converted/phi3"])
def test_files_of_the_original_keep_them(name: str, tmp_path: Path) -> None:
    for file in (DATA / name).iterdir():
        # What others computed with it lies beside it.
        if file.name != "expected.safetensors":
            (tmp_path / file.name).symlink_to(file)
    assert rules.check_folder(tmp_path) == []


def test_broken_files_are_told(made: Path, tmp_path: Path) -> None:
    own = load_file(made / "output.safetensors")
    scale, order = own[f"{MATRIX}.q_scale_max"], own[f"{MATRIX}.q_invperm"]
    cases: dict[str, tuple[dict[str, Tensor | None], str]] = {
        "zero": ({"q_scale_max": torch.zeros_like(scale)}, "q_scale_max is not above 0"),
        "small": ({"q_scale_max": torch.full_like(scale, 6e-8)}, "256th part is 0"),
        "infinite": ({"q_scale_max": torch.full_like(scale, float("inf"))}, "no number"),
        "order": ({"q_invperm": torch.zeros_like(order)}, "not a permutation"),
        "perm": ({"q_perm": order}, "holds q_perm, which readers make themselves"),
        "floats": ({"weight": torch.zeros(64, 96).half()}, "float weights beside codes"),
        "missing": ({"q_scale": None}, "q_scale is missing"),
    }
    for name, (changes, line) in cases.items():
        found = broken(made, tmp_path / name, **changes)
        assert any(MATRIX in problem and line in problem for problem in found), (name, found)


def test_a_block_of_which_a_part_is_float(made: Path, tmp_path: Path) -> None:
    parts = dict.fromkeys(("q_weight", "q_scale", "q_scale_max", "q_groups", "q_invperm"))
    found = broken(made, tmp_path / "mixed", **parts, weight=torch.zeros(64, 96).half())
    assert any("some of gate_proj, up_proj, down_proj are in EXL2 and some are not" in problem for problem in found)


@pytest.mark.parametrize(
    ("name", "tensor", "line"),
    [
        ("model.layers.1.input_layernorm.weight", None, "input_layernorm.weight is missing"),
        ("model.norm.weight", torch.ones(32).half(), "model.norm.weight is 32, but config.json makes it 64"),
        ("lm_head.*", None, "lm_head.weight is missing"),
        ("model.layers.0.mlp.*", None, "mlp.down_proj.weight is missing"),
        ("model.layers.0.self_attn.q_proj.bias", torch.zeros(64).half(), "q_proj has a bias that config.json does not"),
    ],
)
def test_what_is_missing_or_of_another_size(
    made: Path, tmp_path: Path, name: str, tensor: Tensor | None, line: str
) -> None:
    for file in made.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = {key: value for key, value in load_file(made / "output.safetensors").items() if not fnmatch(key, name)}
    if tensor is not None:
        tensors[name] = tensor
    save_file(tensors, tmp_path / "output.safetensors")
    assert any(line in problem for problem in rules.check_folder(tmp_path)), rules.check_folder(tmp_path)


def test_sizes_and_widths() -> None:
    tensors = quantize_matrix(torch.randn(96, 64), [Section(4, 0.5, 32), Section(3, 0.5, 32)])
    assert list(rules.matrix_problems(tensors)) == []
    rising = quantize_matrix(torch.randn(64, 32), [Section(3, 1.0, 32)])
    first = quantize_matrix(torch.randn(32, 32), [Section(2, 1.0, 32)])
    joined = {
        "q_weight": torch.cat([first["q_weight"], rising["q_weight"]]),
        "q_scale": torch.cat([first["q_scale"], rising["q_scale"]]),
        "q_scale_max": torch.cat([first["q_scale_max"], rising["q_scale_max"]]),
        "q_groups": torch.tensor([2, 0, 3, 2, 3, 5], dtype=torch.int16),
        "q_invperm": torch.arange(96, dtype=torch.int32),
    }
    assert "widths do not descend from group to group" in list(rules.matrix_problems(joined))


def test_what_is_shipped_was_made_by_the_converter_and_keeps_them() -> None:
    folder = bundled_model()
    assert rules.check_folder(folder) == []
    assert "exlchat" in json.loads((folder / "config.json").read_text())["quantization_config"]["converter"]


def test_files_may_be_read_as_the_umask_says(made: Path) -> None:
    assert {oct(file.stat().st_mode & 0o777) for file in made.iterdir()} == {
        oct((made / "config.json").stat().st_mode & 0o777)
    }
