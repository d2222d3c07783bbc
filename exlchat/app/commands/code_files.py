"""The code blocks of a message as files. No terminal library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from exlchat import paths
from exlchat.app.markdown.grammar import parser


@dataclass(frozen=True, slots=True)
class CodeBlock:
    """Code as it was written, and the name of its language as the fence has it, "" without one."""

    language: str
    code: str

    @property
    def ending(self) -> str:
        """What files of its language usually end in: ".py"; ".txt" where that is not known."""
        try:
            patterns = get_lexer_by_name(self.language).filenames if self.language else []
        except ClassNotFound:
            return ".txt"
        return next((one[1:] for one in patterns if one.startswith("*.") and one[2:].isalnum()), ".txt")


class SaveError(Exception):
    """Why code cannot be saved, in one line."""


def code_blocks(text: str) -> list[CodeBlock]:
    """The fenced and indented blocks of a Markdown text that hold anything, in order."""
    found = (token for token in parser().parse(text) if token.type in ("fence", "code_block"))
    blocks = (CodeBlock((token.info.split() or [""])[0], token.content) for token in found)
    return [block for block in blocks if block.code.strip()]


def usual_name(blocks: list[CodeBlock], folder: Path) -> str:
    ending = blocks[0].ending
    number = 1
    while (folder / f"code-{number}{ending}").exists():
        number += 1
    return f"code-{number}{ending}"


def save_code(blocks: list[CodeBlock], target: Path) -> list[Path]:
    """Write the first block to `target` and each other one beside it, numbered; files that are there stay.

    Raises:
        SaveError: one of the files is there already, or cannot be written; those before it are written.
    """
    target = paths.expanded(target)
    targets = [target]
    targets += [target.with_name(f"{target.stem}-{number}{block.ending}") for number, block in enumerate(blocks[1:], 2)]
    if there := next((one for one in targets if one.exists()), None):
        raise SaveError(f"{there} is there already; choose another name")
    for path, block in zip(targets, blocks, strict=True):
        try:
            with path.open("x", encoding="utf-8", errors="replace", newline="") as file:
                file.write(block.code)
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or str(error)).lower()
            raise SaveError(f"{path} cannot be written ({reason})") from None
    return targets
