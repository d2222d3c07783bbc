"""Whether a model folder can be loaded, as far as its JSON files and headers tell. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint


def check(folder: Path) -> None:
    """Sees that a folder can be loaded as far as its JSON files and headers tell.

    Raises:
        ModelError: it cannot: one line.
    """
    read_spec(Checkpoint(folder).config, str(folder / "config.json"))
