"""A model folder in which a file is no file: `exlchat ask` and `exlchat models` say so in a line, at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open

from exlchat.engine.weights import files as model_files
from tests.random_models import save_random_llama
from tests.untrusted.no_files import NOT_PLAIN, sparse
from tests.untrusted.trials import Trial, Trials, trials

KINDS = {**NOT_PLAIN, "sparse": sparse}
INDEX = "model.safetensors.index.json"
# Of the folder, or of one without `tokenizer.json`.
FILES = (
    "config.json",
    "model.safetensors",
    INDEX,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tools.jinja",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "good"
    save_random_llama(folder)
    return folder


@pytest.fixture(scope="module")
def tried(good: Path) -> Iterator[Trials]:
    with trials(good.parent / "home", *asking(good)) as ready:
        assert ready.warm.code == 0, ready.warm.err
        yield ready


def asking(folder: Path) -> tuple[str, ...]:
    return ("ask", "hello", "--model", str(folder), "--device", "cpu", "--max-tokens", "2", "--no-save")


def complaint(trial: Trial) -> str:
    """What it said: one line, and nothing else happened."""
    assert trial.fault is None
    assert trial.code == 1
    (line,) = trial.err.splitlines()
    assert line.startswith("exlchat: ")
    return line


def with_one(good: Path, name: str, make: Callable[[Path], None], folder: Path) -> Path:
    """A copy of a good folder in which a file is something else."""
    shutil.copytree(good, folder)
    file = folder / name
    if name in ("tokenizer.model", "vocab.json", "merges.txt"):
        (folder / "tokenizer.json").unlink()
        (folder / "vocab.json").write_text("{}")
        (folder / "merges.txt").write_text("")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    file.parent.mkdir(exist_ok=True)
    file.unlink(missing_ok=True)
    make(file)
    return folder


# Every file once waited for and once too large; how the opener tells the others is tried with it.
CASES = [(name, kind) for name in FILES for kind in ("fifo", "sparse")]
CASES += [(name, kind) for name in ("config.json", "model.safetensors", "tokenizer.json") for kind in NOT_PLAIN]


@pytest.mark.parametrize(("name", "kind"), dict.fromkeys(CASES))
@pytest.mark.sweep(20)
def test_a_file_that_is_none_is_a_line(name: str, kind: str, good: Path, tmp_path: Path, tried: Trials) -> None:
    line = complaint(tried.run(*asking(with_one(good, name, KINDS[kind], tmp_path / "model"))))
    assert Path(name).name in line
    too_large = "cannot be mapped into memory" if name.endswith(".safetensors") else "larger than"
    assert (too_large if kind == "sparse" else "not a plain file; give one or download the model again") in line


def test_models_lists_them_all_and_waits_for_none(good: Path, tmp_path: Path, tried: Trials) -> None:
    for name in FILES:
        for kind, make in KINDS.items():
            with_one(good, name, make, tmp_path / f"{name.replace('/', ' ')} {kind}")
    (good.parent / "home" / "config").mkdir(parents=True, exist_ok=True)
    (good.parent / "home" / "config" / "settings.toml").write_text(f"model_folders = [{json.dumps(str(tmp_path))}]\n")
    trial = tried.run("models", "--json")
    assert trial.fault is None
    assert trial.code == 0
    rows = {Path(row["path"]).name: row["problem"] for row in json.loads(trial.out)}
    assert rows.keys() > {f"{name.replace('/', ' ')} {kind}" for name in FILES for kind in KINDS}
    for kind in NOT_PLAIN:
        for name in ("config.json", "model.safetensors", INDEX):
            assert f"{name}: not a plain file" in rows[f"{name} {kind}"]


def enlarged(file: Path, size: int) -> None:
    """Adds a tensor without names of a model, of bytes that take no room on the disk."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header["large"] = {"dtype": "U8", "shape": [size], "data_offsets": [len(body), len(body) + size]}
    new = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(len(new).to_bytes(8, "little") + new + body)
        out.truncate(8 + len(new) + len(body) + size)


# Mapped once for the headers and once for the tensors, within addresses of 2 GiB.
@pytest.mark.parametrize("size", [8 * 2**30, 3 * 2**29])
def test_weights_that_cannot_be_mapped_are_a_line(size: int, good: Path, tmp_path: Path, tried: Trials) -> None:
    model = Path(shutil.copytree(good, tmp_path / "model"))
    enlarged(model / "model.safetensors", size)
    line = complaint(tried.run(*asking(model)))
    assert f"model.safetensors: its {(model / 'model.safetensors').stat().st_size:,} bytes" in line
    assert "bytes cannot be mapped into memory; raise the limit of this process (ulimit -v)" in line


def test_weights_are_mapped_from_what_was_looked_at(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(shutil.copy(good / "model.safetensors", tmp_path))

    def swapped(name: str, **how: Any) -> Any:
        file.unlink()
        NOT_PLAIN["fifo"](file)
        return safe_open(name, **how)

    monkeypatch.setattr(model_files, "safe_open", swapped)
    assert "model.norm.weight" in list(model_files.open_weights(file).keys())


@pytest.mark.parametrize(
    "outside", ["../secret.safetensors", "{folder}/secret.safetensors", "a/../../secret.safetensors"]
)
def test_an_index_leads_nowhere_else(outside: str, good: Path, tmp_path: Path, tried: Trials) -> None:
    model = Path(shutil.copytree(good, tmp_path / "model"))
    shutil.copy(good / "model.safetensors", tmp_path / "secret.safetensors")
    (model / "model.safetensors").rename(model / "other.safetensors")
    (model / "other.safetensors").write_bytes(b"")
    weight_map = {"model.norm.weight": outside.format(folder=tmp_path)}
    (model / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    assert "other.safetensors: not a whole safetensors file" in complaint(tried.run(*asking(model)))


def test_links_are_followed_as_those_of_the_hub_cache(good: Path, tmp_path: Path, tried: Trials) -> None:
    blobs, model = tmp_path / "blobs", tmp_path / "snapshots" / "commit"
    shutil.copytree(good, blobs)
    model.mkdir(parents=True)
    for file in blobs.iterdir():
        (model / file.name).symlink_to(Path("../../blobs") / file.name)
    trial = tried.run(*asking(model))
    assert (trial.code, trial.fault) == (0, None)
