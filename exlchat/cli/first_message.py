"""What the words of `exlchat [MODEL] [PROMPT]` are."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from exlchat import paths
from exlchat.app.library.choice import GUIDE
from exlchat.app.library.listing import by_name
from exlchat.app.library.places import library
from exlchat.llm.info import ModelError


def model_and_message(
    parser: argparse.ArgumentParser, model: str | None, words: Sequence[str]
) -> tuple[str | None, str | None]:
    """A word alone is the model, unless it is a sentence that no folder and no model of the library is called.

    Ends the program with a usage error where there are too many of them, or where nothing tells what is meant.
    """
    if len(words) > (2 if model is None else 1):
        parser.error("too many arguments; put the message in quotes")
    if model is not None:
        return model, words[0] if words else None
    if len(words) == 2:
        return words[0], words[1]
    if words and any(mark.isspace() for mark in words[0].strip()) and not _is_model(parser, words[0]):
        return None, words[0]
    return words[0] if words else None, None


def _is_model(parser: argparse.ArgumentParser, text: str) -> bool:
    try:
        if paths.expanded(text).exists():
            return True
    except (OSError, ValueError):
        # A long message is no possible file name.
        return False
    try:
        return by_name(text, library()) is not None
    except ModelError as error:
        parser.error(f"{error}; if it is a message: exlchat -m {GUIDE} MESSAGE, or the model that is to answer")
