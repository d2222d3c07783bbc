"""Which personas there are, and what lies beside their files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.chat.personas.persona import Persona, PersonaError
from exlchat.chat.personas.toml_file import read_persona
from exlchat.chat.registry import Registry, RegistryEntry, id_for


@dataclass(frozen=True, slots=True)
class PersonaEntry(RegistryEntry):
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


PERSONAS = Registry(
    "persona",
    lambda ident, path, shipped: PersonaEntry(ident, path, shipped, read_persona(path)),
    PersonaError,
    own=lambda: paths.folders().personas,
    shipped=paths.shipped_personas,
    is_called=lambda one, wanted: one.persona.name.casefold() == wanted.strip().casefold(),
)


def picture_beside(persona: Path) -> Path:
    return persona.with_name(f"{persona.stem}.png")


def files_beside(persona: Path) -> Path:
    return persona.with_name(f"{persona.stem}.assets.zip")


def persona_id(name: str) -> str:
    return id_for(name, "persona")
