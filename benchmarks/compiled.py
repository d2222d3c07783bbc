"""The kernels, as the program finds or builds them."""

from __future__ import annotations

from exlchat import paths
from exlchat.ext.build import ensure_library
from exlchat.ext.functions import FUNCTIONS
from exlchat.ext.library import Library, open_library


def compiled_library() -> Library:
    """Open; built first if it has to be, which takes tens of seconds."""
    return open_library(ensure_library(paths.folders().cache), FUNCTIONS)
