"""Pages of random numbers, small ones, and stores for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from exlchat.engine.kv.disk.file import PageLayout, PageName, PageTensor, StoredPage
from exlchat.engine.kv.disk.store import PageFiles
from exlchat.engine.kv.hash import page_hash

ROOT = bytes(range(16))
OTHER_ROOT = bytes(range(1, 17))
PLENTY = 10**9
WAIT = 30.0


def plain_layout(dtype: torch.dtype = torch.float16, row: int = 4) -> PageLayout:
    """Keys and values, 2 layers, 2 heads."""
    return PageLayout(tuple(PageTensor(name, dtype, 2, 2, row) for name in ("keys", "values")))


SMALL = plain_layout()
CODED = PageLayout(
    (
        PageTensor("keys", torch.uint8, 3, 1, 5),
        PageTensor("values", torch.uint8, 3, 1, 2),
        PageTensor("key_scales", torch.float16, 3, 1, 1),
        PageTensor("value_scales", torch.float32, 3, 1, 1),
    )
)
"""Its codes are an odd number of bytes for an odd number of tokens: narrow in front of wide would not be aligned."""


def make_page(ids: Sequence[int], parent: bytes = ROOT, layout: PageLayout = SMALL) -> StoredPage:
    """The same ids and parent always give the same tensors."""
    random = torch.Generator().manual_seed(int.from_bytes(page_hash(parent, ids)[:6]))
    tensors = (
        torch.randint(0, 256, tensor.shape(len(ids)), generator=random).to(tensor.dtype) for tensor in layout.tensors
    )
    return StoredPage(parent, tuple(ids), tuple(tensors))


def chain(count: int, first: int = 0, layout: PageLayout = SMALL) -> list[StoredPage]:
    """A conversation of whole pages."""
    pages, parent = [], ROOT
    for number in range(count):
        pages.append(make_page(range(first + 256 * number, first + 256 * (number + 1)), parent, layout))
        parent = hash_of(pages[-1])
    return pages


def hash_of(page: StoredPage) -> bytes:
    """Its own."""
    return page_hash(page.parent, page.ids)


def path_of(cache: Path, page: StoredPage, root: bytes = ROOT) -> Path:
    """Where it lies."""
    return cache / "pages" / root.hex() / str(PageName.of(page))


def same(one: StoredPage | None, other: StoredPage | None) -> bool:
    """Bit for bit."""
    if one is None or other is None:
        return one is other
    return (
        one.parent == other.parent
        and one.ids == other.ids
        and len(one.tensors) == len(other.tensors)
        and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))
    )


@contextmanager
def opened(
    cache: Path, root: bytes = ROOT, layout: PageLayout = SMALL, cap: int = PLENTY, queue_bytes: int = PLENTY
) -> Iterator[PageFiles]:
    """A store that has looked at its folder, closed at the end."""
    files = PageFiles(cache, root, layout, cap, queue_bytes=queue_bytes)
    try:
        assert files.flush(WAIT)
        yield files
    finally:
        assert files.close(WAIT)


def put_all(files: PageFiles, pages: Sequence[StoredPage]) -> None:
    """And wait until they are written."""
    for page in pages:
        assert files.put(page)
    assert files.flush(WAIT)
