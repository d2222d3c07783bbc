"""Where the prepared check vectors lie, and how a test says that they are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
DATA = SHARED / "data"

needs_shared = pytest.mark.skipif(not DATA.is_dir(), reason="the prepared check vectors (../shared/data) are not here")
