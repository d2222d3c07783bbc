"""Where the prepared check vectors lie, and how a test says that they are not there.

On a machine that gets only the checkout they travel in the ignored folder `.carried/`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[1]
_PLACES = (_REPOSITORY.parent / "shared" / "data", _REPOSITORY / ".carried" / "data")
DATA = next((place for place in _PLACES if place.is_dir()), _PLACES[0])

needs_shared = pytest.mark.skipif(not DATA.is_dir(), reason="the prepared check vectors (../shared/data) are not here")
