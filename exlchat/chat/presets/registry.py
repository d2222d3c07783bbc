"""Which presets there are, and keeping one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.presets.toml_file import parse_preset, read_preset, write_text
from exlchat.chat.registry import Registry, RegistryEntry, id_for
from exlchat.untrusted.text import one_line


@dataclass(frozen=True, slots=True)
class PresetEntry(RegistryEntry):
    preset: SamplingPreset

    @property
    def source(self) -> str:
        return f"preset {one_line(self.id, 40)}"


PRESETS = Registry(
    "preset",
    lambda ident, path, shipped: PresetEntry(ident, path, shipped, read_preset(path)),
    SamplingPresetError,
    own=lambda: paths.folders().presets,
    shipped=paths.shipped_presets,
    # As an import would have named it.
    other_ids=lambda wanted: (id_for(wanted, ""),),
)


def place_for(name: str) -> Path:
    return paths.folders().presets / f"{id_for(name, 'preset')}.toml"


def keep_preset(preset: SamplingPreset, target: Path) -> None:
    """Write a preset into a file, in the place of one that is there.

    Raises:
        SamplingPresetError: it could not be read again; nothing was written.
        FolderError: it cannot be written.
    """
    text = write_text(preset)
    # What cannot be read again is not written over anything.
    parse_preset(text, str(target))
    paths.atomic_write(target, text)
