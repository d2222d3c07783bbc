"""What is asked of a JSON schema before the grammar library sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import unquote

from exlchat.engine.constraint import ConstraintError

# The library's parser gives up at 128, and the walks here need no more.
_DEEPEST = 100
_ROUNDS = 50
# Of schemas within schemas, references followed. The library calls itself for each, and at some thousands the program
# would end without a word.
_LONGEST_CHAIN = 400
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
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_SINGLE = ("items", "additionalProperties")


def read_schema(text: str) -> str:
    """A JSON schema as the library gets it.

    Raises:
        ConstraintError: it is no JSON or no schema, too deep, or has no value that ends.
    """
    schema = _parse(text)
    _check_depth(schema)
    if isinstance(schema, bool):
        if not schema:
            raise ConstraintError("the JSON schema is false, which no value matches")
        schema = {}
    if not isinstance(schema, dict):
        raise ConstraintError("the JSON schema must be an object, as {...}, or true")
    reachable = dict(_walk(schema))
    _check_counts(reachable)
    endless = [name for name, ends in _ends(reachable, schema).items() if not ends]
    if endless:
        # The last one asks for itself, or for one that does.
        raise ConstraintError(
            f"in the JSON schema {_named(endless[-1])} asks for itself inside of itself, so that no value of it ends; "
            "make a property on the way optional"
        )
    return json.dumps({**schema, "x-guidance": _WRITING})


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


def _walk(root: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each object that a value may have to match, by its pointer, as "#/properties/a"."""
    seen: set[int] = set()
    waiting: list[tuple[str, Any, int]] = [("#", root, 0)]
    while waiting:
        name, schema, depth = waiting.pop()
        if not isinstance(schema, dict) or id(schema) in seen:
            continue
        if depth > _LONGEST_CHAIN:
            raise ConstraintError(f"the JSON schema has a chain of more than {_LONGEST_CHAIN} schemas within schemas")
        seen.add(id(schema))
        yield name, schema
        waiting += [(f"{name}/{part}", inner, depth + 1) for part, inner in _parts(schema)]
        target = schema.get("$ref")
        if isinstance(target, str):
            waiting.append((target, _find(root, target), depth + 1))


def _parts(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key in (*_LISTS, *_MAPS, *_SINGLE):
        inner = schema.get(key)
        if key in _MAPS and isinstance(inner, dict):
            yield from ((f"{key}/{name}", part) for name, part in inner.items())
        elif key not in _MAPS and isinstance(inner, list):
            yield from ((f"{key}/{place}", part) for place, part in enumerate(inner))
        elif key in _SINGLE:
            yield key, inner


def _find(root: Any, pointer: str) -> Any:
    """What a local reference names; None of one that only the library can follow, or nobody."""
    if not pointer.startswith("#"):
        return None
    found = root
    for part in pointer[1:].split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(name)
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return None
    return found if pointer[1:].startswith("/") or pointer == "#" else None


def _check_counts(schemas: dict[str, dict[str, Any]]) -> None:
    """`minProperties`: the library counts names that were written twice, JSON does not, and it does not bar them."""
    for name, schema in schemas.items():
        least, required = schema.get("minProperties"), schema.get("required")
        sure = len(set(map(str, required))) if isinstance(required, list) else 0
        most = schema.get("maxProperties")
        if isinstance(most, int | float) and isinstance(least, int | float) and least > most:
            # The library says it.
            continue
        if isinstance(least, int | float) and least > max(sure, 1):
            raise ConstraintError(
                f"in the JSON schema {_named(name)} has minProperties {least}, which cannot be promised of properties "
                "that are not named in `required`; name them there"
            )


def _ends(schemas: dict[str, dict[str, Any]], root: dict[str, Any]) -> dict[str, bool]:
    """Whether each has a value that ends. Where it is not about asking for itself the answer is yes."""
    ends: dict[int, bool] = {id(schema): False for schema in schemas.values()}

    def has_end(schema: Any) -> bool:
        return ends.get(id(schema), True)

    order = list(schemas.values())
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
    return {name: has_end(schema) for name, schema in schemas.items()}


def _one_ends(schema: dict[str, Any], root: dict[str, Any], has_end: Any) -> bool:
    target = schema.get("$ref")
    if isinstance(target, str) and not has_end(_find(root, target)):
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


def _named(pointer: str) -> str:
    return "the whole" if pointer == "#" else pointer[:80]
