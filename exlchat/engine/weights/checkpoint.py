"""A model directory: its JSON files, its named tensors, and what is wrong with it. torch is imported for data only.

It has a name for what it computes, so that keys and values of one model are never taken for those of another.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from safetensors import SafetensorError

from exlchat.engine.formats.methods import check_config, check_names
from exlchat.engine.model.tensor_names import TensorNames
from exlchat.engine.weights.files import LARGEST_JSON, SmallFiles, first_line, open_file, open_weights, read_bytes
from exlchat.engine.weights.folder import INDEX, check_folder, weight_files
from exlchat.llm.info import ModelError

if TYPE_CHECKING:
    from torch import Tensor


WHOLE_BYTES = 64 * 2**20
"""A file up to this size is hashed as a whole, which takes less than a tenth of a second."""

_SAMPLE = 4096
_SAMPLES = 64
_CHUNK = 2**20


def identify(config: bytes, files: Iterable[Path]) -> str:
    """A hash of `config.json` and of every weight file: of all of it up to 64 MB, else of marks that change with it.

    Reading whole weights would take seconds at every start. Of a larger file these are its size, its header, 64 samples
    of 4 KiB, its inode and the time of its last change. The samples alone would miss a change of a few rows; inode and
    time differ where nothing else does, for a copy of the same model too, which then only computes what it could have
    read. What is changed in place by somebody who sets the time back, between the samples, is not noticed.

    Args:
        config: of `config.json`.
        files: with weights.

    Raises:
        ModelError: a file cannot be opened.
    """
    digest = hashlib.blake2b(config, digest_size=16)
    for file in sorted(files):
        with open_file(file) as stream:
            info = os.fstat(stream.fileno())
            digest.update(f"{file.name} {info.st_size}".encode())
            if info.st_size <= WHOLE_BYTES:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
            else:
                digest.update(f" {info.st_mtime_ns} {info.st_ino}".encode())
                for part in _samples(stream, info.st_size):
                    digest.update(part)
    return digest.hexdigest()


def _samples(stream: BinaryIO, size: int) -> Iterable[bytes]:
    length = int.from_bytes(stream.read(8), "little")
    yield stream.read(min(length, size))
    for index in range(_SAMPLES):
        stream.seek((size - _SAMPLE) * index // (_SAMPLES - 1), os.SEEK_SET)
        yield stream.read(_SAMPLE)


_DOWNLOAD_AGAIN = "download the model again"
_KEEP_ONE = "keep one model in the directory"
_QUANTIZED = (".q_weight", ".qweight")


class Checkpoint(SmallFiles):
    """An opened model directory. Tensors are memory-mapped and read when they are asked for.

    Args:
        path: a directory with `config.json` and `*.safetensors` files.

    Raises:
        ModelError: the directory, a file or a header cannot be used.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        check_folder(path)
        self.config = self.read_json("config.json", required=True)
        check_config(self.config, str(path / "config.json"))
        self._indexed = _indexed(self.read_json(INDEX), path / INDEX)
        self._files = weight_files(path, self._indexed.values())
        self._headers = [open_weights(file) for file in self._files]
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
        return identify(read_bytes(self.path / "config.json", largest=LARGEST_JSON), self._files)

    @property
    def names(self) -> frozenset[str]:
        """All tensors of the decoder, as `tensor_names` calls them."""
        return self._names

    def file_of(self, name: str) -> Path:
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
            self._data[index] = open_weights(self._files[index], "pt")
        try:
            tensor: Tensor = self._data[index].get_tensor(self._stored[name])
        except (SafetensorError, ValueError, OSError, MemoryError) as error:
            raise ModelError(
                f"{self.file_of(name)}: {self._stored[name]} cannot be read ({first_line(error)})"
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

    def _check_unnamed(self) -> None:
        """An index that came from the unquantized model must not pass over the quantized one."""
        if any(name.endswith(_QUANTIZED) for name in self._where):
            return
        for file in sorted(set(self.path.glob("*.safetensors")) - set(self._files)):
            names: list[str] = []
            # What is not needed may be broken.
            with suppress(ModelError):
                names = list(open_weights(file).keys())
            if any(name.endswith(_QUANTIZED) for name in names):
                raise ModelError(
                    f"{self.path}: {file.name} holds a quantized model, and {INDEX} names another one "
                    f"({self._files[0].name}); {_KEEP_ONE}"
                )

    def _index(self, name: str) -> int:
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
