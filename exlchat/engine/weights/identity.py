"""A name for what a model computes, so that keys and values of one are never taken for those of another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from exlchat.engine.weights.files import open_file

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
