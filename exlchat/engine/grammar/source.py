"""A constraint in the grammar library's language."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from exlchat.engine.grammar.lark import behind_a_space, check_grammar
from exlchat.engine.grammar.schema import read_schema
from exlchat.llm.constraint import Constraint, ConstraintError

# Without `no_forcing` the library would allow only its own choice of tokens where the text is forced, ask Python for it
# while it computes a mask, and put a million forced characters into tokens at once; with it each token is allowed
# that keeps to the grammar. It stands last, where it counts and moves no line.
_OPTIONS = '\n%llguidance {"no_forcing": true, "allow_invalid_utf8": false}\n'
_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$#&\-~/]")


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """In llguidance's variant of Lark.

    Args:
        plain: what the answer has to match.
        behind_a_space: the same with a space in front, where that can be said.
        notice: a line that says what of the constraint an answer is not held to, if anything.
    """

    plain: str
    behind_a_space: str | None
    notice: str | None = None


# It is checked first, and then used for each answer.
@functools.lru_cache(maxsize=4)
def source_of(constraint: Constraint) -> GrammarSource:
    """The library's form of a constraint.

    Raises:
        ConstraintError: see `check_constraint`; what only the library finds is not found here.
    """
    _check_characters(constraint.text)
    if constraint.kind == "grammar":
        check_grammar(constraint.text)
        spaced = behind_a_space(constraint.text)
        return GrammarSource(constraint.text + _OPTIONS, None if spaced is None else spaced + _OPTIONS)
    notice: str | None = None
    if constraint.kind == "json_schema":
        schema, notice = read_schema(constraint.text)
        body = f"%json {schema}"
    elif constraint.kind == "regex":
        body = _as_regex(constraint.text)
    else:
        # One expression, because 40,000 alternatives of a rule take a second to prepare, and these a tenth.
        body = _as_regex("|".join(map(_literal, constraint.choices)))
    return GrammarSource(f"start: {body}{_OPTIONS}", f'start: " " answer\nanswer: {body}{_OPTIONS}', notice)


def constraint_notice(constraint: Constraint) -> str | None:
    """In a line what a constraint asks for that an answer is not held to; None of one that cannot be, too."""
    try:
        return source_of(constraint).notice
    except ConstraintError:
        return None


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConstraintError(
            f"character {error.start + 1} of the constraint is half of one (U+{ord(text[error.start]):04X})"
        ) from None


def _as_regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    # "d": a digit is one of 0 to 9, as nobody who asks for numbers wants Tibetan ones; \w and \s are Unicode's.
    return f"/{regex_to_lark(pattern, 'd')}/" if pattern else '""'


def _literal(text: str) -> str:
    """A regex that matches the text itself."""
    escaped = _MARKS.sub(lambda found: "\\" + found[0], text)
    return "".join(
        character if character.isprintable() or character == " " else f"\\x{{{ord(character):x}}}"
        for character in escaped
    )
