"""One small library for the session, built once and kept with pytest's cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from exlchat.ext.build import build_library
from exlchat.ext.targets import Targets
from tests.ext.small_library import some_nvcc, write_sources


@pytest.fixture(scope="session")
def small_sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sources(tmp_path_factory.mktemp("small") / "csrc")


@pytest.fixture(scope="session")
def small_library(pytestconfig: pytest.Config, small_sources: Path) -> Path:
    cache = pytestconfig.cache
    assert cache is not None
    nvcc = some_nvcc((9, 0))
    return build_library(cache.mkdir("exlchat-small"), Targets(((9, 0),)), nvcc, sources=small_sources)
