"""What a path holds that was given for a model, from names and first bytes alone: no torch, nothing is loaded.

Everything that is no model exlchat runs is told in one line: what it is, and what would work.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from exlchat.llm.info import ModelError
from exlchat.untrusted.files import UntrustedFileError, open_plain, read_text

INDEX = "model.safetensors.index.json"
_CONFIG = "config.json"
_ADAPTER = "adapter_config.json"
_WEIGHTS = ".safetensors"
_GIVE_FOLDER = "give the folder that holds config.json and *.safetensors"
_GET_OTHER = "get the model as EXL2, GPTQ, AWQ or safetensors"
_DOWNLOAD_AGAIN = "download the model again"
_PICKLE = "is a pickle, which can run code when read, so exlchat refuses it"
_KINDS = {
    ".gguf": "is a GGUF file, which exlchat does not read",
    ".ggml": "is a GGML file, which exlchat does not read",
    ".bin": _PICKLE,
    ".pt": _PICKLE,
    ".pth": _PICKLE,
    ".pkl": _PICKLE,
    ".ckpt": _PICKLE,
    ".onnx": "is an ONNX graph, which exlchat does not read",
    ".msgpack": "holds weights for Flax, which exlchat does not read",
    ".h5": "holds weights for Keras, which exlchat does not read",
    ".npz": "holds arrays of numpy, which exlchat does not read",
    ".incomplete": "is a download that did not finish",
    ".part": "is a download that did not finish",
}
# GGML's magic numbers as they stand in a file, and GGUF's.
_MAGIC = {
    b"lmgg": _KINDS[".ggml"],
    b"fmgg": _KINDS[".ggml"],
    b"tjgg": _KINDS[".ggml"],
    b"GGUF": _KINDS[".gguf"],
}
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
# Mistral's own copy of the weights, which lies beside the one for everybody else.
_CONSOLIDATED = re.compile(r"consolidated(\.\d+|-\d{5}-of-\d{5})?\.safetensors$")
_ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapters.safetensors")
_SHOWN = 4
_MOST_LOOKED_AT = 1000
_LARGEST_REFERENCE = 100
"""Bytes; a commit has 40."""


def check_folder(path: Path) -> None:
    """Sees that `path` is a folder with `config.json` and weights, as far as names tell.

    Raises:
        ModelError: it is something else: what, and what would work.
    """
    try:
        if not path.is_dir():
            raise ModelError(f"{path}: {_no_folder(path)}")
        files = sorted(path.iterdir())
    except OSError as error:
        raise ModelError(f"{path}: cannot be listed ({error.strerror})") from error
    if not files:
        raise ModelError(f"{path}: the directory is empty; download a model into it")
    names = {file.name for file in files}
    _check_adapter(path, names)
    for file in files:
        if file.is_symlink() and not file.exists() and file.suffix in (_WEIGHTS, ".json"):
            raise ModelError(f"{file}: is a link to {file.readlink()}, which is not there; {_DOWNLOAD_AGAIN}")
    if _CONFIG not in names:
        raise ModelError(f"{path}: {_without_config(path, files)}")
    if not any(file.suffix == _WEIGHTS for file in files):
        raise ModelError(_without_weights(path, files))


def weight_files(path: Path, indexed: Iterable[str]) -> list[Path]:
    """The files with weights: those of the index where they are all there, else every `*.safetensors`.

    EXL2 directories hold a stale index, copied from the source model, so an index that names files that are not there
    proves nothing; numbered shards do. Nor does one that names files outside of the folder, which are never opened.

    Args:
        path: of the model.
        indexed: names of files in the index; untrusted.

    Raises:
        ModelError: a part is missing, or there are only weights in Mistral's own layout.
    """
    named = sorted({path / name for name in indexed})
    if named and all(file.parent == path and file.suffix == _WEIGHTS and file.is_file() for file in named):
        return named
    files = sorted(path.glob(f"*{_WEIGHTS}"))
    others = [file for file in files if not _CONSOLIDATED.match(file.name)]
    if files and not others:
        raise ModelError(
            f"{files[0]}: holds the weights as Mistral's own programs name them; get the model-*.safetensors that lie "
            "beside it on Hugging Face"
        )
    _check_shards(path, others)
    return others


def snapshot_of(path: Path) -> Path | None:
    """The newest snapshot in a folder of the Hugging Face cache (`models--org--name`), or in its `snapshots`."""
    root = path.parent if path.name == "snapshots" else path
    if not root.name.startswith("models--"):
        return None
    try:
        commit = read_text(root / "refs" / "main", largest=_LARGEST_REFERENCE, kind="reference").strip()
    except UntrustedFileError:
        commit = ""
    try:
        snapshots = [one for one in (root / "snapshots").iterdir() if (one / _CONFIG).is_file()]
        by_age = sorted(snapshots, key=lambda one: (one.name == commit, one.stat().st_mtime))
    except OSError:
        return None
    return by_age[-1] if by_age else None


def models_inside(path: Path) -> list[Path]:
    """Folders right below that look like models, or the snapshots in those of the Hugging Face cache, by name.

    Empty where it cannot be looked into.
    """
    try:
        inside = sorted(path.iterdir())[:_MOST_LOOKED_AT]
        found = [child if (child / _CONFIG).is_file() else snapshot_of(child) for child in inside]
        return [one for one in found if one is not None]
    except OSError:
        return []


def _no_folder(path: Path) -> str:
    if path.is_symlink() and not path.exists():
        return f"is a link to {path.readlink()}, which is not there; {_GIVE_FOLDER}"
    if not path.exists():
        return f"no such directory; {_GIVE_FOLDER}"
    kind = _kind_of_file(path)
    if path.suffix == _WEIGHTS:
        return f"is one file of a model; give the folder it lies in, {path.parent}"
    return f"{kind}; {_GET_OTHER} and give its folder" if kind else f"is a file; {_GIVE_FOLDER}"


def _kind_of_file(file: Path) -> str | None:
    """What a file is that no model of exlchat's has; `None` for any other."""
    kind = _KINDS.get(file.suffix.lower())
    if kind is not None and file.is_file():
        try:
            with open_plain(file) as stream:
                return _MAGIC.get(stream.read(4), kind)
        except (UntrustedFileError, OSError):
            return kind
    return kind


