"""A JSON schema, from the text that someone wrote to the one that the grammar library gets."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from exlchat.engine.grammar.schema_ends import check_ends
from exlchat.engine.grammar.schema_references import Document
from exlchat.engine.grammar.schema_rewrite import Rewriting
from exlchat.llm.constraint import ConstraintError

# The library's parser gives up at 128, and the walks here need no more.
_DEEPEST = 100
# Between values a model may write nothing, a space, or a line break and an indentation: each model has its habit, most
# were trained on `json.dumps` or on indented text, and answer worse when each ": " is forbidden. But there is an end to
# it: with JSON's own white space, which has none, small models fill an answer with line breaks. The rest is stated
# so that a schema's own `x-guidance` cannot change it: `lenient` would leave out what is not supported.
_WRITING = {
    "whitespace_flexible": True,
    "whitespace_pattern": r" |\n( {0,40}|\t{0,10})",
    "item_separator": ",",
    "key_separator": ":",
    "coerce_one_of": False,
    "lenient": False,
    "json_allow_general_unicode_escapes": False,
}


def read_schema(text: str) -> tuple[str, str | None]:
    """A JSON schema as the library gets it, and in one line what of it an answer is not held to, if anything.

    Raises:
        ConstraintError: it is no JSON or no schema, too deep, has no value that ends, or asks for what a grammar cannot
            hold.
    """
    schema = _parse(text)
    _check_depth(schema)
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintError("the JSON schema is false, which no value matches")
        schema = {}
    if not isinstance(schema, dict):
        raise ConstraintError("the JSON schema must be an object, as {...}, or true")
    rewriting = Rewriting(Document(schema))
    check_ends(rewriting)
    return json.dumps({**rewriting.root, "x-guidance": _WRITING}), rewriting.notice


def _parse(text: str) -> Any:
    try:
        # JSON has no NaN; Python would take it.
        found = json.loads(text, parse_constant=_refuse, parse_float=_float)
        json.dumps(found, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConstraintError(
            f"the JSON schema is not JSON ({where}: {error.msg[:1].lower()}{error.msg[1:]})"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except UnicodeEncodeError:
        raise ConstraintError("the JSON schema has half of a character, as \\ud800 alone; write both halves") from None
    except ValueError as error:
        # Also from a number of more than 4,300 digits.
        raise ConstraintError(f"the JSON schema has a number that cannot be used ({str(error)[:60]})") from None
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is none of JSON")


def _float(text: str) -> float:
    found = float(text)
    if abs(found) == float("inf"):
        raise ValueError(f"{text[:20]} is too large")
    return found


def _too_deep() -> ConstraintError:
    return ConstraintError(f"the JSON schema is nested deeper than {_DEEPEST} levels")


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_DEEPEST + 1):
        level = [
            part
            for outer in level
            for part in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
        ]
        if not level:
            return
    raise _too_deep()
