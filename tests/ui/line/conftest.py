"""No test of the line mode reads or writes the folders of the person who runs it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that stands for all of the user's folders."""
    folder = tmp_path / "home"
    monkeypatch.setenv("EXLCHAT_HOME", str(folder))
    return folder
