"""Options of the test run."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make architectures` writes a table into the docs."""
    parser.addoption("--error-table", help="page that gets the errors of all architectures")
