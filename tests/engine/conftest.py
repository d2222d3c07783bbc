"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.engine.family_table import ErrorTable
from tests.engine.reference_kernels import decoded_once

__all__ = ["decoded_once"]


@pytest.fixture(scope="session")
def errors(request: pytest.FixtureRequest) -> Iterator[ErrorTable]:
    """Where the errors of architectures go; at the end of the run into the page that `--error-table` names."""
    table = ErrorTable()
    yield table
    page = request.config.getoption("--error-table")
    if page is not None:
        table.write(Path(page))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several small products a millisecond wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
