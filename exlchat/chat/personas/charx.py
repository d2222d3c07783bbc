"""The `.charx` container: a zip file with `card.json` at its root. Nothing is ever unpacked to disk."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

from exlchat.chat.personas.bounded_json import LARGEST
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.plain_text import one_line

LARGEST_FILE = 256_000_000
"""Bytes; pictures and sounds lie in it too."""

MOST_ENTRIES = 10_000
CARD = "card.json"
_LARGEST_DIRECTORY = 4_000_000
_END = b"PK\x05\x06"
_END_SIZE = 22
_LONGEST_COMMENT = 65_535
_ENCRYPTED = 1
_LARGEST_RATIO = 200


def is_zip(data: bytes) -> bool:
    """Whether `data` looks like a zip file, also one that stands behind a picture."""
    return data.startswith((b"PK\x03\x04", _END)) or (data.startswith(b"\xff\xd8") and _end_of(data) is not None)


def card_of(data: bytes, where: str) -> tuple[bytes, int]:
    """The bytes of `card.json`, and how many other files there are.

    Raises:
        PersonaError: not a zip file, no card in it, or one of the tricks that archives are used for.
    """
    if len(data) > LARGEST_FILE:
        raise PersonaError(f"{where}: larger than {LARGEST_FILE // 10**6} MB, which no card is")
    _check_directory(data, where)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return _card(archive, where)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, ValueError, struct.error) as error:
        raise PersonaError(f"{where}: the archive is broken ({one_line(str(error), 80)})") from None


def write(card: bytes) -> bytes:
    """An archive that holds `card` as `card.json`; the same card gives the same bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(CARD), card, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _end_of(data: bytes) -> int | None:
    place = data.rfind(_END, max(0, len(data) - _END_SIZE - _LONGEST_COMMENT))
    return place if place >= 0 and place + _END_SIZE <= len(data) else None


def _check_directory(data: bytes, where: str) -> None:
    """Refuse a list of files that would take long to read, before it is read."""
    place = _end_of(data)
    if place is None:
        raise PersonaError(f"{where}: the archive is cut off")
    entries, size = struct.unpack_from("<HI", data, place + 10)
    large = data[max(place - 20, 0) : place].startswith(b"PK\x06\x07")
    if large or entries > MOST_ENTRIES or size > _LARGEST_DIRECTORY:
        raise PersonaError(f"{where}: the archive holds more than {MOST_ENTRIES:,} files, which no card does")


def _card(archive: zipfile.ZipFile, where: str) -> tuple[bytes, int]:
    members = archive.infolist()
    for member in members:
        parts = member.filename.replace("\\", "/").split("/")
        if ".." in parts or parts[0] == "" or ":" in parts[0] or "\0" in member.orig_filename:
            raise PersonaError(f"{where}: it names a file outside of itself ({one_line(member.filename, 60)!r})")
    cards = [member for member in members if member.filename == CARD]
    if len(cards) != 1:
        raise PersonaError(f"{where}: the archive has {'no' if not cards else 'more than one'} {CARD} at its root")
    card = cards[0]
    if card.flag_bits & _ENCRYPTED:
        raise PersonaError(f"{where}: {CARD} is encrypted; unpack it with its password and import the JSON file")
    if card.file_size > LARGEST or card.file_size > _LARGEST_RATIO * max(card.compress_size, 1_000):
        raise PersonaError(f"{where}: {CARD} grows to {card.file_size:,} bytes, which no card has")
    with archive.open(card) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise PersonaError(f"{where}: {CARD} is larger than it says")
    return content, sum(not member.is_dir() for member in members) - 1
