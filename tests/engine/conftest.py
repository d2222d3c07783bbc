"""Fixtures of the engine's tests."""

from __future__ import annotations

from tests.engine.reference_kernels import decoded_once

__all__ = ["decoded_once"]
