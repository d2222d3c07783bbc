"""Which presets there are, the user's own files before those that come with the program; and keeping one."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.chat.file_ids import id_for, is_id
from exlchat.chat.presets.preset import SamplingPreset, SamplingPresetError
from exlchat.chat.presets.toml_file import parse_preset, read_preset, write_text
from exlchat.untrusted.text import one_line


@dataclass(frozen=True, slots=True)
class ShelvedPreset:
    """A preset and its file; `id` is the name of the file without its ending, and what is typed for it."""

    id: str
    path: Path
    shipped: bool
    preset: SamplingPreset

    @property
    def source(self) -> str:
        """What the values that it wishes for come from, for people."""
        return f"preset {one_line(self.id, 40)}"


@dataclass(frozen=True, slots=True)
class PresetShelf:
    """All presets, the user's own first, by id; and a line for each file that cannot be used."""

    presets: tuple[ShelvedPreset, ...]
    problems: tuple[str, ...] = ()


def all_presets(own: Path | None = None, shipped: Path | None = None) -> PresetShelf:
    """What lies in the user's folder, then the shipped ones whose ids are not taken."""
    own = paths.folders().presets if own is None else own
    shipped = paths.shipped_presets() if shipped is None else shipped
    found: dict[str, ShelvedPreset] = {}
    problems: list[str] = []
    for folder in (own, shipped):
        for file in sorted(folder.glob("*.toml")):
            if file.stem in found:
                continue
            try:
                found[file.stem] = ShelvedPreset(file.stem, file, folder == shipped, read_preset(file))
            except SamplingPresetError as error:
                problems.append(str(error))
    return PresetShelf(tuple(found.values()), tuple(problems))


def place_for(name: str) -> Path:
    """The file in the user's folder for a preset of any name."""
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


def find_preset(wanted: str, own: Path | None = None, shipped: Path | None = None) -> ShelvedPreset:
    """The preset with this id, as typed or as an import would have named it; or the one in a `.toml` file.

    Raises:
        SamplingPresetError: there is none, or its file cannot be used.
    """
    own = paths.folders().presets if own is None else own
    shipped = paths.shipped_presets() if shipped is None else shipped
    if wanted.endswith(".toml"):
        path = paths.expanded(wanted)
        return ShelvedPreset(path.stem, path, False, read_preset(path))
    for ident in (wanted, id_for(wanted, "")):
        for folder in (own, shipped):
            file = folder / f"{ident}.toml"
            # A name with slashes would lead out of the folder.
            if is_id(ident) and file.is_file():
                return ShelvedPreset(ident, file, folder == shipped, read_preset(file))
    ids = [one.id for one in all_presets(own, shipped).presets]
    nearest = difflib.get_close_matches(wanted.casefold(), ids, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {one_line(', '.join(ids), 300)}"
    raise SamplingPresetError(f"there is no preset {one_line(wanted, 60)!r}; {hint}")
