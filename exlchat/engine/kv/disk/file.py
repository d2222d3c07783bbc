"""The file of one page of keys and values.

A safetensors file with a header of fixed size, so that the length of a file follows from its name. Everything in the
header but the ids and the digest follows from the name and the model too, and the ids from the hash in the name: a
reader makes the header again and wants the same bytes. So there is no offset, shape or size to believe in.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from exlchat.engine.kv.hash import HASH_BYTES, pack_ids, page_hash, unpack_ids
from exlchat.ext.kv_formats import PAGE_TOKENS

HEADER_BYTES = 8192
"""256 ids take 4096 of them in hexadecimal digits. Two memory pages, so that the data is aligned for any dtype."""

TEMPORARY_SUFFIX = ".tmp"
SUFFIX = ".safetensors"

_VERSION = "1"
_DTYPES = {torch.uint8: "U8", torch.float16: "F16", torch.float32: "F32"}
_NAME = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-([1-9][0-9]{0,2})" + re.escape(SUFFIX))

_MOST_TENSORS = 8
_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,31}")

MakeBuffer = Callable[[int], Tensor]
"""Gives uint8 `[at least so many bytes]` on the CPU, contiguous and aligned to 4 bytes."""


class PageDamagedError(Exception):
    """A file that is not the page its name says; the line says why."""


@dataclass(frozen=True, slots=True, eq=False)
class StoredPage:
    """Keys and values of up to 256 tokens.

    Args:
        parent: 16 bytes: the hash of the page before, or the root.
        ids: its token ids, 1 to 256.
        tensors: on the CPU, `[layers, kv_heads, len(ids), row]` each, as the `PageLayout` says.
    """

    parent: bytes
    ids: tuple[int, ...]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class PageName:
    """What the name of a file tells: the page's parent, its own hash (16 bytes each) and its number of ids."""

    parent: bytes
    hash: bytes
    tokens: int

    def __str__(self) -> str:
        return f"{self.parent.hex()}-{self.hash.hex()}-{self.tokens}{SUFFIX}"

    @classmethod
    def of(cls, page: StoredPage) -> PageName:
        """Raises `ValueError` when the parent is not 16 bytes or there are not 1 to 256 ids of at most 64 bits."""
        if len(page.parent) != HASH_BYTES or not 1 <= len(page.ids) <= PAGE_TOKENS:
            raise ValueError(f"a parent of {len(page.parent)} bytes and {len(page.ids)} ids are no page")
        return cls(page.parent, page_hash(page.parent, page.ids), len(page.ids))

    @classmethod
    def parse(cls, name: str) -> PageName | None:
        """`None` for any other file."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[3]) > PAGE_TOKENS:
            return None
        return cls(bytes.fromhex(match[1]), bytes.fromhex(match[2]), int(match[3]))


@dataclass(frozen=True, slots=True)
class PageTensor:
    """One tensor of every page: uint8, float16 or float32 `[layers, kv_heads, tokens, row]`."""

    name: str
    dtype: torch.dtype
    layers: int
    kv_heads: int
    row: int

    def shape(self, tokens: int) -> tuple[int, int, int, int]:
        return (self.layers, self.kv_heads, tokens, self.row)

    def bytes(self, tokens: int) -> int:
        return self.layers * self.kv_heads * tokens * self.row * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Which tensors a page has, in the order of `StoredPage.tensors`.

    Raises:
        ValueError: another dtype, a size below 1, or names or a number of tensors that do not suit the header.
    """

    tensors: tuple[PageTensor, ...]

    def __post_init__(self) -> None:
        names = {tensor.name for tensor in self.tensors}
        if not 1 <= len(names) == len(self.tensors) <= _MOST_TENSORS or not all(map(_PLAIN.fullmatch, names)):
            raise ValueError(f"a page has 1 to {_MOST_TENSORS} tensors with plain names of their own")
        if not all(tensor.dtype in _DTYPES and tensor.bytes(1) > 0 for tensor in self.tensors):
            raise ValueError("pages on disk are made of uint8, float16 and float32, and no tensor of them is empty")

    def file_bytes(self, tokens: int) -> int:
        return HEADER_BYTES + sum(tensor.bytes(tokens) for tensor in self.tensors)

    def places(self, tokens: int) -> dict[int, tuple[int, int]]:
        """Beginning and end of each tensor in the data, by its number and as they lie there: the widest elements
        first, so that all are aligned.
        """
        places, begin = {}, 0
        for index in sorted(range(len(self.tensors)), key=lambda index: -self.tensors[index].dtype.itemsize):
            end = begin + self.tensors[index].bytes(tokens)
            places[index] = (begin, end)
            begin = end
        return places

    def check(self, page: StoredPage) -> None:
        """Raises `ValueError` when the page's tensors are others."""
        found = [(tuple(tensor.shape), tensor.dtype) for tensor in page.tensors]
        wanted = [(tensor.shape(len(page.ids)), tensor.dtype) for tensor in self.tensors]
        if found != wanted:
            raise ValueError(f"a page has {found} where {wanted} belong")


