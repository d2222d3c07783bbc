"""A JSON schema in the words that the grammar library has: conditions, exclusions and choices become alternatives.

What is taken away is allowed: an answer that matches what comes out matches what was asked for. Where nothing would be
left, or too much would be laid out, the schema is refused with the place.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from typing import Any

from exlchat.engine.grammar.schema_lengths import held_length
from exlchat.engine.grammar.schema_logic import MOST_WAYS, SchemaLogic, TooManyWaysError, conditions, every
from exlchat.engine.grammar.schema_references import LISTS, MAPS, SINGLE, Schema, SchemaDocument
from exlchat.engine.grammar.schema_values import KINDS, as_key, bars_texts, kind_of
from exlchat.llm.constraint import ConstraintError

# Those that the library holds an answer to.
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})
# They say something about a value, and nothing that it must be.
_ANNOTATIONS = frozenset(
    {
        "$anchor",
        "$comment",
        "$defs",
        "$dynamicAnchor",
        "$id",
        "$schema",
        "$vocabulary",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "examples",
        "id",
        "readOnly",
        "title",
        "writeOnly",
    }
)
# Where a draft has none of these, they mean nothing in it; the library refuses them in every draft.
_NEVER_HELD = frozenset({"contains", "propertyNames", "unevaluatedItems", "unevaluatedProperties"})
_CONDITIONS = frozenset({"if", "then", "else", "dependencies", "dependentRequired", "dependentSchemas"})
_LOGIC = frozenset({"oneOf", "not"}) | _CONDITIONS
_MOST_SCHEMAS = 20_000
# Making a pattern keep a length takes as long as so many schemas.
_LENGTH_COST = 500
_DEEPEST = 100
# All orders of so many different values can be laid out.
_MOST_DIFFERENT = 4
_MOST_SAID = 4


class _NothingLeftError(ConstraintError):
    """Of what one schema asks for nothing is known to match."""


class Rewriting:
    """Of one document.

    Attributes:
        root: the whole, in the library's words.
        places: of each part of it where it stands in the document, by its identity.
        notice: in a line what it asks for and an answer is not held to, if anything.

    Raises:
        ConstraintError: it cannot be held to, with the place.
    """

    def __init__(self, document: SchemaDocument) -> None:
        self.places: dict[int, str] = {}
        self._document = document
        self._logic = SchemaLogic(document)
        self._names: dict[str, str] = {"#": "#"}
        self._waiting: list[str] = []
        self._count = 0
        self._not_held: dict[str, str] = {}
        self._narrowed: dict[str, str] = {}
        self.root: Schema = self._schema(document.root, "#", 0)
        shelf: dict[str, Any] = {}
        while self._waiting:
            target = self._waiting.pop()
            shelf[self._names[target].removeprefix("#/$defs/")] = self._schema(document.targets[target], target, 0)
        if shelf:
            self.root["$defs"] = shelf

    @property
    def notice(self) -> str | None:
        """In a line what it asks for that an answer is not held to, with a place of each."""
        said = []
        if self._not_held:
            said.append(f"answers are not held to {_listed(self._not_held)}")
        if self._narrowed:
            said.append(f"repetitions of a pattern are kept short for its maxLength{_listed(self._narrowed)}")
        return f"the JSON schema: {'; '.join(said)}" if said else None

    def _schema(self, schema: Any, place: str, depth: int) -> Any:
        if not isinstance(schema, dict):
            return schema
        place = self._document.places.get(id(schema), place)
        self._count += 1
        if self._count > _MOST_SCHEMAS or depth > _DEEPEST:
            raise ConstraintError(f"in the JSON schema {named(place)} asks for too much at once; make it simpler")
        if schema.keys() == {"type", "not"} and schema["type"] == "string" and bars_texts(schema["not"]):
            found: Schema = {"type": "string", "pattern": _other_than(schema["not"]["enum"])}
        elif _has_logic(schema):
            found = self._laid_out(schema, place, depth)
        else:
            found = self._plain(schema, place, depth)
        self.places[id(found)] = place
        return found

    def _plain(self, schema: Schema, place: str, depth: int) -> Schema:
        found: Schema = {}
        for key, value in _modern(schema).items():
            if key in _ANNOTATIONS or (key in _NEVER_HELD and not self._document.knows(key)):
                continue
            if key == "format" and isinstance(value, str) and value not in FORMATS:
                self._not_held.setdefault(f"the format {value[:40]!a}", named(place))
            elif key == "$ref" and isinstance(value, str):
                found[key] = self._named(value)
            elif key in LISTS and isinstance(value, list):
                found[key] = [self._schema(one, place, depth + 1) for one in value]
            elif key in MAPS and isinstance(value, dict):
                found[key] = {name: self._schema(one, place, depth + 1) for name, one in value.items()}
            elif key in SINGLE:
                found[key] = self._schema(value, place, depth + 1)
            elif key != "uniqueItems":
                found[key] = value
        if schema.get("uniqueItems") is True:
            self._hold_apart(found, place)
        return self._with_length(found, place)

    def _named(self, target: str) -> str:
        if target not in self._names:
            self._names[target] = f"#/$defs/{len(self._names)}"
            self._waiting.append(target)
        return self._names[target]

    def _with_length(self, schema: Schema, place: str) -> Schema:
        bounds = [schema[key] for key in ("minLength", "maxLength") if key in schema]
        if not bounds or not isinstance(schema.get("pattern"), str) or not all(type(one) is int for one in bounds):
            return schema
        found = held_length(schema)
        if found is None or found.get("pattern") != schema["pattern"]:
            self._count += _LENGTH_COST
        if found is None:
            raise ConstraintError(
                f"in the JSON schema {named(place)} has a pattern and a length that the grammar library cannot hold "
                "together; write {1,20} instead of + and * in the pattern, or leave the length out"
            )
        if found.get("pattern") != schema["pattern"]:
            self._narrowed.setdefault("", named(place))
        return found

    def _hold_apart(self, schema: Schema, place: str) -> None:
        """`uniqueItems`."""
        values = _few_values(schema.get("items"))
        fewest, most = schema.get("minItems", 0), schema.get("maxItems")
        if type(most) is int and most <= 1:
            return
        if values is None or "prefixItems" in schema or type(fewest) is not int or type(most) not in (int, type(None)):
            self._not_held.setdefault("uniqueItems", named(place))
            return
        sizes = range(fewest, min(len(values), len(values) if most is None else most) + 1)
        orders = [list(one) for size in sizes for one in itertools.permutations(values, size)]
        apart: list[Any] = [
            {"type": "array", "prefixItems": [{"const": one} for one in order], "minItems": len(order), "items": False}
            for order in orders
        ]
        schema["allOf"] = [*schema.get("allOf", []), {"anyOf": [*apart, {"type": sorted(KINDS - {"array"})}]}]
        for key in ("items", "minItems", "maxItems"):
            schema.pop(key, None)

    # Conditions, exclusions, choices

    def _laid_out(self, schema: Schema, place: str, depth: int) -> Schema:
        always: list[Schema] = []
        asked: list[tuple[str, Schema]] = []
        self._split(schema, place, always, asked)
        choices = [(f"{where}/{word}", self._ways(word, one, always)) for where, one in asked for word in _words(one)]
        try:
            ways = self._logic.conjunctions(always, [way for _, found in choices for way in found])
        except TooManyWaysError:
            raise ConstraintError(
                f"in the JSON schema {named(place)} has conditions that go together in more than {MOST_WAYS} ways; "
                "make them fewer"
            ) from None
        found = self._plain(always[0], place, depth + 1)
        beside = [self._schema(one, place, depth + 1) for one in always[1:]]
        told = list(self._told(ways, place, depth + 1))
        if not told:
            words = dict.fromkeys(word for word, _ in choices)
            raise _NothingLeftError(
                f"in the JSON schema nothing is sure to match {', '.join(list(words)[:3])}; say it with anyOf, or with "
                "other types, required properties or a const that tells them apart"
            )
        if "anyOf" in found:
            beside.insert(0, {"anyOf": found.pop("anyOf")})
        if beside:
            found["allOf"] = [*found.get("allOf", []), *beside]
        return {**found, "anyOf": told}

    def _told(self, ways: list[list[Any]], place: str, depth: int) -> Iterator[Any]:
        """Those that are left when what is within them is laid out, too."""
        for way in ways:
            with contextlib.suppress(_NothingLeftError):
                yield self._schema(every(*way), place, depth)

    def _split(self, schema: Schema, place: str, always: list[Schema], asked: list[tuple[str, Schema]]) -> None:
        """What holds in any case, and what has conditions."""
        place = self._document.places.get(id(schema), place)
        always.append({key: value for key, value in schema.items() if key not in _LOGIC and key != "allOf"})
        asked.append((place, schema))
        for one in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            if isinstance(one, dict) and _has_logic(one):
                self._split(one, place, always, asked)
            elif one is not True:
                always.append(one)

    def _ways(self, word: str, schema: Schema, always: list[Schema]) -> list[list[Any]]:
        """What a keyword leaves to choose: lists, of each of which one holds."""
        if word == "not":
            return [self._logic.negated_beside(schema["not"], always)]
        if word == "oneOf":
            return [self._one_of(schema["oneOf"], always)] if isinstance(schema["oneOf"], list) else [[]]
        own = {key: value for key, value in schema.items() if key == word or (word == "if" and key in ("then", "else"))}
        found = []
        for condition, then, other in conditions(own):
            missed = [every(one, other) for one in self._logic.negated_beside(condition, always)]
            found.append([every(condition, then), *missed])
        return found

    def _one_of(self, schemas: list[Any], always: list[Schema]) -> list[Any]:
        """Each without what another one matches."""
        found: list[Any] = []
        for place, one in enumerate(schemas):
            rivals = [
                other
                for number, other in enumerate(schemas)
                if number != place and not self._logic.contradict([*always, one, other])
            ]
            others = [self._logic.negated_beside(rival, [*always, one]) for rival in rivals]
            found += [every(one, *way) for way in self._apart([*always, one], others)]
        return found

    def _apart(self, always: list[Any], others: list[list[Any]]) -> list[list[Any]]:
        """As many ways as may be laid out: where there are more, the first ones of each."""
        for most in (MOST_WAYS, 4, 2, 1):
            try:
                return self._logic.conjunctions(always, [other[:most] for other in others])
            except TooManyWaysError:
                continue
        return []


def named(pointer: str) -> str:
    """A place for people."""
    return "the whole" if pointer == "#" else pointer[:80]


def _modern(schema: Schema) -> Schema:
    """Of an old draft with the words of the newest one for the first items of a list."""
    if "additionalItems" not in schema and not isinstance(schema.get("items"), list):
        return schema
    found = {key: value for key, value in schema.items() if key not in ("items", "additionalItems", "prefixItems")}
    items = schema.get("items")
    if not isinstance(items, list):
        return found if items is None else {**found, "items": items}
    return {**found, "prefixItems": items, "items": schema.get("additionalItems", True)}


def _listed(places: dict[str, str]) -> str:
    said = [f"{what} ({place})" for what, place in places.items()]
    return ", ".join(said[:_MOST_SAID]) + (f" and {len(said) - _MOST_SAID} more" if len(said) > _MOST_SAID else "")


def _words(schema: Schema) -> list[str]:
    """The keywords of a schema that leave something to choose."""
    found = [key for key in schema if key in _LOGIC and key not in ("if", "then", "else")]
    return [*found, "if"] if "if" in schema and ("then" in schema or "else" in schema) else found


def _has_logic(schema: Schema) -> bool:
    inner = schema.get("allOf")
    members = inner if isinstance(inner, list) else []
    return any(key in _LOGIC for key in schema) or any(isinstance(one, dict) and _has_logic(one) for one in members)


def _other_than(texts: list[str]) -> str:
    """A pattern of all texts but these."""

    def others(rest: list[str]) -> str:
        by_first: dict[str, list[str]] = {}
        for text in rest:
            if text:
                by_first.setdefault(text[0], []).append(text[1:])
        ways = [f"{_character(first)}{others(behind)}" for first, behind in by_first.items()]
        ways.append(f"[^{''.join(map(_character, by_first))}][\\s\\S]*" if by_first else "[\\s\\S]+")
        return f"(?:{'|'.join(ways)}){'' if '' in rest else '?'}"

    return f"^{others(texts)}$"


def _character(character: str) -> str:
    return re.escape(character) if character.isascii() and character.isprintable() else f"\\x{{{ord(character):x}}}"


def _few_values(schema: Any) -> list[Any] | None:
    """All values of a schema, where they are few."""
    if not isinstance(schema, dict) or any(key not in ("type", "enum", "const") for key in schema):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if schema == {"type": "boolean"}:
        values = [False, True]
    if not isinstance(values, list) or any(kind_of(value) in ("array", "object") for value in values):
        return None
    found = list({as_key(value): value for value in values}.values())
    return found if len(found) <= _MOST_DIFFERENT and ("type" not in schema or schema == {"type": "boolean"}) else None
