"""What a built library was made from, kept as JSON beside it, so that it need not be run to know whether it fits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from exlchat.ext.errors import BuildError
from exlchat.ext.targets import OLDEST, Capability, covers
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

LIBRARY = "libexlchat_cuda.so"
RECORD = "build.json"
SOURCES = Path(__file__).resolve().parent / "csrc"

_LARGEST = 100_000
"""Bytes of a record."""
_KINDS = ("*.cu", "*.cuh", "*.h")


@dataclass(frozen=True, slots=True)
class BuildRecord:
    """One built library.

    Args:
        sources: `source_hash` at the time.
        targets: `Targets.names`.
        nvcc: the compiler's full version.
        size: bytes of the library; a file of another size was not written to its end.
    """

    sources: str
    targets: tuple[str, ...]
    nvcc: str
    size: int

    @property
    def cuda(self) -> tuple[int, int]:
        """The CUDA series that it was made with and whose runtime is inside, `(13, 0)`."""
        major, minor = self.nvcc.split(".")[:2]
        return int(major), int(minor)

    def runs_on(self, cards: Iterable[Capability], driver_cuda: tuple[int, int] | None) -> bool:
        """Whether every one of `cards` has code in it, and the driver is not older than the compiler's CUDA."""
        new_enough = driver_cuda is None or driver_cuda[0] >= self.cuda[0]
        return new_enough and all(covers(self.targets, card) for card in cards)


def write_record(folder: Path, record: BuildRecord) -> None:
    (folder / RECORD).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")


def read_record(folder: Path) -> BuildRecord | None:
    """The record of the library in `folder`; `None` when there is no library, or not a whole one."""
    try:
        fields = read_json_file(folder / RECORD, largest=_LARGEST, kind="record of a library")
        record = BuildRecord(**{**fields, "targets": tuple(fields["targets"])})
        # What was not written by `write_record` may hold anything, and is asked here what it will be asked later.
        record.runs_on((OLDEST,), record.cuda)
        return record if (folder / LIBRARY).stat().st_size == record.size else None
    except (UntrustedFileError, OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def compiled_files(sources: Path = SOURCES) -> list[Path]:
    """The files that are compiled each for itself, the largest first, so that none is left alone at the end.

    Raises:
        BuildError: there are none.
    """
    files = sorted(sources.glob("*.cu"), key=lambda path: (-path.stat().st_size, path.name))
    if not files:
        raise BuildError(f"{sources} holds no CUDA sources; install exlchat again")
    return files


def source_hash(flags: Iterable[str], sources: Path = SOURCES) -> str:
    """SHA-256 of every source and header with its name, and of the compiler's flags."""
    digest = hashlib.sha256("\0".join(flags).encode())
    for path in sorted(path for kind in _KINDS for path in sources.glob(kind)):
        content = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
