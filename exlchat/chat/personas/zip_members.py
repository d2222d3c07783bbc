"""The files in a zip archive of strangers, as they are packed: checked, kept and written again, never unpacked to disk.

Members keep their packed bytes, so that an archive of megabytes is copied without packing anything anew, and what is
written is never larger than what was read. Their times, rights and comments are not kept.
"""

from __future__ import annotations

import io
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from exlchat.chat.personas.persona import PersonaError
from exlchat.untrusted.text import one_line

LARGEST_FILE = 256_000_000
"""Bytes of an archive, and of all that is in it."""

MOST_ENTRIES = 10_000
_LARGEST_DIRECTORY = 4_000_000
_LONGEST_NAME = 1_000
_LARGEST_RATIO = 200
_END = b"PK\x05\x06"
_END_SIZE = 22
_LONGEST_COMMENT = 65_535
_LOCAL = b"PK\x03\x04"
_LOCAL_SIZE = 30
_ENCRYPTED, _UTF8 = 1, 0x800
_DAY = 0x21
"""1 January 1980 as zip files write dates: the same files give the same archive."""

_PIECE = 16_384
"""Bytes unpacked at once; they grow to 17 MB at most."""

ODD_NAME = "oddly named"
NAMED_TWICE = "older ones of the same name"
BROKEN = "broken"
TOO_LARGE = f"larger than {LARGEST_FILE // 10**6} MB together"
GROWS = "they grow too much when unpacked"


@dataclass(frozen=True, slots=True)
class Member:
    """One file of an archive.

    Args:
        name: as the archive writes it, with its path.
        utf8: whether the archive says that the name is UTF-8; else it is code page 437, as far as one knows.
        deflated: whether `packed` is a raw deflate stream; else it is the content.
        checksum: CRC-32 of the content.
        size: bytes of the content.
        packed: what stands in the archive.
    """

    name: bytes
    utf8: bool
    deflated: bool
    checksum: int
    size: int
    packed: bytes

    @property
    def path(self) -> str:
        return self.name.decode("utf-8" if self.utf8 else "cp437")


def is_zip(data: bytes) -> bool:
    """Whether `data` looks like a zip file, also one that stands behind a JPEG picture."""
    return data.startswith((_LOCAL, _END)) or (data.startswith(b"\xff\xd8") and _end_of(data) is not None)


def entries(data: bytes, where: str) -> list[zipfile.ZipInfo]:
    """What the archive's directory lists.

    Raises:
        PersonaError: not a zip file, too large, or one of the tricks that archives are used for.
    """
    if len(data) > LARGEST_FILE:
        raise PersonaError(f"{where}: larger than {LARGEST_FILE // 10**6} MB, which no card is")
    count = _checked_count(data, where)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            found = archive.infolist()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, ValueError, struct.error) as error:
        raise PersonaError(f"{where}: the archive is broken ({one_line(str(error), 80)})") from None
    if len(found) != count:
        raise PersonaError(f"{where}: the archive is broken (it has {len(found)} files and says {count})")
    for one in found:
        if leads_out(one.orig_filename):
            raise PersonaError(f"{where}: it names a file outside of itself ({one_line(one.filename, 60)!r})")
    if sum(one.compress_size for one in found) > len(data):
        raise PersonaError(f"{where}: the archive is broken (the files in it lie over each other)")
    return found


def leads_out(path: str) -> bool:
    """Whether a path would leave the folder that it is unpacked to, on whatever system."""
    parts = path.replace("\\", "/").split("/")
    return ".." in parts or parts[0] == "" or ":" in parts[0] or "\0" in path


def is_odd(path: str) -> bool:
    return (
        not path or len(path) > _LONGEST_NAME or leads_out(path) or re.search(r"[\x00-\x1f\x7f-\x9f]", path) is not None
    )


def member(data: bytes, entry: zipfile.ZipInfo) -> Member | str:
    """The member that `entry` lists, or in a few words why it cannot be kept."""
    refused = _why_not(entry)
    if refused is not None:
        return refused
    begin = entry.header_offset + _LOCAL_SIZE
    header = data[entry.header_offset : begin]
    if len(header) < _LOCAL_SIZE or not header.startswith(_LOCAL):
        return BROKEN
    name_size, extra_size = struct.unpack_from("<HH", header, _LOCAL_SIZE - 4)
    utf8 = bool(entry.flag_bits & _UTF8)
    name = entry.orig_filename.encode("utf-8" if utf8 else "cp437")
    start = begin + name_size + extra_size
    packed = data[start : start + entry.compress_size]
    found = Member(name, utf8, entry.compress_type == zipfile.ZIP_DEFLATED, entry.CRC, entry.file_size, packed)
    # Programs that read from the beginning would see another name than those that read the directory.
    whole = data[begin : begin + name_size] == name and len(packed) == entry.compress_size
    return found if whole and _is_whole(found) else BROKEN


