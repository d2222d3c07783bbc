"""Files of other programs -> personas. What a file is, its content says, not its name."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from exlchat.chat.personas import card_files, charx, png, zip_members
from exlchat.chat.personas.card import KEPT, newer_than_known, persona_of_card, version_of
from exlchat.chat.personas.card_beside import with_older
from exlchat.chat.personas.card_lorebook import lorebook_of, not_followed, patterns_not_used
from exlchat.chat.personas.card_values import read_json
from exlchat.chat.personas.lorebook import Lorebook
from exlchat.chat.personas.other_programs import is_webui_character, persona_of_aichat, persona_of_webui, yaml_value
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.toml_file import parse_persona
from exlchat.chat.personas.zip_members import Member
from exlchat.untrusted import files
from exlchat.untrusted.child import ChildError
from exlchat.untrusted.text import one_line

LARGEST_FILE = zip_members.LARGEST_FILE
_OTHER_PICTURES = (b"\xff\xd8", b"GIF8")


@dataclass(frozen=True, slots=True)
class ImportedPersona:
    """What a file held.

    Args:
        persona: made of it.
        kind: what it was, for people.
        notices: a line each about what could not be taken over or is damaged.
        picture: the PNG file without the card and its files; `None` for all other kinds.
        files: pictures and whatever else came with a card in PNG or CHARX.
    """

    persona: Persona
    kind: str
    notices: tuple[str, ...] = ()
    picture: bytes | None = None
    files: tuple[Member, ...] = ()


@dataclass(slots=True)
class _Reading:
    where: str
    notices: list[str] = field(default_factory=list)

    def say(self, line: str) -> None:
        self.notices.append(f"{self.where}: {line}")


def read_file(path: Path) -> ImportedPersona:
    """The persona in a card (PNG, JSON, CHARX), a text-generation-webui character, an aichat role or a persona file.

    Raises:
        PersonaError: the file cannot be read, or nothing in it is a persona.
    """
    return read_bytes(file_bytes(path), path.name, usual_name=path.stem)


def read_bytes(data: bytes, where: str, *, usual_name: str) -> ImportedPersona:
    """As `read_file`, for what a file called `where` holds.

    Raises:
        PersonaError: nothing in it is a persona.
    """
    where = one_line(where, 80)
    reading = _Reading(where)
    if data.startswith(png.SIGNATURE):
        imported = _of_png(data, reading)
    elif zip_members.is_zip(data):
        archive = charx.read(data, where)
        imported = replace(_of_json(read_json(archive.card, where), reading, "CHARX"), files=archive.files)
        reading.notices += archive.notices
    elif data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") or data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        imported = _of_json(read_json(data, where), reading, "JSON")
    elif data.startswith(_OTHER_PICTURES) or data[8:12] == b"WEBP":
        raise PersonaError(f"{where}: a picture without a character card in it; cards come in PNG files")
    else:
        imported = _of_text(data, reading, usual_name)
    if imported.persona.lorebook is not None:
        _note_patterns(imported.persona.lorebook, reading)
    return replace(imported, notices=tuple(reading.notices))


def _of_png(data: bytes, reading: _Reading) -> ImportedPersona:
    found, problem = png.chunks(data, reading.where)
    if problem is not None:
        reading.notices.append(problem)
    tried: list[str] = []
    for keyword in (card_files.CCV3, card_files.CHARA):
        read = _first_card(found, keyword, reading.where, tried)
        if read is None:
            continue
        reading.notices += [*read[1].notices, *tried]
        imported = read[1]
        if keyword == card_files.CCV3:
            imported = replace(imported, persona=_with_older(imported.persona, found, reading))
        files, notices = card_files.files_of_png(found, reading.where)
        reading.notices += notices
        return replace(imported, picture=_clean(found) if problem is None else None, files=files)
    if tried:
        raise PersonaError(tried[0])
    raise PersonaError(problem or f"{reading.where}: a picture without a character card in it")


def _first_card(
    found: Sequence[png.Chunk], keyword: str, where: str, tried: list[str]
) -> tuple[Any, ImportedPersona] | None:
    """The first card under a keyword that can be read, and what it is; lines about those before it go to `tried`."""
    for text in png.texts(found, keyword):
        reading = _Reading(where)
        try:
            card = _decoded(text, where)
            imported = _of_json(card, reading, "PNG")
        except PersonaError as error:
            tried.append(str(error))
        else:
            return card, replace(imported, notices=tuple(reading.notices))
    return None


def _with_older(persona: Persona, found: Sequence[png.Chunk], reading: _Reading) -> Persona:
    tried: list[str] = []
    read = _first_card(found, card_files.CHARA, reading.where, tried)
    reading.notices += tried
    if read is None or version_of(read[0]) in (None, 3) or KEPT not in persona.foreign:
        return persona
    both = with_older(persona, read[0])
    if both is None:
        reading.say("the card for older programs is too large to be kept as well; an export writes it anew")
    return both or persona


def _clean(found: Sequence[png.Chunk]) -> bytes:
    """The picture alone: what came in it is kept elsewhere, and may be changed there."""
    others = [one for one in found if not card_files.is_file_chunk(one)]
    return png.with_texts(
        [one for one in others if png.keyword_of(one).lower() not in (card_files.CCV3, card_files.CHARA)], []
    )


def _decoded(text: png.PngText, where: str) -> Any:
    where = f"{where} ({text.keyword})"
    if text.problem is not None:
        raise PersonaError(f"{where}: the card is damaged: {text.problem}")
    raw = b"".join(text.text.replace(b"\\r\\n", b"").split())
    if raw.startswith(b"{"):
        return read_json(text.text, where)
    try:
        return read_json(base64.b64decode(raw + b"=" * (-len(raw) % 4), validate=True), where)
    except binascii.Error:
        raise PersonaError(f"{where}: the card is damaged: not base64") from None


def _of_json(value: Any, reading: _Reading, container: str) -> ImportedPersona:
    if is_webui_character(value):
        return ImportedPersona(persona_of_webui(value), "text-generation-webui character")
    version = version_of(value)
    if isinstance(value, dict) and (value.get("spec") == "lorebook_v3" or (version is None and "entries" in value)):
        raise PersonaError(
            f"{reading.where}: a lorebook alone; import the persona that it is for with --lorebook {reading.where}"
        )
    persona = persona_of_card(value, reading.where)
    if newer_than_known(value):
        reading.say(
            f"a card of version {one_line(str(value['spec_version']), 20)}; what is newer than 3.0 is only kept"
        )
    data = value if version == 1 else value["data"]
    for line in not_followed(data.get("character_book"), decorated=version == 3):
        reading.say(line)
    return ImportedPersona(persona, f"character card V{version}, {container}")


def _of_text(data: bytes, reading: _Reading, usual_name: str) -> ImportedPersona:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PersonaError(f"{reading.where}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    ending = reading.where.rpartition(".")[2].lower()
    if ending == "toml":
        return ImportedPersona(parse_persona(text, reading.where, usual_name=usual_name), "persona")
    if ending in ("yaml", "yml"):
        value = yaml_value(text, reading.where)
        if not is_webui_character(value):
            raise PersonaError(f"{reading.where}: not a character: it has no name, or neither context nor greeting")
        return ImportedPersona(persona_of_webui(value), "text-generation-webui character")
    if ending == "md":
        persona, notices = persona_of_aichat(text, usual_name, reading.where)
        reading.notices += notices
        return ImportedPersona(persona, "aichat role")
    raise PersonaError(f"{reading.where}: not a card, a character, a role (.md) or a persona (.toml)")


def read_kept_files(path: Path) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """The files in the archive beside a persona, and a line about each kind of those that are left out.

    Raises:
        PersonaError: it cannot be read or is no archive.
    """
    data, where = file_bytes(path), one_line(str(path), 120)
    return zip_members.kept(data, zip_members.entries(data, where), where)


def read_lorebook(path: Path) -> tuple[Lorebook, tuple[str, ...]]:
    """The lorebook in a JSON file: of the third specification, of SillyTavern, or the bare object; and notices.

    Raises:
        PersonaError: the file cannot be read or holds none.
    """
    value = read_json(file_bytes(path), path.name)
    if isinstance(value, dict) and isinstance(value.get("data"), dict):
        value = value["data"]
    book = lorebook_of(value) if isinstance(value, dict) and "entries" in value else None
    reading = _Reading(one_line(path.name, 80))
    if book is None:
        raise PersonaError(f"{reading.where}: not a lorebook: it has no entries")
    if book.entries and not any(entry.content for entry in book.entries):
        raise PersonaError(f"{reading.where}: a lorebook of a form that is not known: no entry has a content")
    for line in not_followed(value, decorated=True):
        reading.say(line)
    _note_patterns(book, reading)
    return book, tuple(reading.notices)


def _note_patterns(lorebook: Lorebook, reading: _Reading) -> None:
    try:
        for line in patterns_not_used(lorebook):
            reading.say(line)
    except ChildError as error:
        raise PersonaError(f"{reading.where}: trying the patterns of its lorebook {error}") from None


def file_bytes(path: Path) -> bytes:
    """What a file holds, if it is one and no larger than any card.

    Raises:
        PersonaError: it cannot be read.
    """
    try:
        return files.read_bytes(path, largest=LARGEST_FILE, kind="card")
    except files.UntrustedFileError as error:
        raise PersonaError(str(error)) from None
