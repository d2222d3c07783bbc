"""Brings the compiled library: shipped in the package, built before, or built now.

Builds lie in the cache folder that the caller names, one folder for each hash of sources, flags, cards and compiler:

    ext/<hash>/libexlchat_cuda.so, build.json
    ext/build.log       the compiler's output of the last build
    ext/lock            held while one is made
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from exlchat.ext.compiling import FLAGS, BuildProgress, OnProgress, compile_library
from exlchat.ext.driver import Driver, ask_driver
from exlchat.ext.errors import BuildError
from exlchat.ext.nvcc import Nvcc, find_nvcc
from exlchat.ext.record import (
    LIBRARY,
    SOURCES,
    BuildRecord,
    compiled_files,
    read_record,
    source_hash,
    write_record,
)
from exlchat.ext.targets import Targets, dotted, targets_for

SHIPPED = Path(__file__).resolve().parent / "lib"
"""Where a wheel holds the library that was built for it."""
KEPT = 3
"""Builds that stay in the cache: two cards or two checkouts need not evict each other."""

_UNFINISHED = "building-"
_WAIT = 0.5


def ensure_library(
    cache: Path,
    *,
    driver: Driver | None = None,
    sources: Path = SOURCES,
    shipped: Path = SHIPPED,
    on_progress: OnProgress | None = None,
) -> Path:
    """The library for the cards of this machine. Tens of seconds when it must be built, else milliseconds.

    Args:
        cache: the user's cache folder.
        driver: driver and cards; asked when not given.
        sources: the folder with the CUDA sources.
        shipped: the folder with a ready library; taken if it was made from `sources` and has code for every card.
        on_progress: told how far a build is. An exception it raises stops the build.

    Raises:
        BuildError: there is none and none can be built: why, and what to install.
    """
    driver = ask_driver() if driver is None else driver
    targets = targets_for(driver.cards)
    ready = ready_library(cache, driver, sources=sources, shipped=shipped)
    if ready is not None:
        if ready.parent != shipped:
            _mark_used(ready.parent)
        return ready
    try:
        nvcc = find_nvcc(driver.cards, driver_cuda=driver.cuda)
    except BuildError as error:
        too_new = _newer_than_driver(shipped, driver, sources)
        raise BuildError(f"{too_new}; to build it here instead: {error}") if too_new else error from None
    return build_library(cache, targets, nvcc, sources=sources, on_progress=on_progress)


def ready_library(cache: Path, driver: Driver, *, sources: Path = SOURCES, shipped: Path = SHIPPED) -> Path | None:
    """The library that `ensure_library` takes without building: shipped, or built before; `None` if there is none.

    Of several that would do, the one built or used last; no compiler is asked, because it may be gone since.
    """
    made_from = source_hash(FLAGS, sources)
    for folder in (shipped, *builds(cache)):
        if _fits(read_record(folder), made_from, driver):
            return folder / LIBRARY
    return None


def build_library(
    cache: Path,
    targets: Targets,
    nvcc: Nvcc,
    *,
    sources: Path = SOURCES,
    force: bool = False,
    on_progress: OnProgress | None = None,
) -> Path:
    """The library for `targets` from the cache, or built into it. Only one process builds at a time.

    `force` builds it even if it is there; a build that fails or is stopped then leaves the one that was.

    Raises:
        BuildError: nvcc rejects a source, or the cache folder cannot be written.
    """
    report = on_progress or _keep_quiet
    made_from = source_hash(FLAGS, sources)
    key = hashlib.sha256("\0".join((made_from, *targets.names, nvcc.version)).encode()).hexdigest()[:16]
    root = cache / "ext"
    folder = root / key
    if force or read_record(folder) is None:
        try:
            root.mkdir(parents=True, exist_ok=True)
            with _locked(root, report):
                if force or read_record(folder) is None:
                    _build(folder, targets, nvcc, sources, made_from=made_from, report=report)
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            raise BuildError(
                f"{error.filename or root} cannot be used ({reason}); mend its permissions or free space there"
            ) from None
    _mark_used(folder)
    _prune(cache, keep=folder)
    return folder / LIBRARY


def builds(cache: Path) -> list[Path]:
    """The folders of finished builds, the one used last first."""
    used = dict[Path, float]()
    for path in (cache / "ext").glob("*/"):
        # Another process may prune at this moment.
        with suppress(OSError):
            used[path] = path.stat().st_mtime
    finished = [path for path in used if not path.name.startswith(_UNFINISHED)]
    return sorted(finished, key=lambda path: used[path], reverse=True)


def _build(folder: Path, targets: Targets, nvcc: Nvcc, sources: Path, *, made_from: str, report: OnProgress) -> None:
    """Compiles beside `folder` and renames at the end, so that `folder` is whole or not there."""
    root = folder.parent
    for leftover in root.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=root))
    try:
        library = work / LIBRARY
        compile_library(nvcc, compiled_files(sources), targets, library, log=root / "build.log", on_progress=report)
        for path in work.iterdir():
            if path != library:
                path.unlink()
        size = library.stat().st_size
        write_record(work, BuildRecord(made_from, targets.names, nvcc.version, size))
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def _locked(root: Path, report: OnProgress) -> Iterator[None]:
    lock = FileLock(root / "lock")
    while True:
        try:
            lock.acquire(timeout=_WAIT)
            break
        except Timeout:
            report(BuildProgress("waiting for another exlchat that builds the CUDA kernels", 0, 1, waiting=True))
    try:
        yield
    finally:
        lock.release()


def _mark_used(folder: Path) -> None:
    # A cache on a read-only disk still serves.
    with suppress(OSError):
        os.utime(folder)


def _prune(cache: Path, keep: Path) -> None:
    """Removes all but the `KEPT` builds used last. A process that has one loaded keeps its file until it ends."""
    others = [folder for folder in builds(cache) if folder != keep]
    for folder in others[KEPT - 1 :]:
        shutil.rmtree(folder, ignore_errors=True)


def _fits(record: BuildRecord | None, made_from: str, driver: Driver) -> bool:
    return record is not None and record.sources == made_from and record.runs_on(driver.cards, driver.cuda)


def _newer_than_driver(shipped: Path, driver: Driver, sources: Path) -> str | None:
    """The reason when the shipped library would serve if only the driver were newer."""
    record = read_record(shipped)
    if (
        record is None
        or driver.cuda is None
        or not _fits(record, source_hash(FLAGS, sources), Driver(None, driver.cards))
    ):
        return None
    return (
        f"the CUDA kernels in this package were made with CUDA {dotted(record.cuda)}, and the driver here speaks "
        f"CUDA {dotted(driver.cuda)}: update the driver"
    )


def _keep_quiet(_progress: BuildProgress) -> None:
    """For callers that do not want to be told."""
