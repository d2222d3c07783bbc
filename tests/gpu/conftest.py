"""Every test of this folder needs a CUDA device; the kernels are compiled once a session."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import open_library
from exlchat.ext.ops import Kernels

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            # One after the other on the one card: some look at its memory.
            item.add_marker(pytest.mark.xdist_group("gpu"))
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def build_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ext")


@pytest.fixture(scope="session")
def kernels(build_cache: Path) -> Kernels:
    return Kernels(open_library(ensure_library(build_cache), FUNCTIONS))
