"""Options of the test run."""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

# How fast examples come says something of the machine, which may have much else to do. A run that is to say whether a
# change holds tries the same examples each time; `make test ARGS=--hypothesis-profile=thorough` looks for others.
settings.register_profile(
    "exlchat", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40, derandomize=True
)
settings.register_profile("thorough", settings.get_profile("exlchat"), max_examples=400, derandomize=False)
settings.load_profile("exlchat")

if "PYTEST_XDIST_WORKER" in os.environ:
    # Two workers with two threads each, on two cores, mostly wait for each other. Before torch is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make architectures` writes a table into the docs."""
    parser.addoption("--error-table", help="page that gets the errors of all architectures")


def pytest_collection_finish(session: pytest.Session) -> None:
    """What all test modules hold stays: looking through it again and again took a tenth of a run."""
    del session
    gc.collect()
    gc.freeze()
