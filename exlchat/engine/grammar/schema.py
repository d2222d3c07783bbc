"""A JSON schema, from the text that someone wrote to the one that the grammar library gets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from exlchat.engine.grammar.schema_references import SchemaDocument, parts
from exlchat.engine.grammar.schema_rewrite import Rewriting, named
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
    rewriting = Rewriting(SchemaDocument(schema))
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


_ROUNDS = 50
# Of schemas within schemas, references followed. The library calls itself for each, and at some thousands the program
# would end without a word.
_LONGEST_CHAIN = 400


def check_ends(rewriting: Rewriting) -> None:
    """Refuses a schema, as the library gets it, that has no value that ends.

    Raises:
        ConstraintError: or one with too long a chain, or with a count that cannot be promised.
    """
    root = rewriting.root
    reachable = list(_walk(root))

    def place(schema: dict[str, Any]) -> str:
        return named(rewriting.places.get(id(schema), "#"))

    for schema in reachable:
        _check_counts(schema, place(schema))
    ends = _ends(reachable, root)
    endless = [schema for schema in reachable if not ends[id(schema)]]
    if endless:
        # The last one asks for itself, or for one that does.
        raise ConstraintError(
            f"in the JSON schema {place(endless[-1])} asks for itself inside of itself, so that no value of it ends; "
            "make a property on the way optional"
        )


def _walk(root: dict[str, Any]) -> Iterator[dict[str, Any]]:
    seen: set[int] = set()
    waiting: list[tuple[Any, int]] = [(root, 0)]
    while waiting:
        schema, depth = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        if depth > _LONGEST_CHAIN:
            raise ConstraintError(f"the JSON schema has a chain of more than {_LONGEST_CHAIN} schemas within schemas")
        seen.add(id(schema))
        yield schema
        waiting += [(inner, depth + 1) for _, inner in parts(schema)]
        if "$ref" in schema:
            waiting.append((_target(root, schema), depth + 1))


def _target(root: dict[str, Any], schema: dict[str, Any]) -> Any:
    """What a reference leads to, as the rewriting has set it."""
    pointer = schema.get("$ref")
    if not isinstance(pointer, str):
        return None
    return root if pointer == "#" else root["$defs"][pointer.removeprefix("#/$defs/")]


def _check_counts(schema: dict[str, Any], place: str) -> None:
    """`minProperties`: the library counts names that were written twice, JSON does not, and it does not bar them."""
    least, required = schema.get("minProperties"), schema.get("required")
    sure = len(set(map(str, required))) if isinstance(required, list) else 0
    most = schema.get("maxProperties")
    if isinstance(most, int | float) and isinstance(least, int | float) and least > most:
        # The library says it.
        return
    if isinstance(least, int | float) and least > max(sure, 1):
        raise ConstraintError(
            f"in the JSON schema {place} has minProperties {least}, which cannot be promised of properties "
            "that are not named in `required`; name them there"
        )


def _ends(schemas: list[dict[str, Any]], root: dict[str, Any]) -> dict[int, bool]:
    """Whether each, by its identity, has a value that ends. Where it is not about asking for itself it has."""
    ends: dict[int, bool] = {id(schema): False for schema in schemas}

    def has_end(schema: Any) -> bool:
        return ends.get(id(schema), True)

    order = list(schemas)
    for _ in range(_ROUNDS):
        # A long chain is followed in one round, whichever way it was written.
        order.reverse()
        found = False
        for schema in order:
            if not has_end(schema) and _one_ends(schema, root, has_end):
                ends[id(schema)] = found = True
        if not found:
            break
    else:
        raise ConstraintError("the JSON schema's parts ask for each other in too many ways; make it simpler")
    return ends


def _one_ends(schema: dict[str, Any], root: dict[str, Any], has_end: Any) -> bool:
    if "$ref" in schema and not has_end(_target(root, schema)):
        return False
    every = schema.get("allOf")
    if isinstance(every, list) and not all(map(has_end, every)):
        return False
    for key in ("anyOf", "oneOf"):
        some = schema.get(key)
        if isinstance(some, list) and some and not any(map(has_end, some)):
            return False
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or "const" in schema or "enum" in schema:
        return True
    needs = {"object": _needed_properties, "array": _needed_items}
    return not kinds or any(kind not in needs or all(map(has_end, needs[kind](schema))) for kind in map(str, kinds))


def _needed_properties(schema: dict[str, Any]) -> list[Any]:
    known, required = schema.get("properties"), schema.get("required")
    if not isinstance(required, list):
        return []
    by_name = known if isinstance(known, dict) else {}
    other = schema.get("additionalProperties") if "patternProperties" not in schema else None
    return [by_name.get(str(name), other) for name in required]


def _needed_items(schema: dict[str, Any]) -> list[Any]:
    least = schema.get("minItems")
    if not isinstance(least, int) or least < 1:
        return []
    items = schema.get("items")
    first = items if isinstance(items, list) else schema.get("prefixItems")
    first = first if isinstance(first, list) else []
    return [*first[:least], *([items] if least > len(first) and isinstance(items, dict) else [])]
