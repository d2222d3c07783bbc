"""How fast pages of keys and values go to the disk and come back.

    .venv/bin/python benchmarks/page_files.py [--folder FOLDER] [--pages 32]

Pages of Llama 3.1 8B with a cache in q4: 9.4 MB each. "warm" reads what the system still holds in memory; "cold" asks
it to drop that first (posix_fadvise), which it does only with what is already on the disk. "memory reused" reads into
buffers that were used before, as torch's allocator of pinned memory gives them, so that the system need not clear them;
pinned memory itself is tried where there is a GPU.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path

import torch

from exlchat.engine.kv.disk.file import MakeBuffer, PageLayout, PageTensor, StoredPage
from exlchat.engine.kv.disk.store import PageFiles
from exlchat.engine.kv.hash import page_hash

LAYERS, HEADS, TOKENS = 32, 8, 256
LAYOUT = PageLayout(
    (
        PageTensor("keys", torch.uint8, LAYERS, HEADS, 64),
        PageTensor("values", torch.uint8, LAYERS, HEADS, 64),
        PageTensor("key_scales", torch.float16, LAYERS, HEADS, 4),
        PageTensor("value_scales", torch.float16, LAYERS, HEADS, 4),
    )
)
ROOT = bytes(16)
RUNS = 7
GIGABYTE = 1e9


def main() -> None:
    """Write once, read several times, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made (default: the system's)")
    parser.add_argument("--pages", type=int, default=32)
    arguments = parser.parse_args()
    pages = make_pages(arguments.pages)
    size = LAYOUT.file_bytes(TOKENS) * len(pages)
    print(f"{len(pages)} pages of {LAYOUT.file_bytes(TOKENS) / 1e6:.2f} MB, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        files = PageFiles(Path(folder), ROOT, LAYOUT, 10**12, queue_bytes=2 * size)
        hashes = [page_hash(page.parent, page.ids) for page in pages]
        seconds = timed(lambda: [files.put(page) for page in pages] and files.flush(600))
        report("write (with the queue)", size, seconds)
        report("put alone", size, timed(lambda: [files.put(page) for page in pages]))
        os.sync()
        read_all(files, hashes, "read, warm", size)
        read_all(files, hashes, "read, cold", size, before=partial(drop_from_memory, Path(folder)))
        print(f"counts: {files.counts}")
        files.close(10)
        reused = PageFiles(Path(folder), ROOT, LAYOUT, 10**12, make_buffer=Reused())
        read_all(reused, hashes, "read, warm, memory reused", size)
        reused.close(10)
        if torch.cuda.is_available():
            pinned: MakeBuffer = partial(torch.empty, dtype=torch.uint8, pin_memory=True)
            other = PageFiles(Path(folder), ROOT, LAYOUT, 10**12, make_buffer=pinned)
            read_all(other, hashes, "read, warm, pinned", size)
            other.close(10)
    data = bytes(10**8)
    report("BLAKE2b, one thread", len(data), timed(lambda: blake2b(data, digest_size=16).digest()))


class Reused:
    """Sixteen buffers in turn: more than are in use at a time."""

    def __init__(self) -> None:
        buffers = [torch.zeros(LAYOUT.file_bytes(TOKENS), dtype=torch.uint8) for _ in range(16)]
        self._next = itertools.cycle(buffers)

    def __call__(self, size: int) -> torch.Tensor:
        """The next one."""
        return next(self._next)[:size]


def make_pages(count: int) -> list[StoredPage]:
    """One conversation of random codes."""
    pages, parent = [], ROOT
    for number in range(count):
        ids = tuple(range(number * TOKENS, (number + 1) * TOKENS))
        tensors = (
            torch.randint(0, 255, tensor.shape(TOKENS), dtype=torch.uint8)
            if tensor.dtype == torch.uint8
            else torch.randn(tensor.shape(TOKENS)).to(tensor.dtype)
            for tensor in LAYOUT.tensors
        )
        pages.append(StoredPage(parent, ids, tuple(tensors)))
        parent = page_hash(parent, ids)
    return pages


def read_all(
    files: PageFiles, hashes: list[bytes], what: str, size: int, before: Callable[[], None] = lambda: None
) -> None:
    """Reads all pages several times, as the engine does: each is dropped after its use."""
    seconds = []
    for _ in range(RUNS):
        before()
        seconds.append(timed(lambda: count_pages(files, hashes)))
    report(what, size, statistics.median(seconds))


def count_pages(files: PageFiles, hashes: list[bytes]) -> None:
    """Stops the benchmark if a page is missing."""
    for page in files.read_many(hashes):
        if page is None:
            raise SystemExit("a page could not be read")


def drop_from_memory(folder: Path) -> None:
    """Asks the system to forget the files' contents."""
    for path in folder.rglob("*.safetensors"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def timed(action: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def report(what: str, size: int, seconds: float) -> None:
    """One line."""
    print(f"{what:26} {seconds * 1e3:8.1f} ms {size / seconds / GIGABYTE:8.2f} GB/s")


if __name__ == "__main__":
    main()
