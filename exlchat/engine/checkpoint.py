"""A model directory: its JSON files, its named tensors, and what is wrong with it. torch is imported for data only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from exlchat.engine.events import ModelError
from exlchat.engine.formats.methods import check_config, check_names
from exlchat.engine.model_folder import INDEX, check_folder, weight_files
from exlchat.engine.model_identity import identify
from exlchat.engine.tensor_names import TensorNames

if TYPE_CHECKING:
    from torch import Tensor

_DOWNLOAD_AGAIN = "download the model again"
_KEEP_ONE = "keep one model in the directory"
_QUANTIZED = (".q_weight", ".qweight")
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
        check_folder(path)
        self.config = self.read_json("config.json", required=True)
        check_config(self.config, str(path / "config.json"))
        self._indexed = _indexed(self.read_json(INDEX), path / INDEX)
        self._files = weight_files(path, self._indexed.values())
        self._headers = [_open(file) for file in self._files]
        self._data: dict[int, Any] = {}
        self._where: dict[str, int] = {}
        self._stored: dict[str, str] = {}
        self._tensor_names = TensorNames(self.config)
        for index, reader in enumerate(self._headers):
            for stored in list(reader.keys()):
                name = self._tensor_names.ours(stored)
                if name is None:
                    continue
                if name in self._where:
                    both = f"{self._files[self._where[name]].name} and {self._files[index].name}"
                    raise ModelError(f"{path}: {both} both hold {stored}, so these are two models; {_KEEP_ONE}")
                self._where[name], self._stored[name] = index, stored
        self._names = frozenset(self._where)
        check_names(self._where, str(path))
        self._check_unnamed()

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
        return self._names

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._files[self._where[name]]

    def name_in_file(self, name: str) -> str:
        """What the file calls a tensor, or would call one that is not there, for error lines."""
        return self._stored[name] if name in self._stored else self._tensor_names.theirs(name, self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """Without reading the data. Raises `ModelError` if there is no such tensor."""
        return tuple(self._header(name).get_slice(self._stored[name]).get_shape())

    def dtype(self, name: str) -> str:
        """As the file names it: `F16`, `BF16`, `F32`, `I32`, `I16` ..."""
        return str(self._header(name).get_slice(self._stored[name]).get_dtype())

    def tensor(self, name: str) -> Tensor:
        """A memory-mapped tensor on the CPU. Raises `ModelError` if there is none or it cannot be read."""
        index = self._index(name)
        if index not in self._data:
            self._data[index] = _open(self._files[index], "pt")
        try:
            tensor: Tensor = self._data[index].get_tensor(self._stored[name])
        except (SafetensorError, ValueError, OSError) as error:
            raise ModelError(
                f"{self.file_of(name)}: {self._stored[name]} cannot be read ({_first_line(error)})"
            ) from error
        return tensor

    def tensors(self, key: str, names: tuple[str, ...]) -> dict[str, Tensor]:
        """The tensors `key.name` that exist, by their short names."""
        return {name: self.tensor(f"{key}.{name}") for name in names if f"{key}.{name}" in self._where}

    def missing(self, name: str) -> str:
        """The beginning of an error line about a tensor that no file holds: where it should be, as far as is known."""
        shown = self.name_in_file(name)
        indexed = self.path / self._indexed.get(shown, "")
        if indexed in self._files:
            return f"{indexed}: the tensor {shown} is missing, which {INDEX} says is there"
        where = self._files[0] if len(self._files) == 1 else self.path
        return f"{where}: the tensor {shown} is missing, which config.json asks for"

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

    def _check_unnamed(self) -> None:
        """An index that came from the unquantized model must not pass over the quantized one."""
        if any(name.endswith(_QUANTIZED) for name in self._where):
            return
        for file in sorted(set(self.path.glob("*.safetensors")) - set(self._files)):
            names: list[str] = []
            # What is not needed may be broken.
            with suppress(ModelError):
                names = list(_open(file).keys())
            if any(name.endswith(_QUANTIZED) for name in names):
                raise ModelError(
                    f"{self.path}: {file.name} holds a quantized model, and {INDEX} names another one "
                    f"({self._files[0].name}); {_KEEP_ONE}"
                )

    def _index(self, name: str) -> int:
        """Of the file that holds a tensor."""
        if name not in self._where:
            raise ModelError(f"{self.missing(name)}; {_DOWNLOAD_AGAIN}")
        return self._where[name]

    def _header(self, name: str) -> Any:
        return self._headers[self._index(name)]


def _indexed(index: Mapping[str, Any], where: Path) -> dict[str, str]:
    """The file that an index names for each tensor.

    Raises:
        ModelError: it is no index.
    """
    weight_map = index.get("weight_map", {})
    if not isinstance(weight_map, dict):
        raise ModelError(f"{where}: weight_map must be an object that names a file for each tensor; {_DOWNLOAD_AGAIN}")
    for tensor, file in weight_map.items():
        if not isinstance(file, str):
            raise ModelError(f"{where}: weight_map must name a file for {tensor}; {_DOWNLOAD_AGAIN}")
    return weight_map


def _open(file: Path, framework: Literal["np", "pt"] = "np") -> Any:
    """A reader of a file: of its header only, or (`pt`, which takes a second or more to import) of its tensors too."""
    try:
        # safetensors calls a file that may not be read "not found", so it is opened here first.
        with file.open("rb") as stream:
            beginning = stream.read(len(LFS_POINTER))
    except OSError as error:
        raise _unreadable(file, error) from error
    if beginning == LFS_POINTER:
        raise ModelError(f"{file}: is a Git LFS pointer, not the weights; run `git lfs pull` in {file.parent}")
    try:
        return safe_open(str(file), framework=framework, device="cpu")
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
