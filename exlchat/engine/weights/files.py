"""The files of a model folder, opened: each guarded and bounded, and what is wrong with one told in one line.

They come from strangers. A link may lead wherever it likes, as all do in the Hugging Face cache; what it leads to has
to be a plain file.
"""

from __future__ import annotations

import os
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

from safetensors import SafetensorError, safe_open

from exlchat.llm.info import ModelError
from exlchat.untrusted import files
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

LARGEST_JSON = 32_000_000
"""Bytes. The largest that is known, the index of a model of a trillion parameters, has 15 million."""
LARGEST_TEXT = 1_000_000
"""Bytes of a chat template; the longest that are known have some 50,000."""

_DOWNLOAD_AGAIN = "download the model again"
_LFS_POINTER = b"version https://git-lfs."
"""How the file begins that git leaves in the place of a large one."""


class SmallFiles:
    """A model directory's files beside the weights."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read_json(self, name: str, *, required: bool = False) -> dict[str, Any]:
        """A JSON object of the directory; empty if the file is absent and not required."""
        content = read_object(self.path / name)
        if content is None and required:
            raise ModelError(f"{self.path}: {name} is missing; a model directory needs it")
        return content or {}


def read_object(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; `None` if there is no such file.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    try:
        content = read_json_file(file, largest=LARGEST_JSON, kind=file.name, endless=True)
    except NoSuchFileError:
        return None
    except UntrustedFileError as error:
        raise _unusable(file, error) from None
    if not isinstance(content, dict):
        raise ModelError(f"{file}: holds a JSON {type(content).__name__} where an object belongs")
    return content


def read_text(file: Path) -> str | None:
    """A text; `None` if there is no such file. Raises `ModelError` if it cannot be read."""
    try:
        return files.read_text(file, largest=LARGEST_TEXT, kind="chat template")
    except NoSuchFileError:
        return None
    except UntrustedFileError as error:
        raise _unusable(file, error) from None


def read_bytes(file: Path, *, largest: int) -> bytes:
    """All of a file. Raises `ModelError` if there is none, if it cannot be read, or if git has not fetched it yet."""
    try:
        data = files.read_bytes(file, largest=largest, kind=file.name)
    except UntrustedFileError as error:
        raise _unusable(file, error) from None
    _check_is_no_pointer(data, file)
    return data


def open_file(file: Path) -> BufferedReader:
    """A file of any size. Raises `ModelError` if it cannot be opened."""
    try:
        return files.open_plain(file)
    except UntrustedFileError as error:
        raise _unusable(file, error) from None


def open_weights(file: Path, framework: Literal["np", "pt"] = "np") -> Any:
    """A reader of a file: of its header only, or (`pt`, which takes a second or more to import) of its tensors too.

    Raises:
        ModelError: no whole file of tensors, or there is no room to map it.
    """
    with open_file(file) as opened:
        _check_is_no_pointer(opened.read(len(_LFS_POINTER)), file)
        size = opened.seek(0, os.SEEK_END)
        try:
            # By its descriptor: under the name there may be something else by now.
            return safe_open(f"/proc/self/fd/{opened.fileno()}", framework=framework, device="cpu")
        except (MemoryError, RuntimeError):
            # torch, which maps it too, has no class of its own for that.
            raise ModelError(
                f"{file}: its {size:,} bytes cannot be mapped into memory; raise the limit of this process "
                "(ulimit -v), or take a smaller model"
            ) from None
        except (SafetensorError, ValueError, OSError) as error:
            raise ModelError(
                f"{file}: not a whole safetensors file ({first_line(error)}; it has {size:,} bytes); {_DOWNLOAD_AGAIN}"
            ) from error


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_is_no_pointer(data: bytes, file: Path) -> None:
    if data.startswith(_LFS_POINTER):
        raise ModelError(f"{file}: is a Git LFS pointer, not the file itself; run `git lfs pull` in {file.parent}")


def _unusable(file: Path, error: UntrustedFileError) -> ModelError:
    return ModelError(f"{file}: {error.clause} or {_DOWNLOAD_AGAIN}")
