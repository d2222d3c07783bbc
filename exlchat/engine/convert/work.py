"""What a conversion has done so far, in a folder: the same command goes on from there after any interruption.

No activations are kept. The text goes through the finished layers again, which takes seconds where rounding took
minutes, and the folder stays a few megabytes beside the finished layers.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from exlchat.engine.weights.files import read_object
from exlchat.llm.info import ModelError
from exlchat.untrusted.files import UntrustedFileError, read_bytes

JOB = "job.json"
_FORMAT = 1
_LARGEST_PART = 2**36
"""Bytes; a layer of the largest models has a sixteenth of it."""


class WorkFolder:
    """Parts by name, each there as a whole or not at all.

    Args:
        path: the folder; made where it is not there.
        job: what determines the results: options, hashes of source and text, versions.

    Raises:
        ModelError: it is another job's, in use, or cannot be written.
    """

    def __init__(self, path: Path, job: Mapping[str, str | int | float]) -> None:
        self.path, self.job = path, job
        wanted = {"format": _FORMAT, **job}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(path / "lock")
            self._lock.acquire(blocking=False)
            found = job_of(path)
            if found is None:
                if any(entry.name != "lock" and not entry.name.startswith(".") for entry in path.iterdir()):
                    raise ModelError(f"{path}: holds other files; name an empty or new folder with --work")
                _write(path / JOB, json.dumps(wanted, indent=2).encode() + b"\n")
        except Timeout:
            raise ModelError(
                f"{path}: another conversion is at work there; wait for it or name another --work"
            ) from None
        except OSError as error:
            raise _unwritten(path, error) from None
        if found is not None and found != wanted:
            names = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
            raise ModelError(
                f"{path}: belongs to another conversion ({', '.join(names)} differ); take the same options, name "
                "another folder with --work, or delete this one"
            )

    def part(self, name: str) -> dict[str, Tensor] | None:
        """A part that is there; `None` of one that is not.

        Raises:
            ModelError: it is damaged.
        """
        file = self._file(name)
        if not file.exists():
            return None
        try:
            return load(read_bytes(file, largest=_LARGEST_PART, kind="part"))
        except (SafetensorError, UntrustedFileError) as error:
            raise damaged(file, error.clause if isinstance(error, UntrustedFileError) else str(error)) from None

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def keep(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Raises `ModelError` where it cannot be written."""
        self._keep(name, save({key: tensor.contiguous() for key, tensor in tensors.items()}))

    def keep_text(self, name: str, text: str) -> None:
        """As `keep`."""
        self._keep(name, text.encode())

    def drop(self, folder: str) -> None:
        shutil.rmtree(self.path / folder, ignore_errors=True)

    def close(self) -> None:
        self._lock.release()

    def _keep(self, name: str, content: bytes) -> None:
        file = self._file(name)
        try:
            file.parent.mkdir(exist_ok=True)
            _write(file, content)
        except OSError as error:
            raise _unwritten(file, error) from None

    def _file(self, name: str) -> Path:
        return self.path / name


def job_of(path: Path) -> dict[str, Any] | None:
    """What a work folder was made for; `None` where it is none. Raises `ModelError` if that is damaged."""
    return read_object(path / JOB)


def damaged(file: Path, why: str) -> ModelError:
    return ModelError(f"{file}: is damaged ({why}); delete it, and it is made again")


def _unwritten(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path}: cannot be written ({(error.strerror or str(error)).lower()}); what is done is kept")


def _write(file: Path, content: bytes) -> None:
    """As a whole or not at all, whatever ends the program."""
    unfinished = file.with_name(f".{file.name}")
    with open(unfinished, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)
