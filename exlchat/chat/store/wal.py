"""What SQLite reads of a WAL: the frames of transactions that came to their end, and no others.

The format is that of https://sqlite.org/fileformat2.html#the_write_ahead_log. Nothing here trusts a number of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MAGIC = b"SQLite format 3\x00"
_USUAL_PAGE = 4096
_HEADER, _FRAME_HEADER = 32, 24
_WAL_MAGIC = 0x377F0682
"""The lowest bit says whether the checksums read their words with the highest byte first."""
_MOST_PAGES = 1 << 28
"""Of a database of terabytes nobody has all pages; a number beyond is none."""


@dataclass
class Wal:
    """The pages in a WAL by their numbers, the newest of each.

    Args:
        committed: what SQLite reads.
        doubted: what it does not, of the same round: frames behind a wrong checksum, and those of a transaction that
            has not come to its end. Written into the file since the last checkpoint, they may hold what was said last.
        pages: how many the database has after the last commit; 0 if there is none here.
    """

    committed: dict[int, bytes] = field(default_factory=dict)
    doubted: dict[int, bytes] = field(default_factory=dict)
    pages: int = 0


def read_wal(wal: bytes, size: int) -> Wal:
    """The frames of a WAL, empty if there is none, of a database with pages of `size` bytes."""
    found = Wal()
    since: dict[int, bytes] = {}
    for number, page, pages, trusted in _frames(wal, size):
        since[number] = page
        if trusted and pages:
            found.committed |= since
            found.pages = pages
            since = {}
    found.doubted = since
    return found


def is_cut(head: bytes, size: int, wal: bytes) -> bool:
    """Whether a file of `size` bytes that begins with `head` is shorter than it says, and its WAL has not the rest."""
    page = page_size(head, wal)
    log = read_wal(wal, page)
    count = log.pages
    if not count:
        # The count of pages holds only where both counters of changes agree.
        if len(head) < 100 or not head.startswith(MAGIC) or head[24:28] != head[92:96]:
            return False
        (count,) = struct.unpack_from(">I", head, 28)
    here = size // page
    # No more than what the WAL can have is looked for: the count may be any.
    there = log.committed
    return count - here > len(there) or any(number not in there for number in range(here + 1, count + 1))


def page_size(base: bytes, wal: bytes) -> int:
    """Bytes of a page: as the file says, else as its WAL does, else as usual."""
    sizes = [_USUAL_PAGE]
    if len(wal) >= _HEADER:
        sizes.insert(0, struct.unpack_from(">I", wal, 8)[0])
    if base.startswith(MAGIC) and len(base) >= 18:
        size = struct.unpack_from(">H", base, 16)[0]
        sizes.insert(0, 65536 if size == 1 else size)
    return next(size for size in sizes if 512 <= size <= 65536 and size & (size - 1) == 0)


def _frames(wal: bytes, size: int) -> Iterator[tuple[int, bytes, int, bool]]:
    """Of each frame the number and content of its page, the pages of the database if it ends a transaction (else 0),
    and whether its checksum holds.

    Behind the first frame with a wrong one SQLite reads no more. What follows of the same round is read here all the
    same.
    """
    if len(wal) < _HEADER:
        return
    (magic,) = struct.unpack_from(">I", wal)
    order = ">" if magic & 1 else "<"
    salts = wal[16:24]
    sums = _checksum(wal[:24], (0, 0), order)
    trusted = magic & ~1 == _WAL_MAGIC and sums == struct.unpack_from(">2I", wal, 24)
    for place in range(_HEADER, len(wal) - size - _FRAME_HEADER + 1, size + _FRAME_HEADER):
        head, page = wal[place : place + _FRAME_HEADER], wal[place + _FRAME_HEADER : place + _FRAME_HEADER + size]
        number, pages = struct.unpack_from(">2I", head)
        trusted = trusted and head[8:16] == salts and number > 0
        if trusted:
            sums = _checksum(page, _checksum(head[:8], sums, order), order)
            trusted = sums == struct.unpack_from(">2I", head, 16)
        if trusted or (head[8:16] == salts and 0 < number < _MOST_PAGES):
            yield number, page, pages, trusted


def _checksum(data: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    one, two = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for place in range(0, len(words), 2):
        one = (one + words[place] + two) & 0xFFFFFFFF
        two = (two + words[place + 1] + one) & 0xFFFFFFFF
    return one, two
