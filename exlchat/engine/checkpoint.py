"""A model directory: its JSON files, its named tensors, and what is wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from exlchat.engine.events import ModelError
from exlchat.engine.model_identity import identify
from exlchat.engine.tensor_names import TensorNames

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors$")
_DOWNLOAD_AGAIN = "download the model again"
LFS_POINTER = b"version https://git-lfs."
"""How the file begins that git leaves in the place of a large one."""


class Checkpoint:
    """An opened model directory. Tensors are memory-mapped and read when they are asked for.

    Args:
        path: a directory with `config.json` and `*.safetensors` files.

    Raises:
        ModelError: the directory, a file or a header cannot be used.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_directory(path)
        self.config = self.read_json("config.json", required=True)
        self._files = _weight_files(path, self.read_json("model.safetensors.index.json"))
        self._readers = [_open(file) for file in self._files]
        self._where: dict[str, int] = {}
        self._stored: dict[str, str] = {}
        names = TensorNames(self.config)
        for index, reader in enumerate(self._readers):
            for stored in list(reader.keys()):
                name = names.ours(stored)
                if name is None:
                    continue
                if name in self._where:
                    both = f"{self._files[self._where[name]].name} and {self._files[index].name}"
                    raise ModelError(f"{path}: {both} both hold {stored}; keep one model in the directory")
                self._where[name], self._stored[name] = index, stored

    @property
    def identity(self) -> str:
        """A name for what the model computes: see `model_identity`. Raises `ModelError` if a file cannot be read."""
        try:
            return identify((self.path / "config.json").read_bytes(), self._files)
        except OSError as error:
            raise _unreadable(self.path, error) from error

    @property
    def names(self) -> frozenset[str]:
        """All tensors of the decoder, as `tensor_names` calls them."""
        return frozenset(self._where)

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._files[self._where[name]]

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the data. Raises `ModelError` if there is no such tensor."""
        return tuple(self._reader(name).get_slice(self._stored[name]).get_shape())

    def dtype(self, name: str) -> str:
        """As the file names it: `F16`, `BF16`, `F32`, `I32`, `I16` ..."""
        return str(self._reader(name).get_slice(self._stored[name]).get_dtype())

    def tensor(self, name: str) -> Tensor:
        """A memory-mapped tensor on the CPU. Raises `ModelError` if there is none or it cannot be read."""
        reader = self._reader(name)
        try:
            tensor: Tensor = reader.get_tensor(self._stored[name])
        except (SafetensorError, ValueError, OSError) as error:
            raise ModelError(f"{self.file_of(name)}: {name} cannot be read ({_first_line(error)})") from error
        return tensor

    def tensors(self, key: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """The tensors `key.name` that exist, by their short names."""
        return {name: self.tensor(f"{key}.{name}") for name in names if f"{key}.{name}" in self._where}

    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """A JSON object of the directory; empty if the file is absent and not required."""
        file = self.path / name
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            if required:
                raise ModelError(f"{self.path}: {name} is missing; a model directory needs it") from error
            return {}
        except OSError as error:
            raise _unreadable(file, error) from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{file}: not readable JSON ({_first_line(error)}); {_DOWNLOAD_AGAIN}") from error
        if not isinstance(content, dict):
            raise ModelError(f"{file}: holds a JSON {type(content).__name__} where an object belongs")
        return content

    def read_text(self, name: str) -> str | None:
        """A text file of the directory, or `None` if it is absent."""
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.path / name, error) from error
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path / name}: is not UTF-8 ({error.reason}); {_DOWNLOAD_AGAIN}") from error

    def _reader(self, name: str) -> Any:
        if name not in self._where:
            raise ModelError(f"{self.path}: no file holds the tensor {name}; {_DOWNLOAD_AGAIN}")
        return self._readers[self._where[name]]


def _check_directory(path: Path) -> None:
    if not path.exists():
        raise ModelError(f"{path}: no such directory; give the folder that holds config.json and *.safetensors")
    if not path.is_dir():
        kind = _KINDS.get(path.suffix, "is a file")
        raise ModelError(f"{path}: {kind}; give the folder that holds config.json and *.safetensors")
    try:
        found = sorted(path.iterdir())
    except OSError as error:
        raise ModelError(f"{path}: cannot be listed ({error.strerror})") from error
    if not found:
        raise ModelError(f"{path}: the directory is empty; download a model into it")
    if any(file.name == "adapter_config.json" for file in found) and not (path / "config.json").exists():
        raise ModelError(f"{path}: this is an adapter (LoRA), not a model; give the folder of its base model")
    if not any(file.suffix == ".safetensors" for file in found):
        other = next((file for file in found if file.suffix in _KINDS), None)
        if other is not None:
            raise ModelError(f"{other}: {_KINDS[other.suffix]}; get the model as EXL2, GPTQ, AWQ or safetensors")
        raise ModelError(f"{path}: no *.safetensors file is there; {_DOWNLOAD_AGAIN}, weights and all")


_KINDS = {
    ".gguf": "is a GGUF file, which exlchat does not read",
    ".bin": "is a pickle, which can run code when read, so exlchat refuses it",
    ".pt": "is a pickle, which can run code when read, so exlchat refuses it",
    ".pth": "is a pickle, which can run code when read, so exlchat refuses it",
    ".incomplete": "is a download that did not finish",
    ".part": "is a download that did not finish",
    ".safetensors": "is one file of a model",
}


def _weight_files(path: Path, index: Mapping[str, Any]) -> list[Path]:
    """The files of the index where they are all there, else every `*.safetensors`.

    EXL2 directories hold a stale index, copied from the source model, so an index that names files that
    are not there proves nothing; numbered shards do.
    """
    weight_map = index.get("weight_map")
    if isinstance(weight_map, dict) and weight_map:
        indexed = sorted({path / str(name) for name in weight_map.values()})
        if all(file.parent == path and file.is_file() for file in indexed):
            return indexed
    files = sorted(file for file in path.glob("*.safetensors") if file.is_file())
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
    return files


def _open(file: Path) -> Any:
    try:
        # safetensors calls a file that may not be read "not found", so it is opened here first.
        with file.open("rb") as stream:
            beginning = stream.read(len(LFS_POINTER))
    except OSError as error:
        raise _unreadable(file, error) from error
    if beginning == LFS_POINTER:
        raise ModelError(f"{file}: is a Git LFS pointer, not the weights; run `git lfs pull` in {file.parent}")
    try:
        return safe_open(str(file), framework="pt", device="cpu")
    except (SafetensorError, ValueError, OSError) as error:
        size = file.stat().st_size if file.exists() else 0
        raise ModelError(
            f"{file}: not a whole safetensors file ({_first_line(error)}; it has {size:,} bytes); {_DOWNLOAD_AGAIN}"
        ) from error


def _unreadable(file: Path, error: OSError) -> ModelError:
    reason = (error.strerror or type(error).__name__).lower()
    return ModelError(f"{file}: cannot be read ({reason}); mend its permissions or {_DOWNLOAD_AGAIN}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
