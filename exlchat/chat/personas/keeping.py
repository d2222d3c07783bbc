"""A persona of a stranger's file, into the user's folder: its own file, its picture and its files beside it."""

from __future__ import annotations

from pathlib import Path

from exlchat import paths
from exlchat.chat.personas import zip_members
from exlchat.chat.personas.card import KEPT
from exlchat.chat.personas.files import ImportedPersona
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.registry import files_beside, persona_id, picture_beside
from exlchat.chat.personas.toml_file import parse_persona, read_persona, write_text


def keep_persona(
    imported: ImportedPersona, name: str | None = None, *, force: bool = False
) -> tuple[Path, tuple[str, ...]]:
    """Writes the persona into the user's folder, its picture and files beside it.

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
            raise PersonaError(f"{path} is there already; choose another name, or personas import --force replaces it")
    return target


def _place(ident: str) -> Path:
    return paths.folders().personas / f"{ident}.toml"


def _same_card(target: Path, persona: Persona) -> bool:
    """Whether the persona that is replaced keeps the same card, so that what came with that belongs to both."""
    try:
        before = read_persona(target).foreign.get(KEPT) if target.is_file() else None
    except PersonaError:
        return False
    return before is not None and before == persona.foreign.get(KEPT)
