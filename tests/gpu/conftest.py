"""Every test of this folder needs a CUDA device; the kernels are compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import Library, open_library
from exlchat.ext.ops import Kernels

_HERE = Path(__file__).parent

# Four thousand tests that say "skipped" were a tenth of the time of a run on two cores.
collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            # One after the other on the one card: some look at its memory.
            item.add_marker(pytest.mark.xdist_group("gpu"))


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """Of all workers: the first of them compiles, the others wait for it."""
    own = tmp_path_factory.getbasetemp()
    return (own if worker_id == "master" else own.parent) / "kernels"


@pytest.fixture(scope="session")
def library(build_cache: Path) -> Library:
    return open_library(ensure_library(build_cache), FUNCTIONS)


@pytest.fixture(scope="session")
def kernels(library: Library) -> Kernels:
    return Kernels(library)
