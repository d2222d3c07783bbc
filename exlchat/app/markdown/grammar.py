"""The Markdown we read: CommonMark with tables and strikethrough, less the rules that lose or change typed text.

Switched off, so that what was typed is what is seen: raw HTML (`List<int>`), autolinks (`<std::string>` looks like
one), entities, and link reference definitions, which would also let a later line change an earlier block. Emphasis is
what asterisks make: underscores are part of names (`__init__`, `my_file`), which models write outside of code too.
Whoever wants them to be emphasis around words, as CommonMark has it, can have that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.blockquote import blockquote
from markdown_it.rules_block.list import list_block
from markdown_it.rules_inline import StateInline, emphasis

from exlchat.app.markdown.tex import readable

if TYPE_CHECKING:
    from exlchat.config.schema import Underscores

MAX_DEPTH: Final = 24
"""Quotes and lists nested deeper stay text (in levels of the parser, two for a list); markdown-it would drop them."""

_ESCAPABLE: Final = frozenset("*_`#~|<>+-.!")
"""Backslash pairs that are markup here. Brackets, braces and the backslash itself keep theirs: they are mostly TeX."""

_TEX_ENDS: Final = {"\\(": "\\)", "\\[": "\\]", "$$": "$$"}
_TEX_BEGINS: Final = ("\\", "$")
_DOLLARS: Final = re.compile(
    r"\$(?![\s$,;.?!])((?:[^$`\n\\]|\\.)+)(?<![\s\\+\-*/=<>(,:])\$(?=(?:th|st|nd|rd|s)\b|[^\w$]|$)"
)
"""Nothing blank inside of either dollar; no letter or digit behind the last one, but for the ending of an ordinal."""
_FORMULA_MARK: Final = re.compile(r"[\\^_{}=<>+]")
_WORD: Final = re.compile(r"[A-Za-z]{3,}|(?<![A-Za-z])[A-Za-z]{2}(?=\s)|(?<=\s)[A-Za-z]{2}")
"""What makes a text between two dollars prose, if nothing makes it a formula."""
_DELIMITER_CELL: Final = re.compile(r":?-+:?")
_OTHER_BLOCK: Final = re.compile(r"[-+*](\s|$)|\d{1,9}[.)](\s|$)|>|#{1,6}(\s|$)|```|~~~")
"""What begins another block is no table head: whether it is one would hang on what stands before."""
_CELL_END: Final = re.compile(r"(?<!\\)\|")

BlockRule = Callable[[StateBlock, int, int, bool], bool]


class _Parser(MarkdownIt):
    """Keeps link addresses as typed, where the library percent-encodes them."""

    def normalizeLink(self, url: str) -> str:  # noqa: N802 - the library's name
        return url


@cache
def parser(underscores: Underscores = "text") -> MarkdownIt:
    """The one parser of the program that reads them so; it keeps no state between texts."""
    markdown = _Parser("gfm-like", {"html": False, "linkify": False, "maxNesting": 60})
    markdown.disable(["reference", "html_block", "html_inline", "autolink", "entity", "linkify"])
    block = markdown.block.ruler
    block.before("table", "display", _display, {"alt": ["paragraph", "blockquote", "list"]})
    block.at("table", _table, {"alt": ["paragraph", "reference"]})
    block.at("blockquote", _bounded(blockquote), {"alt": ["paragraph", "reference", "blockquote", "list"]})
    block.at("list", _bounded(list_block), {"alt": ["paragraph", "reference", "blockquote"]})
    markdown.inline.ruler.at("escape", _backslash)
    if underscores == "text":
        markdown.inline.ruler.at("emphasis", _by_asterisks)
    markdown.inline.ruler.before("escape", "tex", _tex)
    return markdown


def _bounded(rule: BlockRule) -> BlockRule:
    def bounded_rule(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
        return state.level < MAX_DEPTH and rule(state, start_line, end_line, silent)

    return bounded_rule


def _backslash(state: StateInline, silent: bool) -> bool:
    """A backslash before ASCII punctuation: that character is text, and the backslash is shown unless it was needed."""
    pair = state.src[state.pos : state.pos + 2]
    if len(pair) < 2 or pair[0] != "\\" or not (pair[1].isascii() and pair[1].isprintable()) or pair[1].isalnum():
        return False
    if not silent:
        state.pending += pair[1] if pair[1] in _ESCAPABLE else pair
    state.pos += 2
    return True


def _by_asterisks(state: StateInline, silent: bool) -> bool:
    return state.src[state.pos] == "*" and emphasis.tokenize(state, silent)


def _tex(state: StateInline, silent: bool) -> bool:
    r"""TeX between \( \), \[ \], $$ $$ or $ $: as a line of Unicode, or as typed, without emphasis, to the end."""
    if not state.src.startswith(_TEX_BEGINS, state.pos):
        return False
    found = _marked_tex(state) or _dollars(state)
    if found is None:
        return False
    marked, formula = found
    if not silent:
        state.pending += readable(formula) or marked
    state.pos += len(marked)
    return True


def _marked_tex(state: StateInline) -> tuple[str, str] | None:
    """The formula that begins here, with its marks and without."""
    closing = _TEX_ENDS.get(state.src[state.pos : state.pos + 2])
    end = state.src.find(closing, state.pos + 2, state.posMax) if closing else -1
    formula = state.src[state.pos + 2 : end]
    return None if end < 0 or "`" in formula else (state.src[state.pos : end + 2], formula)


def _dollars(state: StateInline) -> tuple[str, str] | None:
    """The same for single dollars, where they are neither money nor names of variables."""
    before = state.src[state.pos - 1 : state.pos]
    found = _DOLLARS.match(state.src, state.pos, state.posMax)
    if found is None or before.isalnum() or before == "$":
        return None
    formula = found[1]
    if not _FORMULA_MARK.search(formula) and _WORD.search(formula):
        return None
    return found[0], formula


def _line(state: StateBlock, line: int) -> str:
    return state.src[state.bMarks[line] + state.tShift[line] : state.eMarks[line]].strip(" \t")


def _display(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    r"""Lines from a leading $$ or \[ to its end or to a blank line are one paragraph, whatever they begin with."""
    if not state.src.startswith(_TEX_BEGINS, state.bMarks[start_line] + state.tShift[start_line]):
        return False
    text = _line(state, start_line)
    closing = _TEX_ENDS.get(text[:2])
    if closing in (None, "\\)") or closing in text[2:] or state.is_code_block(start_line):
        return False
    # The $$ that ends a formula within a paragraph begins none.
    if silent and closing == "$$" and state.src.count("$$", state.bMarks[state.line], state.bMarks[start_line]) % 2:
        return False
    if silent:
        return True
    line = start_line + 1
    while line < end_line and state.sCount[line] >= state.blkIndent and (text := _line(state, line)):
        line += 1
        if closing in text:
            break
    state.line = line
    state.push("paragraph_open", "p", 1).map = [start_line, line]
    state.push("inline", "", 0).content = state.getLines(start_line, line, state.blkIndent, False).strip()
    state.push("paragraph_close", "p", -1)
    return True


def _outside(state: StateBlock, line: int) -> bool:
    return state.sCount[line] < state.blkIndent or state.is_code_block(line)


def _cells(line: str) -> list[str]:
    cells = _CELL_END.split(line)
    if cells and not cells[0]:
        del cells[0]
    if cells and not cells[-1]:
        del cells[-1]
    return [cell.strip(" \t").replace("\\|", "|") for cell in cells]


def _aligns(line: str) -> list[str] | None:
    """The alignments of a delimiter row, or None when it is none."""
    if len(line) < 2 or line[:2] in ("- ", "-\t") or line[0] not in "|:-":
        return None
    cells = _cells(line)
    if not cells or not all(_DELIMITER_CELL.fullmatch(cell) for cell in cells):
        return None
    return [("center" if cell[0] == ":" else "right") if cell[-1] == ":" else "left" for cell in cells]


def _fit(cells: list[str], columns: int) -> list[str]:
    """Fill a row up; cells beyond the last column join the last one instead of being dropped."""
    if len(cells) > columns:
        return [*cells[: columns - 1], " | ".join(cells[columns - 1 :])]
    return cells + [""] * (columns - len(cells))


def _table(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """A table as one token: `meta` holds the texts of head and rows and the alignments. Grammar: GFM 0.29, 4.10."""
    if start_line + 2 > end_line or _outside(state, start_line) or _outside(state, start_line + 1):
        return False
    aligns = _aligns(_line(state, start_line + 1))
    header = _line(state, start_line)
    if aligns is None or "|" not in header or _OTHER_BLOCK.match(header) or len(_cells(header)) != len(aligns):
        return False
    if silent:
        return True
    terminators = state.md.block.ruler.getRules("blockquote")
    rows: list[list[str]] = []
    parent, state.parentType = state.parentType, "table"
    line = start_line + 2
    while line < end_line and not _outside(state, line):
        text = _line(state, line)
        if not text or any(rule(state, line, end_line, True) for rule in terminators):
            break
        rows.append(_fit(_cells(text), len(aligns)))
        line += 1
    state.parentType = parent
    token = state.push("table", "table", 0)
    token.map = [start_line, line]
    token.meta = {"head": _cells(header), "aligns": aligns, "rows": rows}
    state.line = line
    return True
