"""A formula in TeX as one line of Unicode, where that says the same; every other formula stays as it was written.

The library reads TeX and names its symbols, as MathML. What of that has no plain form here (matrices, several lines,
things above each other, colours, unknown commands) makes the whole formula one that stays.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Final

from exlchat.untrusted.sanitize import printable

LIMIT: Final = 1000
"""Characters beyond which a formula stays as written. Reading so many takes about 10 ms."""

_LEFT_ALONE: Final = re.compile(r"[&%#$`\x00-\x08\x0e-\x1f]|\\\\|\\begin\b|\\newline\b|\\def\b")
_ESCAPED: Final = re.compile(r"\\[%#$&_{} ]")
_COMMAND: Final = re.compile(r"\\[A-Za-z]+")
_WORDS_MEANT: Final = re.compile(r"\\(?:text\w*|mathrm|mathbf|mathit|mathsf|mathtt|operatorname\*?|mbox)\s*\{[^{}]*\}")
_PROSE: Final = re.compile(
    r"(?<![\\A-Za-z])[A-Za-z]{2,}\s+[A-Za-z]{2,}(?![A-Za-z])"
    r"|(?:^|\s)(?:[A-Za-z]{3,}|is|to|of|in|or|if|at|by|as|on)(?=\s|$)"
)


@lru_cache(maxsize=1024)
def readable(formula: str) -> str | None:
    """A formula, without the marks around it, as a line of Unicode; None where it has to stay as it was written."""
    source = formula.strip()
    if not source or len(source) > LIMIT or _LEFT_ALONE.search(_ESCAPED.sub("", source)):
        return None
    if _PROSE.search(_WORDS_MEANT.sub("", source)):
        return None
    # No text without a formula pays for the import (0.07 s).
    from exlchat.app.markdown.tex_line import line_of

    line = line_of(source)
    if line is None or not line or _lost(source, line):
        return None
    return printable(line) or None


def _lost(source: str, line: str) -> bool:
    """Whether a letter or digit that was typed, other than in names of commands, is not in the line."""
    return bool(_typed(_COMMAND.sub(" ", source)) - _typed(line))


def _typed(text: str) -> Counter[str]:
    """Letters and digits; ² and ℝ count as 2 and R."""
    plain = unicodedata.normalize("NFKD", text.replace("∛", "3").replace("∜", "4"))
    return Counter(character for character in plain if character.isalnum())
