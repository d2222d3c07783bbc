"""Folders with models: those that the user names, those that `exlchat pull` made, and the Hugging Face cache.

Only names are read here, so that a whole library is listed before anything is opened, and without torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from exlchat import paths
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.pulled import display_name, read_marker
from exlchat.config.files import SettingsError, load_settings
from exlchat.untrusted.files import UntrustedFileError, read_text

_CONFIG = "config.json"
_WEIGHTS = ".safetensors"
_DEEPEST = 4
_MOST_FOLDERS = 5000
_HUB_PREFIX = "models--"
_SHOWN_OF_COMMIT = 8
_LARGEST_REFERENCE = 100
"""Bytes; a commit has 40."""


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A folder that looks like a model, or one that could not be looked into.

    Args:
        path: as it was found, through links.
        name: how people call it; untrusted.
        problem: one line; `None` where the folder may be opened.
    """

    path: Path
    name: str
    problem: str | None = None


def all_models(model_folders: Sequence[str], others: Iterable[Path] = ()) -> list[FoundFolder]:
    """Every model of the user, each folder once, however many links lead to it.

    Args:
        model_folders: the setting.
        others: further folders of models, such as those used before; what is no longer there is left out.
    """
    library = paths.folders().models
    bundled = paths.bundled_model()
    found: list[FoundFolder] = []
    for text in model_folders:
        found += in_folder(text)
    if library.is_dir():
        found += _below(library)
    found += in_hub_cache(_hub_cache())
    found += [FoundFolder(path, path.name) for path in others if looks_like_model(path) and path != bundled]
    if looks_like_model(bundled):
        found.append(FoundFolder(bundled, "guide"))
    return list({os.path.realpath(one.path): one for one in reversed(found)}.values())[::-1]


def library() -> list[FoundFolder]:
    """Every model by the settings and the memory of this user; settings that cannot be read name no folders."""
    try:
        folders = load_settings().model_folders
    except SettingsError:
        folders = ()
    return all_models(folders, ModelMemory(paths.folders().model_memory).used_models())


def in_folder(text: str) -> list[FoundFolder]:
    root = paths.expanded(text)
    if not root.is_absolute() and text.startswith("~"):
        return [FoundFolder(root, text, f"{text}: there is no such home folder; write the whole path")]
    if not root.is_absolute():
        return [FoundFolder(root, text, f"{text}: in model_folders a path begins with / or ~")]
    return list(_below(root))


def looks_like_model(path: Path) -> bool:
    try:
        with os.scandir(path) as entries:
            return any(_marks_model(entry) for entry in entries)
    except OSError:
        return False


def in_hub_cache(root: Path) -> list[FoundFolder]:
    """The snapshots in a cache of huggingface_hub, named `org/name` and, where it is not main, `@revision`."""
    found = []
    for repository in _folders_of(root):
        if not repository.name.startswith(_HUB_PREFIX):
            continue
        name = repository.name.removeprefix(_HUB_PREFIX).replace("--", "/", 1)
        names = _references(repository / "refs")
        for snapshot in _folders_of(repository / "snapshots"):
            if looks_like_model(snapshot):
                revision = names.get(snapshot.name, snapshot.name[:_SHOWN_OF_COMMIT])
                found.append(FoundFolder(snapshot, name if revision == "main" else f"{name}@{revision}"))
    return found


def _hub_cache() -> Path:
    # It reads HF_HUB_CACHE, HF_HOME and XDG_CACHE_HOME.
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _references(folder: Path) -> dict[str, str]:
    """Commit -> branch or tag; of several names for one commit `main` wins."""
    names: dict[str, str] = {}
    try:
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                name = str(file.relative_to(folder))
                commit = read_text(file, largest=_LARGEST_REFERENCE, kind="reference").strip()
                if name == "main" or commit not in names:
                    names[commit] = name
    except (OSError, UntrustedFileError):
        return names
    return names


def _below(root: Path) -> Iterator[FoundFolder]:
    """Models in `root` and below. A model is not searched for others; links are followed, each folder once."""
    seen: set[tuple[int, int]] = set()
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        try:
            status = folder.stat()
            if (identity := (status.st_dev, status.st_ino)) in seen:
                continue
            seen.add(identity)
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
            inside = [entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry)]
        except OSError as error:
            reason = (error.strerror or type(error).__name__).lower()
            yield FoundFolder(folder, folder.name or str(folder), f"{folder}: cannot be looked into ({reason})")
            continue
        if any(_marks_model(entry) for entry in entries) or read_marker(folder) is not None:
            yield _found(folder)
        elif len(seen) >= _MOST_FOLDERS:
            line = f"{root}: more than {_MOST_FOLDERS:,} folders; name one that is nearer to the models"
            yield FoundFolder(root, root.name or str(root), line)
            return
        elif depth < _DEEPEST:
            waiting += [(folder / name, depth + 1) for name in reversed(inside)]


def _found(folder: Path) -> FoundFolder:
    marker = read_marker(folder)
    if marker is None:
        return FoundFolder(folder, folder.name)
    name = display_name(marker.repository, marker.revision)
    if marker.finished:
        return FoundFolder(folder, name)
    return FoundFolder(folder, name, f"{folder}: the download has not finished; go on with: exlchat pull {name}")


def _marks_model(entry: os.DirEntry[str]) -> bool:
    if entry.name == _CONFIG:
        return _is_file(entry)
    return entry.name.endswith(_WEIGHTS) and not entry.name.startswith(".")


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads to itself.
        return False


def _folders_of(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if _is_folder(entry))
    except OSError:
        return []
