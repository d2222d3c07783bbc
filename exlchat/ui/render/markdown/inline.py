"""One paragraph's text to marked spans."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from exlchat.app.markdown.grammar import parser
from exlchat.ui.render.markdown.blocks import Inline, Mark, TextSpan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from markdown_it.token import Token

    from exlchat.config.schema import Underscores

PIECE: Final = 4096
"""Characters after which a text is parsed in pieces: the parser's worst cases grow with the square of the length."""

_OPENING: Final = {"strong_open": Mark.STRONG, "em_open": Mark.EMPHASIS, "s_open": Mark.STRIKE, "link_open": Mark.LINK}
_CLOSING: Final = frozenset({"strong_close", "em_close", "s_close", "link_close"})
_ADDRESS: Final = re.compile(r"https?://[^\s<>\"'`|]+[^\s<>\"'`|.,;:!?)\]}*_]")
_SPACE: Final = re.compile(r"\s")


def parse_inline(text: str, underscores: Underscores = "text") -> Inline:
    """Marks of a paragraph, heading or table cell. Text beyond `PIECE` characters is cut at the next white space."""
    if len(text) <= PIECE:
        return _parse_piece(text, underscores)
    spans: list[TextSpan] = []
    start = 0
    while start < len(text):
        space = _SPACE.search(text, start + PIECE)
        end = space.end() if space else len(text)
        if space is None and end - start > 2 * PIECE:
            end = start + PIECE
        piece = text[start:end]
        body = piece.rstrip()
        spans += _parse_piece(body, underscores)
        if len(body) < len(piece):
            spans.append(TextSpan("\n" if "\n" in piece[len(body) :] else " "))
        start = end
    return tuple(spans)


# A growing list item or table is parsed again with every line; most of its texts are the ones of the time before.
@lru_cache(maxsize=512)
def _parse_piece(text: str, underscores: Underscores) -> Inline:
    tokens: list[Token] = []
    markdown = parser(underscores)
    markdown.inline.parse(text, markdown, {}, tokens)
    return tuple(_merged(_spans(tokens, Mark.NONE)))


def _spans(tokens: Iterable[Token], marks: Mark) -> Iterator[TextSpan]:
    links: list[tuple[str, str]] = []
    around: list[Mark] = []
    """What holds again when what is open now ends: the same mark may hold there already."""
    link_text = ""
    for token in tokens:
        if opening := _OPENING.get(token.type):
            around.append(marks)
            marks |= opening
            if opening is Mark.LINK:
                links.append((str(token.attrs.get("href", "")), str(token.attrs.get("title", ""))))
                link_text = ""
        elif token.type in _CLOSING:
            marks = around.pop()
            if token.type == "link_close":
                yield from _address(link_text, *links.pop())
        elif token.type == "image":
            alt = "".join(span.text for span in _spans(token.children or (), marks))
            source = str(token.attrs.get("src", ""))
            yield TextSpan(alt, marks | Mark.LINK, source)
            yield from _address(alt, source, str(token.attrs.get("title", "")))
        elif token.type in ("softbreak", "hardbreak"):
            yield TextSpan("\n", marks, _target(links))
        elif token.type == "code_inline":
            link_text += token.content
            yield TextSpan(token.content, marks | Mark.CODE, _target(links))
        else:
            link_text += token.content
            yield from _texts(token.content, marks, _target(links))


def _target(links: Sequence[tuple[str, str]]) -> str:
    return links[-1][0] if links else ""


def _address(text: str, href: str, title: str) -> Iterator[TextSpan]:
    parts = [
        part for part in (href if href not in (text, f"mailto:{text}") else "", f'"{title}"' if title else "") if part
    ]
    if parts:
        yield TextSpan(f" ({' '.join(parts)})", Mark.ADDRESS, href)


def bare_addresses(text: str) -> list[str]:
    """Addresses that stand in a text as such, each once."""
    return list(dict.fromkeys(_ADDRESS.findall(text)))


def _texts(text: str, marks: Mark, target: str) -> Iterator[TextSpan]:
    """Text with its bare addresses as links, if it is not within a link itself."""
    if "://" not in text or Mark.LINK in marks:
        yield TextSpan(text, marks, target)
        return
    end = 0
    for match in _ADDRESS.finditer(text):
        yield TextSpan(text[end : match.start()], marks)
        yield TextSpan(match.group(), marks | Mark.LINK, match.group())
        end = match.end()
    yield TextSpan(text[end:], marks)


def _merged(spans: Iterator[TextSpan]) -> Iterator[TextSpan]:
    text, marks, target = "", Mark.NONE, ""
    for span in spans:
        if span.marks == marks and span.target == target:
            text += span.text
        else:
            if text:
                yield TextSpan(text, marks, target)
            text, marks, target = span.text, span.marks, span.target
    if text:
        yield TextSpan(text, marks, target)
