"""Plain words: nothing but text, in whole lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exlchat.ui.line.formatter import Part, Remark, clean_name
from exlchat.untrusted.sanitize import expand_tabs, normalize_newlines, printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.chat.model import Role
    from exlchat.ui.line.formatter import Fragments, TokenPiece
    from exlchat.ui.render.markdown.blocks import Block
    from exlchat.ui.render.markdown.document import DocumentSource

_REMARKS: Final[dict[Remark, str]] = {"note": "Note: ", "warning": "Warning: ", "footer": ""}


class PlainFormatter:
    """Text as it was written, a line for a line, and words that say who speaks. Nothing depends on the width."""

    def source(self, part: Part) -> DocumentSource:
        from exlchat.ui.render.markdown.document import PlainDocument

        del part
        return PlainDocument()

    def head(self, part: Part, speaker: str) -> list[Fragments]:
        return [_plain(f"{clean_name(speaker)} thinks:" if part == "thinking" else f"{clean_name(speaker)} says:")]

    def name_over(self, speaker: str) -> list[Fragments]:
        """Nothing: the head says it."""
        del speaker
        return []

    def block(self, part: Part, block: Block, previous: Block | None) -> list[Fragments]:
        del part, previous
        return [_plain(getattr(block, "text", ""))]

    def code_lines(self, part: Part, lines: Iterable[str], info: str) -> list[Fragments]:
        del part, info
        return [_plain(line) for line in lines]

    def code_label(self, part: Part, info: str) -> list[Fragments]:
        """Nothing: the mark of the fence is a line of the text."""
        del part, info
        return []

    def said(self, role: Role, text: str) -> list[Fragments]:
        name = "You said: " if role == "user" else "System prompt: "
        return _plain_lines(f"{name}{text}")

    def remark(self, kind: Remark, text: str) -> list[Fragments]:
        return _plain_lines(f"{_REMARKS[kind]}{text}")

    def marked(self, text: str, marks: Sequence[tuple[int, int]]) -> list[Fragments]:
        """The text: words around it say where."""
        del marks
        return _plain_lines(text)

    def tokens(self, pieces: Iterable[TokenPiece]) -> list[Fragments]:
        return _plain_lines("".join(piece.text for piece in pieces))

    def gap(self) -> list[Fragments]:
        """Nothing: a screen reader would say "blank"."""
        return []


def _plain(line: str) -> Fragments:
    return [("", expand_tabs(printable(line).replace("\r", "")))]


def _plain_lines(text: str) -> list[Fragments]:
    return [_plain(line) for line in printable(normalize_newlines(text)).split("\n")]
