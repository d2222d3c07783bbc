"""Formats what is said as lines: in a theme's styles (`styled_formatter`), or in plain words (`plain_formatter`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from exlchat.untrusted.sanitize import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from exlchat.chat.model import Role
    from exlchat.ui.render.markdown.blocks import Block
    from exlchat.ui.render.markdown.document import DocumentSource

Part = Literal["thinking", "answer"]
Remark = Literal["note", "warning", "footer"]

Fragments = list[tuple[str, str]]
"""A line: prompt_toolkit styles and their text, without a line end. Only what is safe for a terminal."""

PROMPT: Final = "you> "
EDIT_PROMPT: Final = "edit> "


@dataclass(frozen=True, slots=True)
class TokenPiece:
    """The text of a token of a prompt, whose it is (`None` is the format's), and whether the cache holds it."""

    text: str
    role: str | None
    cached: bool


class Formatter(Protocol):
    """Makes lines that are safe for a terminal out of any text."""

    def source(self, part: Part) -> DocumentSource: ...

    def head(self, part: Part, speaker: str) -> list[Fragments]: ...

    def name_over(self, speaker: str) -> list[Fragments]:
        """Who of a group says the answer below, where its head does not."""

    def block(self, part: Part, block: Block, previous: Block | None) -> list[Fragments]: ...

    def code_lines(self, part: Part, lines: Iterable[str], info: str) -> list[Fragments]:
        """Lines of code that goes on growing."""

    def code_label(self, part: Part, info: str) -> list[Fragments]: ...

    def said(self, role: Role, text: str) -> list[Fragments]:
        """What somebody else than the model said, as a whole."""

    def remark(self, kind: Remark, text: str) -> list[Fragments]:
        """A line of the program."""

    def marked(self, text: str, marks: Sequence[tuple[int, int]]) -> list[Fragments]:
        """A line of the program, with parts of it marked; these are offsets of their beginnings and ends."""

    def tokens(self, pieces: Iterable[TokenPiece]) -> list[Fragments]: ...

    def gap(self) -> list[Fragments]:
        """What separates one message from the next."""


def clean_name(name: str) -> str:
    """A name in one line that is safe for a terminal."""
    return " ".join(printable(name).split())


def text_of(lines: Sequence[Fragments]) -> str:
    return "".join("".join(text for _, text, *_ in line) + "\n" for line in lines)
