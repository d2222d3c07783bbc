"""What can be proven of JSON schemas: that nothing matches several at once, and what surely does not match one.

Both lean to one side. A contradiction that is not found costs an alternative that nothing matches; what is said not
to match never does, though more may not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from exlchat.engine.grammar.schema_references import BESIDE_REFERENCES, Schema, SchemaDocument
from exlchat.engine.grammar.schema_values import KINDS, as_key, bars_texts, kind_of, kinds_of, may_be

MOST_WAYS = 128
"""Into so many alternatives the conditions of one schema are laid out."""
# Of looks at one schema or value. Each takes two or three microseconds.
_MOST_LOOKS = 100_000
_DEEPEST_PROOF = 4
_DEEPEST_NEGATION = 6
_MOST_REFERENCES = 30
# Between so many numbers that may not be, gaps are laid out.
_MOST_GAPS = 20
_MOST_BESIDE = 20
_APPLIED = ("allOf", "anyOf", "oneOf", "$ref")


class TooManyWaysError(Exception):
    """More than `MOST_WAYS`."""


class SchemaLogic:
    """Of one document. What it is asked takes a bounded time; beyond it nothing more is proven."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._looks = 0
        self._beside: list[str] = []

    def conjunctions(self, always: list[Any], choices: list[list[Any]]) -> list[list[Any]]:
        """Each way to take one of each choice, without those that contradict themselves or what always holds.

        Raises:
            TooManyWaysError: there are more than `MOST_WAYS`.
        """
        found: list[list[Any]] = [[]]
        for choice in choices:
            found = [[*taken, one] for taken in found for one in choice if not self.contradict([*always, *taken, one])]
            if len(found) > MOST_WAYS:
                raise TooManyWaysError
        return found

    def contradict(self, schemas: list[Any], depth: int = 0) -> bool:
        """Whether it is proven that no value matches all of them."""
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            return False
        pieces, unions = self._taken_apart(schemas)
        self._looks += 2 * len(pieces)
        if any(piece is False for piece in pieces):
            return True
        kinds = KINDS.intersection(*(kinds_of(piece) for piece in pieces))
        if all(self._contradict_as(kind, pieces, depth) for kind in kinds):
            return True
        if depth >= _DEEPEST_PROOF:
            return False
        return any(all(self.contradict([*pieces, one], depth + 1) for one in union) for union in unions)

    def _taken_apart(self, schemas: list[Any]) -> tuple[list[Any], list[list[Any]]]:
        """Without what they apply: schemas that all hold, and lists of which one holds."""
        pieces: list[Any] = []
        unions: list[list[Any]] = []
        waiting, references = list(reversed(schemas)), 0
        while waiting:
            schema = waiting.pop()
            if not isinstance(schema, dict):
                pieces += [False] if schema is False else []
                continue
            knows = self._document.knows
            pieces.append({key: value for key, value in schema.items() if key not in _APPLIED and knows(key)})
            unions += [schema[key] for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
            if isinstance(schema.get("allOf"), list):
                waiting += schema["allOf"]
            if isinstance(schema.get("$ref"), str) and references < _MOST_REFERENCES:
                references += 1
                waiting.append(self._document.targets[schema["$ref"]])
        return pieces, unions

    def _contradict_as(self, kind: str, pieces: list[Schema], depth: int) -> bool:
        for values in filter(None, map(_named_values, pieces)):
            alike = [value for value in values if kind_of(value) == kind]
            self._looks += len(alike) * len(pieces)
            if not any(all(may_be(value, one) for one in pieces) for value in alike):
                return True
        match kind:
            case "number":
                return _no_number(pieces)
            case "string":
                return _most(pieces, "minLength", 0) > _least(pieces, "maxLength")
            case "array":
                return self._no_array(pieces, depth)
            case "object":
                return self._no_object(pieces, depth)
        return False

    def _no_array(self, pieces: list[Schema], depth: int) -> bool:
        fewest = _most(pieces, "minItems", 0)
        if fewest > _least(pieces, "maxItems"):
            return True
        longest = max(
            (len(one["prefixItems"]) for one in pieces if isinstance(one.get("prefixItems"), list)), default=0
        )
        if depth >= _DEEPEST_PROOF:
            return False
        return any(
            self.contradict([item for one in pieces for item in _item(one, place)], depth + 1)
            for place in range(min(int(min(fewest, 16)), longest + 1))
        )

    def _no_object(self, pieces: list[Schema], depth: int) -> bool:
        required = dict.fromkeys(name for piece in pieces for name in names(piece.get("required")))
        self._looks += len(required)
        if len(required) > _least(pieces, "maxProperties"):
            return True
        if depth >= _DEEPEST_PROOF:
            return False
        held = ((name, [part for piece in pieces for part in _property(piece, name)]) for name in required)
        return any(len(found) > 0 and self.contradict(found, depth + 1) for _, found in held)

    # What does not match

    def negated_beside(self, schema: Any, beside: list[Any]) -> list[Any]:
        """As `negated`, where the schemas `beside` hold, too: one that is closed does not match their properties."""
        pieces, _ = self._taken_apart(beside)
        found = (piece.get("properties") for piece in pieces if piece is not False)
        self._beside = [name for known in found if isinstance(known, dict) for name in known][:_MOST_BESIDE]
        try:
            return self.negated(schema)
        finally:
            self._beside = []

    def negated(self, schema: Any, depth: int = 0) -> list[Any]:
        """Schemas of which each matches only what `schema` does not; together they need not match all of that."""
        if not isinstance(schema, dict):
            return [True] if schema is False else []
        self._looks += 4 + len(_named_values(schema) or ())
        if depth > _DEEPEST_NEGATION or self._looks > _MOST_LOOKS:
            return []
        schema = {key: value for key, value in schema.items() if self._document.knows(key)}
        if isinstance(schema.get("$ref"), str) and self._document.draft < BESIDE_REFERENCES:
            schema = {"$ref": schema["$ref"]}
        found: list[Any] = []
        for negate in (
            _other_kinds,
            _other_values,
            self._without_required,
            self._opened,
            _other_sizes,
            self._other_properties,
            self._other_items,
            self._unapplied,
        ):
            found += negate(schema, depth)
        return found

    def _without_required(self, schema: Schema, _depth: int) -> list[Any]:
        return [{"type": "object", "properties": {name: False}} for name in names(schema.get("required"))]

    def _opened(self, schema: Schema, depth: int) -> list[Any]:
        if schema.get("additionalProperties") is not False or schema.get("patternProperties") or depth > 1:
            return []
        known = schema.get("properties", {})
        return [{"type": "object", "required": [name]} for name in self._beside if name not in known]

    def _other_properties(self, schema: Schema, depth: int) -> list[Any]:
        known = schema.get("properties")
        found = []
        for name, one in known.items() if isinstance(known, dict) else ():
            other = self.negated(one, depth + 1)
            if other:
                found.append({"type": "object", "required": [name], "properties": {name: either(other)}})
        return found

    def _other_items(self, schema: Schema, depth: int) -> list[Any]:
        first, items = schema.get("prefixItems"), schema.get("items")
        placed = first if isinstance(first, list) else [items] if "items" in schema else []
        found: list[Any] = []
        for place, one in enumerate(placed):
            other = self.negated(one, depth + 1)
            if other:
                found.append({"type": "array", "minItems": place + 1, "prefixItems": [True] * place + [either(other)]})
        return found

    def _unapplied(self, schema: Schema, depth: int) -> Iterator[Any]:
        """Where what it applies does not hold."""
        yield from self._failed_conditions(schema, depth)
        if isinstance(schema.get("$ref"), str):
            yield from self.negated(self._document.targets[schema["$ref"]], depth + 1)
        if isinstance(schema.get("allOf"), list):
            for one in schema["allOf"]:
                yield from self.negated(one, depth + 1)
        if "not" in schema:
            yield schema["not"]
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                yield from self._none_of(schema[key], depth)

    def _none_of(self, schemas: list[Any], depth: int) -> Iterator[Any]:
        try:
            for taken in self.conjunctions([], [self.negated(one, depth + 1) for one in schemas]):
                yield every(*taken)
        except TooManyWaysError:
            return

    def _failed_conditions(self, schema: Schema, depth: int) -> Iterator[Any]:
        for condition, then, other in conditions(schema):
            yield from (every(condition, failed) for failed in self.negated(then, depth + 1))
            failures = self.negated(other, depth + 1)
            if failures:
                yield from (every(missed, one) for missed in self.negated(condition, depth + 1) for one in failures)


def conditions(schema: Schema) -> Iterator[tuple[Any, Any, Any]]:
    """A condition, what holds where it does, and what holds elsewhere: of `if`, and of what depends on a property."""
    if "if" in schema and ("then" in schema or "else" in schema):
        yield schema["if"], schema.get("then", True), schema.get("else", True)
    for key in ("dependencies", "dependentRequired", "dependentSchemas"):
        depending = schema.get(key)
        for name, one in depending.items() if isinstance(depending, dict) else ():
            then = {"required": names(one)} if isinstance(one, list) else one
            yield {"type": "object", "required": [name]}, then, True


def every(*schemas: Any) -> Any:
    """A schema of what matches all."""
    real = [one for one in schemas if one is not True and one != {}]
    if any(one is False for one in real):
        return False
    return True if not real else real[0] if len(real) == 1 else {"allOf": real}


def either(schemas: list[Any]) -> Any:
    """A schema of what matches one or more."""
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def names(value: Any) -> list[str]:
    """Of a list the texts."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _named_values(schema: Schema) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) and schema["enum"] else None


def _property(schema: Schema, name: str) -> list[Any]:
    """What a property has to match, as far as it is plain."""
    known = schema.get("properties")
    if isinstance(known, dict) and name in known:
        return [known[name]]
    if "additionalProperties" in schema and not schema.get("patternProperties"):
        return [schema["additionalProperties"]]
    return []


def _item(schema: Schema, place: int) -> list[Any]:
    first = schema.get("prefixItems")
    if isinstance(first, list) and place < len(first):
        return [first[place]]
    return [] if "items" not in schema or isinstance(schema["items"], list) else [schema["items"]]


def _numbers(pieces: list[Schema], key: str) -> list[float]:
    found = [piece.get(key) for piece in pieces]
    return [value for value in found if isinstance(value, int | float) and not isinstance(value, bool)]


def _most(pieces: list[Schema], key: str, least: float) -> float:
    return max([least, *_numbers(pieces, key)])


def _least(pieces: list[Schema], key: str) -> float:
    return min([math.inf, *_numbers(pieces, key)])


def _no_number(pieces: list[Schema]) -> bool:
    low, high = _most(pieces, "minimum", -math.inf), _least(pieces, "maximum")
    above, below = _most(pieces, "exclusiveMinimum", -math.inf), _least(pieces, "exclusiveMaximum")
    if low > high or above >= high or low >= below or above >= below:
        return True
    whole = any(piece.get("type") == "integer" for piece in pieces)
    if not whole or math.inf in (-max(low, above), min(high, below)):
        return False
    # Of at most two numbers between them one that may be is enough.
    first = math.ceil(max(low, above))
    return all(one > high or one >= below or one <= above for one in (first, first + 1))


def _other_kinds(schema: Schema, _depth: int) -> list[Any]:
    if "type" not in schema:
        return []
    # Of "integer" the numbers that are none cannot be said.
    others = sorted(KINDS - kinds_of(schema))
    return [{"type": others}] if others else []


def _other_values(schema: Schema, _depth: int) -> list[Any]:
    found: list[Any] = []
    for key in ("const", "enum"):
        if key == "const" and key in schema:
            found += _unlike([schema[key]])
        elif key == "enum" and isinstance(schema.get(key), list):
            found += _unlike(schema[key])
    return found


def _unlike(values: list[Any]) -> Iterator[Any]:
    """Values of other kinds, and of the same kinds where that can be said."""
    by_kind: dict[str, list[Any]] = {}
    for value in values:
        by_kind.setdefault(kind_of(value), []).append(value)
    others = sorted(KINDS - by_kind.keys())
    if others:
        yield {"type": others}
    barred = {"enum": by_kind.get("string", [])}
    if bars_texts(barred):
        yield {"type": "string", "not": barred}
    if len({as_key(value) for value in by_kind.get("boolean", ())}) == 1:
        yield {"const": not by_kind["boolean"][0]}
    if "number" in by_kind:
        gaps = sorted(set(by_kind["number"]))
        gaps = gaps if len(gaps) <= _MOST_GAPS else [gaps[0], gaps[-1]]
        yield {"type": "number", "exclusiveMaximum": gaps[0]}
        if len(gaps) == len(set(by_kind["number"])):
            for low, high in itertools.pairwise(gaps):
                yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        yield {"type": "number", "exclusiveMinimum": gaps[-1]}


_SIZES: dict[str, Callable[[Any], Schema | None]] = {
    "minimum": lambda size: {"type": "number", "exclusiveMaximum": size},
    "maximum": lambda size: {"type": "number", "exclusiveMinimum": size},
    "exclusiveMinimum": lambda size: {"type": "number", "maximum": size},
    "exclusiveMaximum": lambda size: {"type": "number", "minimum": size},
    "minLength": lambda size: {"type": "string", "maxLength": int(size) - 1} if size >= 1 else None,
    "maxLength": lambda size: {"type": "string", "minLength": int(size) + 1},
    "minItems": lambda size: {"type": "array", "maxItems": int(size) - 1} if size >= 1 else None,
    "maxItems": lambda size: {"type": "array", "minItems": int(size) + 1},
    "minProperties": lambda size: {"type": "object", "additionalProperties": False} if size >= 1 else None,
}


def _other_sizes(schema: Schema, _depth: int) -> list[Any]:
    sizes = ((key, _numbers([schema], key)) for key in _SIZES)
    return [other for key, size in sizes if size and (other := _SIZES[key](size[0])) is not None]
