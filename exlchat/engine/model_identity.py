"""A name for what a model computes, so that keys and values of one are never taken for those of another."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

_SAMPLE = 4096
_SAMPLES = 64


def identify(config: bytes, files: Iterable[Path]) -> str:
    """A hash of `config.json`, and of every weight file its size, its header and samples from all over it.

    Reading whole weights would take seconds at every start. Files whose every sample is the same are taken for the same
    model; two finetunes differ everywhere.

    Args:
        config: of `config.json`.
        files: with weights.

    Raises:
        OSError: a file cannot be read.
    """
    digest = hashlib.blake2b(config, digest_size=16)
    for file in sorted(files):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            digest.update(stream.read(min(length, size)))
            for index in range(_SAMPLES):
                stream.seek(max(size - _SAMPLE, 0) * index // (_SAMPLES - 1), os.SEEK_SET)
                digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()
