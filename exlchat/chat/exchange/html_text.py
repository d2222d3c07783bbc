"""A message's Markdown as HTML that does nothing: no HTML of its own, no images, links only to where they say."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from exlchat.untrusted.text import visible

_MOST_CHARACTERS = 200_000
"""A longer message is shown as it is: the parser's time can grow with the square of the length."""

_MOST_BRACKETS = 5_000
"""The same for one with more opening brackets or marks, each of which makes the parser look through the rest."""

_DEEP = re.compile(
    r"^(?:[ \t]*(?:>|[-+*](?=[ \t])|\d{1,9}[.)](?=[ \t]))){25}|^[ \t]{60,}(?:[-+*]|\d{1,9}[.)])[ \t]", re.MULTILINE
)
"""Quotes and lists in each other beyond what the parser reads: it would leave out what stands in them."""

_MOST_CODE = 100_000
_SCHEMES = ("http://", "https://", "mailto:")


def rendered(text: str) -> str:
    """Markdown as HTML. What the parser takes too long for, or would lose, is shown as it was typed."""
    shown = visible(text)
    slow = len(shown) > _MOST_CHARACTERS or any(shown.count(mark) > _MOST_BRACKETS for mark in "[]<*_`~|>&(")
    if slow or _DEEP.search(shown):
        return f'<pre class="plain">{escaped(shown)}</pre>\n'
    # Once more: names of characters and escaped addresses have become characters by now.
    return visible(str(_parser().render(shown)))


def escaped(text: str) -> str:
    """Text for an element or an attribute, without what steers or hides it: as the screen shows it."""
    return html.escape(visible(text))


class _Renderer(RendererHTML):
    """Links with their addresses in sight, images as links."""

    def link_open(self, tokens: Sequence[Token], index: int, *_options: Any) -> str:
        """Nothing is sent to where a link leads but the request itself."""
        return f'<a href="{escaped(_address(tokens[index]))}" rel="noopener noreferrer nofollow">'

    def link_close(self, tokens: Sequence[Token], index: int, *_options: Any) -> str:
        """The address, unless the link's text is the address."""
        opening = next(at for at in range(index - 1, -1, -1) if tokens[at].type == "link_open")
        address = _address(tokens[opening])
        text = "".join(token.content for token in tokens[opening + 1 : index])
        told = "" if text in (address, address.removeprefix("mailto:")) else _in_sight(address)
        return f"</a>{told}"

    def image(self, tokens: Sequence[Token], index: int, *_options: Any) -> str:
        """An image is not loaded: who wrote it would learn when it is looked at."""
        address = str(tokens[index].attrs.get("src", ""))
        name = escaped(tokens[index].content or "image")
        if not address.startswith(_SCHEMES):
            return f"[{name}]"
        return f'<a href="{escaped(address)}" rel="noopener noreferrer nofollow">[{name}]</a>{_in_sight(address)}'


def _address(token: Token) -> str:
    return str(token.attrs.get("href", ""))


def _in_sight(address: str) -> str:
    return f' <span class="address">({escaped(address)})</span>'


@cache
def _parser() -> MarkdownIt:
    options = {"html": False, "breaks": True, "linkify": True, "maxNesting": 80, "highlight": _highlighted}
    parser = MarkdownIt("gfm-like", options, renderer_cls=_Renderer)
    parser.validateLink = lambda url: url.strip().lower().startswith(_SCHEMES)  # type: ignore[method-assign]
    return parser


def _highlighted(code: str, language: str, _attributes: str) -> str:
    """Spans for the colours of the style sheet; "" leaves escaping to the parser."""
    if not language or len(code) > _MOST_CODE:
        return ""
    try:
        lexer = get_lexer_by_name(language)
    except ClassNotFound:
        return ""
    return str(highlight(code, lexer, HtmlFormatter(nowrap=True)))
