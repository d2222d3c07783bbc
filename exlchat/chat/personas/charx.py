"""The `.charx` container: a zip file with `card.json` at its root, and pictures and other files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exlchat.chat.personas import zip_members
from exlchat.chat.personas.card_values import LARGEST
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.zip_members import Member

CARD = "card.json"


@dataclass(frozen=True, slots=True)
class Charx:
    """What a CHARX file holds: the bytes of `card.json`, the other files, and a line about each kind left out."""

    card: bytes
    files: tuple[Member, ...] = ()
    notices: tuple[str, ...] = ()


def read(data: bytes, where: str) -> Charx:
    """The card and the other files.

    Raises:
        PersonaError: not a zip file, no card in it, or one of the tricks that archives are used for.
    """
    listed = zip_members.entries(data, where)
    cards = [one for one in listed if one.filename == CARD]
    if len(cards) != 1:
        raise PersonaError(f"{where}: the archive has {'no' if not cards else 'more than one'} {CARD} at its root")
    if cards[0].file_size > LARGEST:
        raise PersonaError(f"{where}: {CARD} grows to {cards[0].file_size:,} bytes, which no card has")
    card = zip_members.member(data, cards[0])
    if card == "encrypted":
        raise PersonaError(f"{where}: {CARD} is encrypted; unpack it with its password and import the JSON file")
    if isinstance(card, str):
        raise PersonaError(f"{where}: {CARD} cannot be read: {card}")
    files, notices = zip_members.kept(data, (one for one in listed if one is not cards[0]), where)
    if data.startswith(b"\xff\xd8"):
        notices = (f"{where}: the picture in front of the archive is not kept; what is in the archive is", *notices)
    return Charx(zip_members.content(card), files, notices)


def write(card: bytes, files: Sequence[Member] = ()) -> bytes:
    """An archive that holds `card` as `card.json` before `files`; the same ones give the same bytes."""
    return zip_members.write([zip_members.new_member(CARD, card, deflate=True), *files])
