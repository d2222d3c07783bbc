"""Which personas there are: the user's own files before those that come with the program."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.chat.file_ids import id_for, is_id
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.toml_file import read_persona
from exlchat.untrusted.text import one_line


@dataclass(frozen=True, slots=True)
class ShelvedPersona:
    """A persona and its file; `id` is the name of the file without its ending, and what is typed for it."""

    id: str
    path: Path
    shipped: bool
    persona: Persona

    @property
    def picture(self) -> Path | None:
        """The PNG file beside it, if there is one."""
        beside = picture_beside(self.path)
        return beside if not self.shipped and beside.is_file() else None

    @property
    def files(self) -> Path | None:
        """The archive beside it of the files that came with its card, if there is one."""
        beside = files_beside(self.path)
        return beside if not self.shipped and beside.is_file() else None


@dataclass(frozen=True, slots=True)
class Shelf:
    """All personas by id, sorted, the user's own first; and a line for each file that cannot be used."""

    personas: tuple[ShelvedPersona, ...]
    problems: tuple[str, ...] = ()


def picture_beside(persona: Path) -> Path:
    """Where the picture of the persona in this file lies."""
    return persona.with_name(f"{persona.stem}.png")


def files_beside(persona: Path) -> Path:
    """Where the files that came with the card of the persona in this file lie, in one archive."""
    return persona.with_name(f"{persona.stem}.assets.zip")


def all_personas(own: Path | None = None, shipped: Path | None = None) -> Shelf:
    """What lies in the user's folder, then the shipped ones whose ids are not taken."""
    own = paths.folders().personas if own is None else own
    shipped = paths.shipped_personas() if shipped is None else shipped
    found: dict[str, ShelvedPersona] = {}
    problems: list[str] = []
    for folder in (own, shipped):
        for file in sorted(folder.glob("*.toml")):
            if file.stem in found:
                continue
            try:
                found[file.stem] = ShelvedPersona(file.stem, file, folder == shipped, read_persona(file))
            except PersonaError as error:
                problems.append(str(error))
    return Shelf(tuple(found.values()), tuple(problems))


def persona_id(name: str) -> str:
    """The id of a persona that is called so."""
    return id_for(name, "persona")


def find_persona(wanted: str, own: Path | None = None, shipped: Path | None = None) -> ShelvedPersona:
    """The persona with this id, else the one with this name, in whatever case; or the one in a `.toml` file.

    Raises:
        PersonaError: there is none, or its file cannot be used.
    """
    own = paths.folders().personas if own is None else own
    shipped = paths.shipped_personas() if shipped is None else shipped
    if wanted.endswith(".toml"):
        path = paths.expanded(wanted)
        return ShelvedPersona(path.stem, path, False, read_persona(path))
    for folder in (own, shipped):
        file = folder / f"{wanted}.toml"
        # A name with slashes would lead out of the folder.
        if is_id(wanted) and file.is_file():
            return ShelvedPersona(wanted, file, folder == shipped, read_persona(file))
    shelf = all_personas(own, shipped)
    named = [one for one in shelf.personas if one.persona.name.casefold() == wanted.strip().casefold()]
    if named:
        return named[0]
    ids = [one.id for one in shelf.personas]
    nearest = difflib.get_close_matches(wanted, ids, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(ids)}"
    raise PersonaError(f"there is no persona {one_line(wanted, 60)!r}; {hint}")
