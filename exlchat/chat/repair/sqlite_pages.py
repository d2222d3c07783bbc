"""The rows of a SQLite file that SQLite no longer reads: every page is looked at by itself, whatever leads to it.

And what SQLite reads of a WAL: the frames of transactions that came to their end, and no others. The formats are those
of https://sqlite.org/fileformat2.html. Nothing here trusts a number of a file: a page may be cut or hold anything.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from exlchat.chat.store.schema import Value

MAGIC = b"SQLite format 3\x00"
_USUAL_PAGE = 4096
_HEADER, _FRAME_HEADER = 32, 24
_WAL_MAGIC = 0x377F0682
"""The lowest bit says whether the checksums read their words with the highest byte first."""
_MOST_PAGES = 1 << 28
"""Of a database of terabytes nobody has all pages; a number beyond is none."""
_MOST_COLUMNS = 64
_INDEX_INTERIOR, _INDEX_LEAF, _TABLE_LEAF = 2, 10, 13
_NUMBERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
"""Bytes of whole numbers by their serial type."""


@dataclass(frozen=True, slots=True)
class PageRecord:
    """A row of a table, or an entry of an index.

    Args:
        rowid: of a table's row; `None` of an index.
        values: as far as they could be read.
        whole: whether that is all of them.
    """

    rowid: int | None
    values: tuple[Value, ...]
    whole: bool


class Pages:
    """A database file with what its WAL has over it.

    Args:
        base: the file.
        wal: the file beside it, empty if there is none.
    """

    def __init__(self, base: bytes, wal: bytes) -> None:
        self._size = page_size(base, wal)
        self._base = base
        log = read_wal(wal, self._size)
        self._over, self._doubted = log.committed, log.doubted
        # Not all numbers up to the largest: a damaged WAL may name any.
        self._there = dict.fromkeys(range(1, -(-len(base) // self._size) + 1)) | dict.fromkeys(self._over)
        self._last = max([*self._there, *self._doubted], default=0)
        self._most = len(base) + len(wal)
        # Of a file that was cut, pages lead to others that are gone.
        head = self._over.get(1, base)[:100]
        (count,) = struct.unpack_from(">I", head, 28) if head.startswith(MAGIC) and len(head) == 100 else (0,)
        self._once = max(self._last, count)
        self._free = self._freelist()

    def records(self) -> Iterator[PageRecord]:
        """Of all pages that are in use, in no order that means anything."""
        for number in self._there:
            if number not in self._free:
                yield from self._records_of(number, doubted=False)
        for number in self._doubted:
            yield from self._records_of(number, doubted=True)

    def _page(self, number: int) -> bytes:
        """Always a whole page: what was cut off is zeros."""
        return self._rest(number).ljust(self._size, b"\0")

    def _rest(self, number: int, *, doubted: bool = False) -> bytes:
        """What is there of a page. What is `doubted` replaces others only where asked for."""
        found = self._doubted.get(number) if doubted else None
        found = self._over.get(number) if found is None else found
        if found is None:
            found = self._base[(number - 1) * self._size : number * self._size]
        return found

    def _freelist(self) -> frozenset[int]:
        """Pages that hold what was removed, as far as the list of them can be followed."""
        head = self._page(1)
        free: set[int] = set()
        trunk = struct.unpack_from(">I", head, 32)[0] if head.startswith(MAGIC) else 0
        while 1 < trunk <= self._last and trunk not in free:
            free.add(trunk)
            page = self._page(trunk)
            trunk, leaves = struct.unpack_from(">II", page)
            if leaves > self._size // 4 - 2:
                break
            free.update(struct.unpack_from(f">{leaves}I", page, 8))
        return frozenset(free)

    def _records_of(self, number: int, *, doubted: bool) -> Iterator[PageRecord]:
        rest = self._rest(number, doubted=doubted)
        page = rest.ljust(self._size, b"\0")
        start = 100 if number == 1 else 0
        kind = page[start]
        if kind not in (_INDEX_INTERIOR, _INDEX_LEAF, _TABLE_LEAF):
            return
        head = start + (12 if kind == _INDEX_INTERIOR else 8)
        (cells,) = struct.unpack_from(">H", page, start + 3)
        for cell in range(min(cells, (self._size - head) // 2)):
            (place,) = struct.unpack_from(">H", page, head + 2 * cell)
            # What was cut off is no zeros of a text.
            record = self._record(rest, place, kind, doubted=doubted)
            if record is not None:
                yield record

    def _record(self, page: bytes, place: int, kind: int, *, doubted: bool) -> PageRecord | None:
        try:
            if kind == _INDEX_INTERIOR:
                place += 4
            length, place = _varint(page, place)
            rowid: int | None = None
            if kind == _TABLE_LEAF:
                rowid, place = _varint(page, place)
            if length > self._most:
                return None
            content = self._payload(page, place, length, table=kind == _TABLE_LEAF, doubted=doubted)
            values, whole = _values(content, length)
        except (IndexError, struct.error):
            return None
        return PageRecord(rowid, values, whole)

    def _payload(self, page: bytes, place: int, length: int, *, table: bool, doubted: bool) -> bytes:
        """What of a payload of `length` bytes can be read; the rest of a long one lies in pages of its own.

        `page` may be shorter than a page, where the file was cut.
        """
        least = (self._size - 12) * 32 // 255 - 23
        most = self._size - 35 if table else (self._size - 12) * 64 // 255 - 23
        if length <= most:
            return page[place : place + length]
        here = least + (length - least) % (self._size - 4)
        here = here if here <= most else least
        if place + here + 4 > len(page):
            return page[place : place + here]
        (following,) = struct.unpack_from(">I", page, place + here)
        pieces = [page[place : place + here]]
        left = length - here
        seen: set[int] = set()
        while left > 0 and 1 < following <= self._last and following not in seen:
            seen.add(following)
            more = self._rest(following, doubted=doubted)
            taken = min(left, self._size - 4)
            if len(more) < 4:
                break
            (following,) = struct.unpack_from(">I", more)
            left -= taken
            if not (1 < following <= self._once if left else following == 0):
                # A page that leads nowhere, or on behind the end, holds something else by now.
                break
            pieces.append(more[4 : 4 + taken])
            if len(more) < 4 + taken:
                # Where the file was cut.
                break
        return b"".join(pieces)


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """A number of 1 to 9 bytes and the place behind it."""
    number = 0
    for count in range(8):
        byte = data[place + count]
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, place + count + 1
    number = number << 8 | data[place + 8]
    return (number - (1 << 64) if number >> 63 else number), place + 9


def _values(content: bytes, length: int) -> tuple[tuple[Value, ...], bool]:
    """The values of a record of `length` bytes, of which `content` is there; the last text may be cut."""
    size, place = _varint(content, 0)
    kinds: list[int] = []
    while place < size and len(kinds) < _MOST_COLUMNS:
        kind, place = _varint(content, place)
        kinds.append(kind)
    if place != size or size + sum(map(_width, kinds)) != length:
        return (), False
    values: list[Value] = []
    for kind in kinds:
        raw = content[place : place + _width(kind)]
        place += _width(kind)
        if len(raw) < _width(kind) and not (raw and _is_text(kind)):
            return tuple(values), False
        if len(raw) < _width(kind):
            # Half a character at its end is none.
            values.append(raw.decode("utf-8", "replace").rstrip("\ufffd"))
            return tuple(values), False
        values.append(_value(kind, raw))
    return tuple(values), True


def _width(kind: int) -> int:
    return (kind - 12) // 2 if kind >= 12 else 8 if kind == 7 else _NUMBERS.get(kind, 0)


def _is_text(kind: int) -> bool:
    return kind >= 13 and kind % 2 == 1


def _value(kind: int, raw: bytes) -> Value:
    if kind >= 12:
        return raw.decode("utf-8", "replace") if kind % 2 else raw
    if kind == 7:
        return float(struct.unpack(">d", raw)[0])
    if kind in (8, 9):
        return kind - 8
    return int.from_bytes(raw, "big", signed=True) if kind in _NUMBERS else None


def known(values: Sequence[Value], place: int) -> Value:
    """The value at a place of a record that may be shorter."""
    return values[place] if place < len(values) else None


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