def write_page(folder: Path, root: bytes, layout: PageLayout, page: StoredPage) -> PageName:
    """Writes one page under its name, at once: another process sees all of it or nothing.

    Raises:
        OSError: the folder or the disk does not take it; no part of it is left.
        ValueError: the page does not fit the layout.
    """
    layout.check(page)
    name = PageName.of(page)
    parts = [_bytes_of(page.tensors[index]) for index in layout.places(name.tokens)]
    digest = blake2b(digest_size=HASH_BYTES)
    for part in parts:
        digest.update(part)
    header = _header(root, name, layout, pack_ids(page.ids).hex(), digest.hexdigest())
    handle, temporary = tempfile.mkstemp(prefix=".", suffix=TEMPORARY_SUFFIX, dir=folder)
    try:
        # Without fsync: after a power cut the digest tells, and a page is only ever a shortcut.
        with os.fdopen(handle, "wb") as file:
            file.write(header)
            for part in parts:
                file.write(part)
        os.replace(temporary, folder / str(name))
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return name


def read_ids(folder: Path, root: bytes, layout: PageLayout, name: PageName) -> tuple[int, ...]:
    """The ids of a page, without its data. Raises `OSError` and `PageDamagedError` as `read_page` does."""
    header = bytearray(HEADER_BYTES)
    _read_into(folder / str(name), layout.file_bytes(name.tokens), memoryview(header))
    return _check_header(bytes(header), root, name, layout)[0]


def read_page(folder: Path, root: bytes, layout: PageLayout, name: PageName, make_buffer: MakeBuffer) -> StoredPage:
    """Reads one page and checks all of it. The tensors are views of one buffer.

    Raises:
        OSError: it cannot be read.
        PageDamagedError: it is not the page that its name and the layout say, under this root.
        RuntimeError, MemoryError: whatever `make_buffer` raises.
    """
    size = layout.file_bytes(name.tokens)
    _check_file(folder / str(name), size)
    buffer = make_buffer(size)[:size]
    view = buffer.numpy().data
    _read_into(folder / str(name), size, view)
    ids, digest = _check_header(bytes(view[:HEADER_BYTES]), root, name, layout)
    if blake2b(view[HEADER_BYTES:], digest_size=HASH_BYTES).hexdigest() != digest:
        raise PageDamagedError("its data is not what was written")
    data, places = buffer[HEADER_BYTES:], layout.places(name.tokens)
    tensors = (
        data[slice(*places[index])].view(tensor.dtype).view(tensor.shape(name.tokens))
        for index, tensor in enumerate(layout.tensors)
    )
    return StoredPage(name.parent, ids, tuple(tensors))


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data


def _check_file(path: Path, size: int) -> None:
    # Before opening: to open a pipe would wait for ever.
    info = os.lstat(path)
    if not stat.S_ISREG(info.st_mode):
        raise PageDamagedError("it is not a file")
    if info.st_size != size:
        raise PageDamagedError(f"it has {info.st_size:,} bytes where {size:,} belong")


def _read_into(path: Path, size: int, view: memoryview) -> None:
    _check_file(path, size)
    done = 0
    with path.open("rb", buffering=0) as file:
        while done < len(view):
            # An unbuffered file gives what the system gives, at most 2 GiB at once.
            got = file.readinto(view[done:])
            if not got:
                raise PageDamagedError("it has become shorter while it was read")
            done += got


def _header(root: bytes, name: PageName, layout: PageLayout, ids: str, digest: str) -> bytes:
    """The first `HEADER_BYTES` of a file; `ids` and `digest` in hexadecimal digits."""
    content: dict[str, object] = {
        "__metadata__": {
            "format": "exlchat page",
            "version": _VERSION,
            "root": root.hex(),
            "parent": name.parent.hex(),
            "ids": ids,
            "digest": digest,
        }
    }
    for index, place in layout.places(name.tokens).items():
        tensor = layout.tensors[index]
        content[tensor.name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": tensor.shape(name.tokens),
            "data_offsets": place,
        }
    length = HEADER_BYTES - 8
    text = json.dumps(content, separators=(",", ":")).encode().ljust(length)
    if len(text) > length:
        raise ValueError(f"a header of {len(text)} bytes does not fit into {length}")
    return length.to_bytes(8, "little") + text


def _check_header(header: bytes, root: bytes, name: PageName, layout: PageLayout) -> tuple[tuple[int, ...], str]:
    """The ids and the digest of the data. Raises `PageDamagedError` when a byte of the header is not as it must be."""
    try:
        metadata = json.loads(header[8:])["__metadata__"]
        packed, digest = str(metadata["ids"]), str(metadata["digest"])
        ids = unpack_ids(bytes.fromhex(packed))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PageDamagedError("its header is not that of a page") from None
    if len(ids) != name.tokens or page_hash(name.parent, ids) != name.hash:
        raise PageDamagedError("its name is that of another page")
    try:
        same = header == _header(root, name, layout, packed, digest)
    except ValueError:
        same = False
    if not same:
        raise PageDamagedError("it belongs to another model, or to another version of exlchat")
    return ids, digest
