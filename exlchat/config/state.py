"""What the program remembers by itself between two starts. Losing it costs nothing, so it never stops a start."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST_FILE = 100_000
"""Bytes."""


@dataclass(frozen=True, slots=True)
class State:
    """`last_model` is the absolute path of the model directory used last, or `None`."""

    last_model: str | None = None


def load_state(path: Path | None = None) -> tuple[State, str | None]:
    """The state in `path` (by default the user's own), and a one-line notice when the file was there but unusable."""
    path = path or paths.folders().state_file
    try:
        content = read_json_file(path, largest=_LARGEST_FILE, kind="state")
    except NoSuchFileError:
        return State(), None
    except UntrustedFileError:
        return State(), f"{path} cannot be read and is ignored; it is written anew when a model is opened"
    last_model = content.get("last_model") if isinstance(content, dict) else None
    if not isinstance(content, dict) or not (last_model is None or isinstance(last_model, str)):
        return State(), f"{path} has an unknown content and is ignored; it is written anew when a model is opened"
    return State(last_model=last_model), None


def save_state(state: State, path: Path | None = None) -> None:
    """Write the state at once, by default to the user's own file.

    Raises:
        FolderError: it cannot be written; the old file is untouched.
    """
    paths.atomic_write(path or paths.folders().state_file, json.dumps(asdict(state), indent=2) + "\n")
