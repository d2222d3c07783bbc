"""A finished EXL2 folder: shards, index, configuration and the small files of the source, there as a whole or not."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from exlchat.engine.weights.files import read_bytes, read_object
from exlchat.engine.weights.folder import INDEX
from exlchat.llm.info import ModelError

SHARD_BYTES = 4 * 2**30
_VERSION = "0.3.2"
"""Of the original converter, whose format this is; readers compare it."""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx")
_CODE = (".py", ".so", ".sh")
_LARGEST_COPY = 64_000_000

Part = Callable[[], Mapping[str, Tensor]]


def check_new(folder: Path) -> None:
    """Raises `ModelError` unless the folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ModelError(f"{folder}: is there already; nothing is overwritten, so name a new folder")


def job_of(folder: Path) -> str | None:
    """The job that wrote a finished folder; `None` where there is none, or somebody else's."""
    try:
        config = read_object(folder / "config.json") or {}
    except ModelError:
        return None
    section = config.get("quantization_config")
    return section.get("job") if isinstance(section, dict) else None


def check_room(needed: Mapping[Path, int]) -> None:
    """Sees that disks have room.

    Args:
        needed: bytes in each folder, which need not be there yet.

    Raises:
        ModelError: one has not.
    """
    on_disk: dict[int, tuple[Path, int]] = {}
    for folder, size in needed.items():
        there = folder.absolute()
        while not there.exists():
            there = there.parent
        disk = there.stat().st_dev
        first, so_far = on_disk.get(disk, (there, 0))
        on_disk[disk] = first, so_far + size
    for there, size in on_disk.values():
        free = shutil.disk_usage(there).free
        if free < size:
            raise ModelError(
                f"{there}: {_size(size)} are needed and {_size(free)} free; make room or name another disk"
            )


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def quantization_config(
    bits: float, head_bits: int, *, rows: Sequence[int], dataset: str, job: str
) -> dict[str, object]:
    """As `config.json` holds it: the keys of the original converter, and who it was.

    Args:
        rows: of the calibration text, how many and how long.
        job: what `job_of` finds again.
    """
    from exlchat import __version__

    return {
        "quant_method": "exl2",
        "version": _VERSION,
        "bits": round(bits, 2),
        "head_bits": head_bits,
        "calibration": {"rows": rows[0], "length": rows[1], "dataset": dataset},
        "converter": f"exlchat {__version__}",
        "job": job,
    }


def write_folder(
    folder: Path, parts: Iterable[Part], config: Mapping[str, object], source: Path, *, shard_bytes: int = SHARD_BYTES
) -> None:
    """Writes a model under another name and renames it when all is on the disk.

    Args:
        parts: each gives tensors by their names in the file; no more than a shard of them is in memory.
        config: the whole content of `config.json`.
        source: the folder whose tokenizer, templates and licence are copied; never weights or code.

    Raises:
        ModelError: it cannot be written.
    """
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _write_shards(unfinished, parts, shard_bytes)
        for file in sorted(source.iterdir()):
            skipped = file.suffix in (*_WEIGHTS, *_CODE) or file.name in ("config.json", INDEX)
            if not skipped and file.is_file() and file.stat().st_size <= _LARGEST_COPY:
                (unfinished / file.name).write_bytes(read_bytes(file, largest=_LARGEST_COPY))
        (unfinished / "config.json").write_text(
            json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )
        # safetensors lets nobody else read what it writes, whatever the user's umask says.
        mode = (unfinished / "config.json").stat().st_mode & 0o777
        for file in unfinished.iterdir():
            file.chmod(mode)
            _to_disk(file)
        _to_disk(unfinished)
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
        _to_disk(folder.parent)
    except (OSError, SafetensorError) as error:
        # Of what the disk refuses, safetensors tells in an error of its own.
        why = (getattr(error, "strerror", None) or str(error)).lower()
        raise ModelError(
            f"{folder}: cannot be written ({why}); what is done is kept, the same command goes on"
        ) from None


def _write_shards(folder: Path, parts: Iterable[Part], shard_bytes: int) -> None:
    files: list[list[str]] = []
    waiting: dict[str, Tensor] = {}
    total = 0

    def flush() -> None:
        if waiting:
            # Its place among the others is known when all are written.
            save_file(waiting, folder / f"{len(files)}.part")
            files.append(list(waiting))
            waiting.clear()

    for part in parts:
        tensors = part()
        size = sum(tensor.nbytes for tensor in tensors.values())
        if waiting and sum(tensor.nbytes for tensor in waiting.values()) + size > shard_bytes:
            flush()
        waiting.update(tensors)
        total += size
    flush()
    names = ["output.safetensors"]
    if len(files) > 1:
        names = [f"output-{number:05d}-of-{len(files):05d}.safetensors" for number in range(1, len(files) + 1)]
        index = {tensor: name for name, tensors in zip(names, files, strict=True) for tensor in tensors}
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(index.items()))}
        (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    for number, name in enumerate(names):
        (folder / f"{number}.part").rename(folder / name)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
