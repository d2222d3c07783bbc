"""What can go wrong with the compiled extension. Every message is one line: what is wrong and how to mend it."""

from __future__ import annotations


class ExtensionError(Exception):
    """The library cannot be loaded, is not what these sources make, or one of its functions reported an error."""


class BuildError(ExtensionError):
    """The library cannot be built here: no compiler, one that does not fit, or sources it rejects."""
