"""JSON values against the plain keywords of a JSON schema."""

from __future__ import annotations

import json
import math
from typing import Any

KINDS = frozenset({"null", "boolean", "number", "string", "array", "object"})
"""A whole number is a number, too."""
_MOST_TEXTS = 300
_LONGEST_TEXT = 100


def kind_of(value: Any) -> str:
    """One of `KINDS`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def kinds_of(schema: dict[str, Any]) -> frozenset[str]:
    """The kinds that `type` admits; of "integer" the numbers, of what is no type all."""
    named = schema.get("type")
    found = {named} if isinstance(named, str) else {str(one) for one in named} if isinstance(named, list) else KINDS
    kinds = frozenset("number" if kind == "integer" else kind for kind in found)
    return kinds if kinds <= KINDS else KINDS


def bars_texts(schema: Any) -> bool:
    """Whether it is an enumeration of texts, short enough that all others can be written as a pattern."""
    values = schema.get("enum") if isinstance(schema, dict) and len(schema) == 1 else None
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        return False
    return 0 < len(values) <= _MOST_TEXTS and max(map(len, values)) <= _LONGEST_TEXT


def as_key(value: Any) -> str:
    """A text that is the same for equal values: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def may_be(value: Any, schema: Any) -> bool:
    """False where a value surely does not match; patterns, formats and what a schema applies are not looked at."""
    if not isinstance(schema, dict):
        return schema is not False
    if "type" in schema and kind_of(value) not in kinds_of(schema):
        return False
    if schema.get("type") == "integer" and value != int(value):
        return False
    return _is_named(value, schema) and _fits(value, schema) and _may_hold(value, schema)


def _is_named(value: Any, schema: dict[str, Any]) -> bool:
    barred = schema.get("not")
    if isinstance(barred, dict) and barred.keys() == {"enum"} and _is_one_of(value, barred["enum"]):
        return False
    if "const" in schema and not _is_one_of(value, [schema["const"]]):
        return False
    return not isinstance(schema.get("enum"), list) or _is_one_of(value, schema["enum"])


def _is_one_of(value: Any, values: Any) -> bool:
    if not isinstance(values, list):
        return False
    return value in values if isinstance(value, str) else as_key(value) in map(as_key, values)


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    match kind_of(value):
        case "number":
            above, below = _bound(schema, "exclusiveMinimum", -math.inf), _bound(schema, "exclusiveMaximum", math.inf)
            low, high = _bound(schema, "minimum", value), _bound(schema, "maximum", value)
            return bool(low <= value <= high and above < value < below)
        case "string":
            return bool(_bound(schema, "minLength", 0) <= len(value) <= _bound(schema, "maxLength", len(value)))
        case "array":
            return bool(_bound(schema, "minItems", 0) <= len(value) <= _bound(schema, "maxItems", len(value)))
        case "object":
            return bool(_bound(schema, "minProperties", 0) <= len(value) <= _bound(schema, "maxProperties", len(value)))
    return True


def _may_hold(value: Any, schema: dict[str, Any]) -> bool:
    if not isinstance(value, dict):
        return True
    required, known = schema.get("required"), schema.get("properties")
    if isinstance(required, list) and any(name not in value for name in required):
        return False
    known = known if isinstance(known, dict) else {}
    closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return all(may_be(one, known.get(name, not closed)) for name, one in value.items())


def _bound(schema: dict[str, Any], key: str, otherwise: float) -> float:
    value = schema.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else otherwise