def _check_adapter(path: Path, names: set[str]) -> None:
    if _ADAPTER not in names and not names & set(_ADAPTER_WEIGHTS):
        return
    weights = [name for name in names if name.endswith(_WEIGHTS) and name not in _ADAPTER_WEIGHTS]
    if _CONFIG in names and weights:
        raise ModelError(
            f"{path}: holds a model and an adapter (LoRA), which exlchat does not apply; merge it into the weights, or "
            f"move the adapter's files ({_ADAPTER} and its *.safetensors) elsewhere to run the model without it"
        )
    raise ModelError(
        f"{path}: this is an adapter (LoRA), not a model; give the folder of its base model, or of the two merged"
    )


def _without_config(path: Path, files: Sequence[Path]) -> str:
    names = {file.name for file in files}
    weights = any(name.endswith(_WEIGHTS) for name in names)
    inside, other = models_inside(path), next((file for file in files if _kind_of_file(file)), None)
    if snapshot := snapshot_of(path):
        line = f"is a folder of the Hugging Face cache; give the model in it: {snapshot}"
    elif "model_index.json" in names:
        line = "is a diffusion model, which makes pictures; exlchat runs language models"
    elif len(inside) == 1:
        line = f"the model lies one folder further down; give {inside[0]}"
    elif inside:
        some = ", ".join(one.relative_to(path).parts[0] for one in inside[:_SHOWN])
        more = ", ..." if len(inside) > _SHOWN else ""
        line = f"is a folder of {len(inside)} models ({some}{more}); give one of them, as {inside[0]}"
    elif "params.json" in names:
        line = "holds a model in its maker's own layout (params.json); get it as Hugging Face has it, with config.json"
    elif other is not None and not weights:
        line = f"{other.name} {_kind_of_file(other)}; {_GET_OTHER}"
    elif weights:
        line = "has no config.json, only weights; take config.json and the tokenizer's files from the same model"
    else:
        line = "has no config.json; a model folder holds config.json, tokenizer.json and *.safetensors"
    return line


def _without_weights(path: Path, files: Sequence[Path]) -> str:
    other = next((file for file in files if _kind_of_file(file)), None)
    if other is not None:
        return f"{other}: {_kind_of_file(other)}; {_GET_OTHER}"
    return f"{path}: no *.safetensors file is there; {_DOWNLOAD_AGAIN}, weights and all"


def _check_shards(path: Path, files: Sequence[Path]) -> None:
    present = {file.name for file in files}
    for file in files:
        shard = _SHARD.match(file.name)
        if shard is None:
            continue
        count = int(shard["count"])
        for number in range(1, count + 1):
            name = f"{shard['stem']}-{number:05d}-of-{count:05d}.safetensors"
            if name not in present:
                raise ModelError(f"{path}: {name} is missing, one of {count} parts; {_DOWNLOAD_AGAIN}")
