"""Tests of the app wait for what they asked for, not for an idle processor."""

from __future__ import annotations

import pytest

from tests.ui.settling import have_pilots_wait


@pytest.fixture(autouse=True)
def pilots_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    have_pilots_wait(monkeypatch)
