"""Conversations as one HTML file: no scripts, nothing fetched, light or dark as the reader has it."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import emphasis
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

from exlchat.chat.exchange.branch import active_branch, places
from exlchat.chat.exchange.markdown import about, alternative, heading, speaker
from exlchat.chat.exchange.values import shown_time
from exlchat.chat.model import ConversationTree, Message
from exlchat.chat.prompt.answer_parts import answer_parts
from exlchat.chat.speakers import said_by
from exlchat.untrusted.text import visible

_LIGHT, _DARK = "default", "github-dark"

_STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1d1f21; --faint: #63686e; --line: #d9dbde;
  --you: #eef3fb; --code: #f3f4f5; --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181b; --ink: #e4e6e8; --faint: #9aa0a6; --line: #33373c;
  --you: #1e2733; --code: #0d1117; --link: #8ab8f0; } }
body { margin: 0 auto; max-width: 50rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 2rem 0 0.25rem; }
.about, .when, .which { color: var(--faint); font-size: 0.85rem; font-weight: normal; }
.message { border-top: 1px solid var(--line); padding: 0.75rem 0; }
.message h2 { font-size: 0.95rem; margin: 0 0 0.4rem; }
.user { background: var(--you); margin: 0 -1rem; padding: 0.75rem 1rem; }
.system, details { color: var(--faint); }
details { border-left: 3px solid var(--line); margin: 0.5rem 0; padding-left: 0.75rem; }
summary { cursor: pointer; }
pre { background: var(--code); border-radius: 6px; overflow-x: auto; padding: 0.75rem; }
pre.plain { white-space: pre-wrap; }
code { font: 0.9em/1.45 ui-monospace, monospace; }
:not(pre) > code { background: var(--code); border-radius: 4px; padding: 0.1em 0.3em; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
td, th { border: 1px solid var(--line); padding: 0.25rem 0.6rem; }
blockquote { border-left: 3px solid var(--line); color: var(--faint); margin-left: 0; padding-left: 0.75rem; }
a { color: var(--link); }
.address { color: var(--faint); font-size: 0.85em; }
"""


def page(trees: Sequence[ConversationTree]) -> str:
    """The whole file; with several conversations a list of them stands first."""
    title = heading(trees[0]) if len(trees) == 1 else f"{len(trees)} conversations"
    contents = "" if len(trees) == 1 else _contents(trees)
    bodies = "".join(_conversation(tree, number) for number, tree in enumerate(trees, 1))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escaped(title)}</title>
<style>{_STYLE}{_code_colours()}</style>
</head>
<body>
{contents}{bodies}</body>
</html>
"""


def _code_colours() -> str:
    light, dark = _style_sheet(_LIGHT), _style_sheet(_DARK)
    # The styles' own backgrounds would stand beside those of the page.
    kept = [line for line in light.splitlines() if not line.startswith("pre {")]
    return "\n".join(kept) + "\n@media (prefers-color-scheme: dark) {\n" + dark + "\n}\n"


def _style_sheet(style: str) -> str:
    formatter: Any = HtmlFormatter(style=style)
    return str(formatter.get_style_defs("pre"))


def _contents(trees: Sequence[ConversationTree]) -> str:
    rows = "".join(f'<li><a href="#c{at}">{escaped(heading(tree))}</a></li>\n' for at, tree in enumerate(trees, 1))
    return f"<nav><ol>\n{rows}</ol></nav>\n"


def _conversation(tree: ConversationTree, number: int) -> str:
    where = places(tree)
    branch = active_branch(tree)
    messages = "".join(
        _message(message, name, alternative(where.get(message.id)))
        for message, name in zip(branch, said_by(branch), strict=True)
    )
    head = f'<h1>{escaped(heading(tree))}</h1>\n<p class="about">{escaped(about(tree, branch))}</p>\n'
    return f'<article id="c{number}">\n{head}{messages}</article>\n'


def _message(message: Message, name: str | None, remark: str) -> str:
    when = shown_time(message.created_at)
    notes = [note for note in (remark, "cut short" if message.status != "complete" else "") if note]
    which = f' <span class="which">{escaped(", ".join(notes))}</span>' if notes else ""
    said, thinking = answer_parts(message), ""
    if said.thinking:
        thinking = f"<details><summary>Thinking</summary>\n{rendered(said.thinking)}</details>\n"
    return (
        f'<section class="message {message.role}">\n'
        f'<h2>{escaped(speaker(message, name))} <span class="when">{escaped(when)}</span>{which}</h2>\n'
        f"{thinking}{rendered(said.answer) if said.answer else ''}</section>\n"
    )


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
    def link_open(self, tokens: Sequence[Token], index: int, *_options: Any) -> str:
        """Nothing is sent to where a link leads but the request itself."""
        return f'<a href="{escaped(_address(tokens[index]))}" rel="noopener noreferrer nofollow">'

    def link_close(self, tokens: Sequence[Token], index: int, *_options: Any) -> str:
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
    # Underscores are part of names, as on the screen.
    parser.inline.ruler.at(
        "emphasis", lambda state, silent: state.src[state.pos] == "*" and emphasis.tokenize(state, silent)
    )
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
