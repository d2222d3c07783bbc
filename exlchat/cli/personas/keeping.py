"""Where a persona and what belongs to it lie: its file, its picture and the files of its card, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from exlchat import paths
from exlchat.chat.personas import png, zip_members
from exlchat.chat.personas.card import KEPT
from exlchat.chat.personas.card_writing import CardFile, Exported, card_file
from exlchat.chat.personas.files import Imported, file_bytes, read_kept_files
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.shelf import ShelvedPersona, files_beside, persona_id, picture_beside
from exlchat.chat.personas.toml_file import parse_persona, read_persona, write_text
from exlchat.chat.personas.zip_members import Member
from exlchat.untrusted.text import one_line


def keep(imported: Imported, name: str | None, *, force: bool) -> tuple[Path, tuple[str, ...]]:
    """Write the persona into the user's folder, its picture and files beside it.

    Args:
        imported: what a file held.
        name: to keep it under; `None` takes the persona's own.
        force: replace a persona of the same name, and what belonged to its card.

    Returns:
        The persona's file, and a line if something that belonged to the card before was removed.

    Raises:
        PersonaError: something is there already.
        FolderError: nothing can be written there.
    """
    ident = persona_id(imported.persona.name if name is None else name)
    target = _place(ident) if force else free_place(ident, with_picture=imported.picture is not None)
    text = write_text(imported.persona)
    # What cannot be read again is not written over anything.
    parse_persona(text, str(target))
    beside = {
        picture_beside(target): imported.picture,
        files_beside(target): zip_members.write(imported.files) if imported.files else None,
    }
    stale = [] if _same_card(target, imported.persona) else [path for path, data in beside.items() if data is None]
    removed = [path for path in stale if force and path.is_file()]
    # The persona comes last: should this break off, no persona is without what belongs to it.
    for path, data in beside.items():
        if data is not None:
            paths.atomic_write_bytes(path, data)
    paths.atomic_write(target, text)
    for path in removed:
        path.unlink(missing_ok=True)
    names = " and ".join(path.name for path in removed)
    return target, (f"{target.stem}: {names} of the card before it removed",) if removed else ()


def free_place(ident: str, *, with_picture: bool = False) -> Path:
    """The file of a new persona.

    Args:
        ident: of the persona.
        with_picture: whether a picture is going to lie beside it.

    Raises:
        PersonaError: the persona is there already, or files that would pass for those of its card.
    """
    target = _place(ident)
    taken = [target, files_beside(target), *([picture_beside(target)] if with_picture else [])]
    for path in taken:
        if path.exists():
            raise PersonaError(f"{path} is there already; choose another name, or replace it with import --force")
    return target


def copy_beside(one: ShelvedPersona, target: Path) -> None:
    """Put copies of the picture and the files of `one` beside `target`, the file of a copy of it.

    Raises:
        PersonaError: one of them cannot be read.
        FolderError: nothing can be written there.
    """
    for path, copied in ((one.picture, picture_beside(target)), (one.files, files_beside(target))):
        if path is not None:
            paths.atomic_write_bytes(copied, file_bytes(path))


def exported_file(
    one: ShelvedPersona, kind: CardFile, *, version: Literal[2, 3] | None, picture: Path | None
) -> Exported:
    """The persona as a file of this kind, with the picture and the files that lie beside it.

    Args:
        one: the persona.
        kind: of file.
        version: of the card, as for `card_file`.
        picture: to take in the place of that beside it.

    Raises:
        PersonaError: one of the files cannot be read or used.
    """
    if kind in ("json", "toml"):
        lost = () if one.files is None else (f"{one.files.name} is left out: only .charx and .png hold such files",)
        return Exported(card_file(one.persona, kind, version=version).data, lost)
    files, notices = ((), ()) if one.files is None else _kept_files(one.files)
    beside = one.picture if picture is None else picture
    data = None if beside is None else _picture(beside)
    exported = card_file(one.persona, kind, version=version, picture=data, files=files)
    return Exported(exported.data, (*notices, *exported.notices))


def _kept_files(path: Path) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    try:
        return read_kept_files(path)
    except PersonaError as error:
        raise PersonaError(f"{error}; import the card again with --force, or take that file away") from None


def _place(ident: str) -> Path:
    return paths.folders().personas / f"{ident}.toml"


def _same_card(target: Path, persona: Persona) -> bool:
    """Whether the persona that is replaced keeps the same card, so that what came with that belongs to both."""
    try:
        before = read_persona(target).foreign.get(KEPT) if target.is_file() else None
    except PersonaError:
        return False
    return before is not None and before == persona.foreign.get(KEPT)


def _picture(path: Path) -> bytes:
    data = file_bytes(path)
    _, problem = png.chunks(data, one_line(str(path), 120))
    if problem is not None:
        raise PersonaError(problem)
    return data
