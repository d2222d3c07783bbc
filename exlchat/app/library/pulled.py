"""What `exlchat pull` notes in a folder that it fills: which repository it is, and whether all of it is there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

if TYPE_CHECKING:
    from pathlib import Path

MARKER = ".exlchat-pull.json"
MAIN = "main"
_LARGEST = 10_000
"""Bytes of the note."""


@dataclass(frozen=True, slots=True)
class Marker:
    """One download: `revision` as it was typed, `commit` as the hub resolved it."""

    repository: str
    revision: str
    commit: str
    finished: bool


def display_name(repository: str, revision: str) -> str:
    return repository if revision == MAIN else f"{repository}@{revision}"


def folder_for(repository: str, revision: str) -> Path:
    """Where a revision belongs: `org--name` or `org--name@revision` in the library, all of it one folder's name."""
    name = display_name(repository, revision).replace("/", "--")
    return paths.folders().models / name


def read_marker(folder: Path) -> Marker | None:
    """The note of a folder; `None` where there is none that can be understood."""
    try:
        content = read_json_file(folder / MARKER, largest=_LARGEST, kind="note of a download")
        repository, revision, commit = (content[key] for key in ("repository", "revision", "commit"))
        finished = content["finished"]
    except (UntrustedFileError, LookupError, TypeError):
        return None
    texts = (repository, revision, commit)
    if not all(isinstance(text, str) for text in texts) or not isinstance(finished, bool):
        return None
    return Marker(repository, revision, commit, finished)


def write_marker(folder: Path, marker: Marker) -> None:
    """Note it.

    Raises:
        FolderError: the folder cannot be written.
    """
    paths.atomic_write(folder / MARKER, json.dumps(asdict(marker), indent=1) + "\n")
