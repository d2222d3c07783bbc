"""Names of files that stand for what is in them: what is typed for a persona or a preset."""

from __future__ import annotations

import re
import unicodedata

_LONGEST = 60


def is_id(text: str) -> bool:
    """Whether a file can have this name, whatever the system, without leading out of its folder."""
    return bool(text) and len(text) <= _LONGEST and not text.startswith(".") and not re.search(r'[/\\:\0"<>|?*]', text)


def id_for(name: str, otherwise: str) -> str:
    """A file name for what is called `name`: lower-case letters and digits of whatever script, and hyphens.

    Args:
        name: any text.
        otherwise: the file name for a text without letters and digits.
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    words = re.sub(r"[\W_]+", "-", plain).strip("-")[:_LONGEST].strip("-")
    return words or otherwise
