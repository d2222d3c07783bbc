"""Personas -> card files."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from exlchat.chat.personas import card_files, charx, png, zip_members
from exlchat.chat.personas.card import backfill, card_of_persona, version_of
from exlchat.chat.personas.card_beside import older_card
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.toml_file import write_text
from exlchat.chat.personas.zip_members import Member
from exlchat.untrusted.json_reader import write_json
from exlchat.untrusted.text import one_line

CardFile = Literal["png", "json", "charx", "toml"]
CARD_FILES: tuple[CardFile, ...] = get_args(CardFile)


@dataclass(frozen=True, slots=True)
class Exported:
    data: bytes
    notices: tuple[str, ...] = ()


def card_file(
    persona: Persona,
    kind: CardFile,
    *,
    version: Literal[2, 3] | None = None,
    picture: bytes | None = None,
    files: Sequence[Member] = (),
) -> Exported:
    """The persona as a file: a card, or a persona file of our own.

    Args:
        persona: any.
        kind: of file. A PNG file gets the card twice, as V2 and as V3, as the specification of V3 advises; if it came
            from one with both, each as it was but for what has changed.
        version: of the card in JSON and CHARX; `None` keeps that of the card it came from.
        picture: the PNG file to put the card into; `None` takes the card's main icon, else a grey one. In CHARX it is
            the icon of a card that has none of its own.
        files: that came with the card; PNG and CHARX hold them, JSON and TOML do not.

    Raises:
        PersonaError: the card kept with it, or the picture, cannot be read, or the file would be too large.
    """
    where = one_line(persona.name, 80)
    if kind == "png":
        exported = _png_file(persona, picture, files, where)
    elif kind == "charx":
        exported = _charx_file(persona, version or 3, picture, files, where)
    else:
        exported = Exported(write_text(persona).encode() if kind == "toml" else write_json(_card(persona, version)))
    if len(exported.data) > zip_members.LARGEST_FILE:
        raise PersonaError(f"{where}: would be larger than {zip_members.LARGEST_FILE // 10**6} MB, which no card is")
    return exported


def _png_file(persona: Persona, picture: bytes | None, files: Sequence[Member], where: str) -> Exported:
    own = card_files.pointing(card_of_persona(persona), files, card_files.IN_PNG)
    newest = own
    if version_of(own) != 3:
        newest = card_files.pointing(card_of_persona(persona, 3), files, card_files.IN_PNG)
    older = own if version_of(own) == 2 else older_card(persona) or backfill(newest)
    found = card_files.picture_of(own, files) or png.plain_picture()
    if picture is not None:
        found, problem = png.chunks(picture, "the picture")
        if problem is not None:
            raise PersonaError(problem)
    if sum(one.size for one in files) * 4 / 3 > zip_members.LARGEST_FILE:
        raise PersonaError(f"{where}: the files of the card are too large for a PNG file; export it as .charx")
    texts, notices = card_files.texts_of_files(files, where)
    clean = [chunk for chunk in found if not card_files.is_file_chunk(chunk)]
    return Exported(
        png.with_texts(clean, [(card_files.CHARA, _base64(older)), (card_files.CCV3, _base64(newest)), *texts]), notices
    )


def _charx_file(
    persona: Persona, version: Literal[2, 3], picture: bytes | None, files: Sequence[Member], where: str
) -> Exported:
    card = card_files.pointing(_card(persona, version), files, card_files.IN_CHARX)
    notices: tuple[str, ...] = ()
    if picture is not None:
        with_icon = card_files.with_icon(card, files, picture)
        if with_icon is not None:
            card, files = with_icon
        elif card_files.picture_of(card, files) is None:
            notices = (f"{where}: the picture is left out: the card has another icon",)
    return Exported(charx.write(json.dumps(card).encode(), files), notices)


def _card(persona: Persona, version: Literal[2, 3] | None) -> dict[str, Any]:
    older = older_card(persona) if version == 2 else None
    return older if older is not None and version_of(older) == 2 else card_of_persona(persona, version)


def _base64(card: dict[str, Any]) -> bytes:
    return base64.b64encode(json.dumps(card).encode())