def kept(data: bytes, listed: Iterable[zipfile.ZipInfo], where: str) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """Those of the listed members that can be kept, and a line about each kind of the others."""
    found: dict[str, Member] = {}
    left_out = LeftOut(where)
    size = 0
    for entry in listed:
        one = TOO_LARGE if size + entry.file_size > LARGEST_FILE else member(data, entry)
        if one == BROKEN or isinstance(one, Member):
            # What was unpacked in vain took as long.
            size += entry.file_size
        if isinstance(one, str):
            left_out.add(one, entry.filename)
            continue
        # Programs that unpack one after the other are left with the last.
        if found.pop(one.path, None) is not None:
            left_out.add(NAMED_TWICE, one.path)
        found[one.path] = one
    return tuple(found.values()), left_out.lines()


class LeftOut:
    def __init__(self, where: str) -> None:
        self._where = where
        self._names: dict[str, list[str]] = {}

    def add(self, reason: str, name: str) -> None:
        self._names.setdefault(reason, []).append(name)

    def lines(self) -> tuple[str, ...]:
        """One line for each reason, with the name of the first file."""
        return tuple(
            f"{self._where}: {_files(len(names))} left out: {reason} ({one_line(names[0], 60)!r}"
            f"{', ...' if len(names) > 1 else ''})"
            for reason, names in self._names.items()
        )


def content(one: Member) -> bytes:
    """What the file holds; `one` has been checked."""
    return zlib.decompress(one.packed, -zlib.MAX_WBITS) if one.deflated else one.packed


def new_member(path: str, data: bytes, *, deflate: bool) -> Member:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    packed = packer.compress(data) + packer.flush() if deflate else data
    return Member(path.encode(), not path.isascii(), deflate, zlib.crc32(data), len(data), packed)


def write(members: Sequence[Member]) -> bytes:
    pieces: list[bytes] = []
    directory: list[bytes] = []
    place = 0
    for one in members:
        head = struct.pack(
            "<HHHHHIIIHH",
            20,
            _UTF8 if one.utf8 else 0,
            zipfile.ZIP_DEFLATED if one.deflated else zipfile.ZIP_STORED,
            0,
            _DAY,
            one.checksum,
            len(one.packed),
            one.size,
            len(one.name),
            0,
        )
        directory.append(b"PK\x01\x02\x14\x00" + head + struct.pack("<HHHII", 0, 0, 0, 0, place) + one.name)
        pieces += [_LOCAL + head + one.name, one.packed]
        place += len(pieces[-2]) + len(one.packed)
    listed = b"".join(directory)
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(listed), place, 0)
    return b"".join([*pieces, listed, _END, end])


def _files(count: int) -> str:
    return "1 file in it is" if count == 1 else f"{count} files in it are"


def _end_of(data: bytes) -> int | None:
    place = data.rfind(_END, max(0, len(data) - _END_SIZE - _LONGEST_COMMENT))
    return place if place >= 0 and place + _END_SIZE <= len(data) else None


def _checked_count(data: bytes, where: str) -> int:
    """How many files are listed; a list that would take long to read is refused before it is read."""
    place = _end_of(data)
    if place is None:
        raise PersonaError(f"{where}: the archive is cut off")
    count, size = struct.unpack_from("<HI", data, place + 10)
    large = data[max(place - 20, 0) : place].startswith(b"PK\x06\x07")
    if large or count > MOST_ENTRIES or size > _LARGEST_DIRECTORY:
        raise PersonaError(f"{where}: the archive holds more than {MOST_ENTRIES:,} files, which no card does")
    return int(count)


def _why_not(entry: zipfile.ZipInfo) -> str | None:
    if entry.flag_bits & _ENCRYPTED:
        return "encrypted"
    if stat.S_ISLNK(entry.external_attr >> 16):
        return "links to other files"
    if is_odd(entry.orig_filename):
        return ODD_NAME
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "packed in a way that is not read here"
    return GROWS if entry.file_size > _LARGEST_RATIO * max(entry.compress_size, 1_000) else None


def _is_whole(one: Member) -> bool:
    """Whether the packed bytes are the content that the archive promises, without holding all of it."""
    if not one.deflated:
        return len(one.packed) == one.size and zlib.crc32(one.packed) == one.checksum
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    size = checksum = 0
    try:
        for place in range(0, len(one.packed), _PIECE):
            piece = unpacker.decompress(one.packed[place : place + _PIECE], one.size - size + 1)
            size += len(piece)
            checksum = zlib.crc32(piece, checksum)
            if size > one.size or unpacker.eof:
                break
    except zlib.error:
        return False
    return unpacker.eof and size == one.size and checksum == one.checksum
