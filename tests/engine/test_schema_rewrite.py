"""What the grammar library does not have of JSON Schema, and answers are held to anyway; `jsonschema` is the judge."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for

from exlchat.engine.grammar import check_constraint, constraint_notice
from exlchat.engine.grammar.matcher import open_matcher
from exlchat.engine.grammar.schema_rewrite import FORMATS
from exlchat.engine.grammar.source import source_of
from exlchat.engine.grammar.vocabulary import single_bytes
from exlchat.llm.constraint import Constraint, ConstraintError
from tests.engine.random_schemas import ConditionedSchemas
from tests.patience import within

MANY_WORDS = r"^(?:\S+\s+){0,99}\S+$"


def held(schema: Any) -> Constraint:
    return Constraint("json_schema", json.dumps(schema))


def admits(constraint: Constraint, value: Any) -> bool:
    """Whether a value can be an answer, its properties in whichever order."""
    return any(_admits_text(constraint, json.dumps(one, ensure_ascii=False)) for one in orders(value))


def _admits_text(constraint: Constraint, text: str) -> bool:
    matcher = open_matcher(single_bytes(), source_of(constraint).plain, constraint)
    said = list(text.encode())
    return matcher.try_consume_tokens(said) == len(said) and matcher.is_accepting()


def orders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for names in itertools.permutations(value):
            for parts in itertools.product(*(list(orders(value[name])) for name in names)):
                yield dict(zip(names, parts, strict=True))
    elif isinstance(value, list):
        yield from (list(parts) for parts in itertools.product(*(list(orders(one)) for one in value)))
    else:
        yield value


A_OR_B = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
CLOSED = {**A_OR_B, "additionalProperties": False}
KINDS = {"type": "object", "properties": {"kind": {"enum": ["x", "y", "z"]}, "n": {"type": "integer"}}}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "required": ["v"]}

EXACT: list[tuple[str, Any, list[Any], list[Any]]] = [
    ("a part of another", {"oneOf": [{"type": "string"}, {"enum": ["a", "b", 3]}]}, ["c", "", "aa", 3], ["a", "b", 4]),
    (
        "ranges that meet",
        {"oneOf": [{"type": "integer", "maximum": 5}, {"type": "integer", "minimum": 3}]},
        [2, 6],
        [3, 5],
    ),
    ("lengths that meet", {"type": "string", "oneOf": [{"minLength": 2}, {"maxLength": 4}]}, ["a", "abcde"], ["abc"]),
    (
        "one of two names",
        {**CLOSED, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        "closed objects that share only the empty one",
        {
            "oneOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False},
                {"type": "object", "properties": {"b": {"type": "integer"}}, "additionalProperties": False},
            ]
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    (
        "a const by reference",
        {
            "oneOf": [{"$ref": "#/$defs/x"}, {"$ref": "#/$defs/y"}],
            "$defs": {name: {"properties": {"kind": {"const": name}}, "required": ["kind"]} for name in "xy"},
            "type": "object",
        },
        [{"kind": "x"}, {"kind": "y"}],
        [{"kind": "z"}, {}],
    ),
    ("not a type", {"not": {"type": ["string", "object"]}}, [None, 1, [], True], ["a", {}]),
    (
        "not some texts",
        {"type": "string", "not": {"enum": ["", "ab", "日本"]}},
        ["a", "abc", "日", "日本x"],
        ["", "ab", "日本"],
    ),
    ("not a number", {"type": "integer", "not": {"const": 5}}, [4, 6, -5, 50], [5]),
    ("not a name", {**A_OR_B, "not": {"required": ["b"]}}, [{"a": 1}, {}], [{"b": 1}, {"a": 1, "b": 2}]),
    ("not what is not", {"not": {"not": {"const": "x"}}}, ["x"], ["y", 1]),
    (
        "if, then and else",
        {
            **KINDS,
            "if": {"properties": {"kind": {"const": "x"}}},
            "then": {"required": ["n"]},
            "else": {"required": ["m"]},
        },
        [{"kind": "x", "n": 1}, {"n": 1}, {"kind": "y", "m": 1}],
        [{"kind": "x"}, {"kind": "y"}, {}],
    ),
    (
        "several ifs",
        {
            **KINDS,
            "required": ["kind"],
            "allOf": [
                {"if": {"properties": {"kind": {"const": name}}}, "then": {"required": [f"p{name}"]}} for name in "xyz"
            ],
        },
        [{"kind": "x", "px": 1}, {"kind": "z", "pz": None}],
        [{"kind": "x", "py": 1}, {"kind": "y"}],
    ),
    ("names that depend", {**CLOSED, "dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    (
        "schemas that depend, in an old draft",
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            **A_OR_B,
            "dependencies": {"a": {"properties": {"b": {"minimum": 5}}}, "b": ["a"]},
        },
        [{}, {"a": 1}, {"a": 1, "b": 5}],
        [{"b": 5}, {"a": 1, "b": 4}],
    ),
    (
        "few values, each once",
        {"type": "array", "items": {"enum": ["a", "b", 3]}, "uniqueItems": True, "minItems": 1},
        [["a"], ["b", "a"], [3, "a", "b"]],
        [[], ["a", "a"], ["c"]],
    ),
    (
        "a reference into what is laid out",
        {"properties": {"p": {"oneOf": [{"type": "string"}, {"const": "x"}]}, "q": {"$ref": "#/properties/p/oneOf/1"}}},
        [{"p": "y", "q": "x"}],
        [{"p": "x"}, {"q": "y"}],
    ),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), [case[1:] for case in EXACT], ids=[case[0] for case in EXACT])
def test_what_a_schema_asks_for_is_what_can_be_answered(schema: Any, valid: list[Any], invalid: list[Any]) -> None:
    constraint = held(schema)
    check_constraint(constraint)
    judge = validator_for(schema, default=Draft202012Validator)(schema)
    assert [admits(constraint, value) for value in (*valid, *invalid)] == [True] * len(valid) + [False] * len(invalid)
    assert [judge.is_valid(value) for value in (*valid, *invalid)] == [True] * len(valid) + [False] * len(invalid)
    assert constraint_notice(constraint) is None


@pytest.mark.parametrize("first", range(0, 300, 50))
@pytest.mark.sweep(2)
def test_no_answer_is_wrong_and_few_right_ones_are_missing(first: int) -> None:
    right = said = taken = 0
    for seed in range(first, first + 50):
        source = ConditionedSchemas(seed)
        schema = source.schema()
        try:
            open_matcher(single_bytes(), source_of(held(schema)).plain, held(schema))
        except ConstraintError:
            continue
        taken += 1
        judge = Draft202012Validator(schema)
        for value in (source.value() for _ in range(12)):
            valid, admitted = judge.is_valid(value), admits(held(schema), value)
            assert valid or not admitted, (seed, schema, value)
            right, said = right + valid, said + (valid and admitted)
    assert taken > 30
    assert said >= 0.9 * right


REFUSED = [
    ({"properties": {"p": {"not": {"type": "string", "pattern": "x"}, "type": "string"}}}, "#/properties/p/not"),
    ({"items": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "#/items/oneOf"),
    ({"not": {}}, "#/not"),
    ({"allOf": [{"if": {"type": "string", "pattern": "x"}, "else": False}, {"not": {"pattern": "x"}}]}, "#/allOf/0/if"),
    ({"dependentRequired": {f"p{n}": [f"q{n}"] for n in range(12)}}, "the whole has conditions .* more than 128 ways"),
]


@pytest.mark.parametrize(("schema", "place"), REFUSED)
def test_what_cannot_be_held_is_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(ConstraintError, match=place) as error:
        check_constraint(held(schema))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_what_is_not_held_is_named_in_a_line_and_what_says_nothing_is_not() -> None:
    paths = {"type": "string", "format": "path"}
    schema = {"type": "object", "properties": {"file": paths, "tags": {"type": "array", "uniqueItems": True}}}
    assert constraint_notice(held(schema)) == (
        "the JSON schema: answers are not held to the format 'path' (#/properties/file), "
        "uniqueItems (#/properties/tags)"
    )
    check_constraint(held(schema))
    assert admits(held(schema), {"file": "/tmp/x", "tags": [1, 2]})
    silent = {"title": "T", "deprecated": True, "examples": [1], "contentMediaType": "text/plain", "$comment": "-"}
    assert (
        constraint_notice(held({**silent, "x-order": 3, "type": "string", "format": "date", "readOnly": True})) is None
    )
    assert constraint_notice(held({"type": "array", "uniqueItems": True, "maxItems": 1})) is None
    assert constraint_notice(Constraint("regex", "a+")) is None
    assert constraint_notice(held({"not": {}})) is None


@pytest.mark.parametrize(
    "name", ["file-path", "color", "json-string", "password", "binary", "int64", "uuid4", "\x1b[31m\n"]
)
def test_a_format_that_is_not_known_says_nothing_of_a_value(name: str) -> None:
    schema = {"type": "string", "format": name}
    check_constraint(held(schema))
    assert admits(held(schema), "any text")
    notice = constraint_notice(held(schema))
    assert notice is not None
    assert notice.isprintable()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_that_the_library_has_is_held(name: str) -> None:
    check_constraint(held({"type": "string", "format": name}))
    assert not admits(held({"type": "string", "format": name}), " !")
    assert constraint_notice(held({"type": "string", "format": name})) is None


# A pattern with a length


def test_words_with_a_length_go_on_behind_the_first() -> None:
    constraint = held({"type": "string", "pattern": MANY_WORDS, "maxLength": 5000})
    check_constraint(constraint)
    for text in ("one", "one two", " ".join(["letters"] * 100), "ä " * 99 + "ä"):
        assert admits(constraint, text), text
    for text in ("", " one", "one ", " ".join(["a"] * 101)):
        assert not admits(constraint, text), text
    assert constraint_notice(constraint) == (
        "the JSON schema: repetitions of a pattern are kept short for its maxLength (the whole)"
    )


PATTERNS = [
    MANY_WORDS,
    r"^(?:\S+\s+){0,9}\S+$",
    r"^(?:\S+\s+)*\S+$",
    r"^(\w+\W+){3}\w+$",
    r"^[a-z]+$",
    r"^a|b$",
    "x.*y",
    r"^[^,]+(,[^,]+){0,20}$",
    r"^\+?[0-9 ]{3,20}$",
    r"^$|^\S+$",
    r"^(?:a{2,}b?)+$",
    r"^\^+\$?[]x^]?$",
]
TEXTS = ["", "a", "aab", "xy", "xzzy", "a b", "a b c d", "aa,b", "ä, ö, ü, ß", "+123 45", "^^$", "^]", " ", "b" * 70]
TEXTS += [" ".join(["word"] * count) for count in (2, 4, 11, 60)] + [",".join("ab" * 12), "aabaab" * 9, "x" * 40 + "y"]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("bounds", [(0, 5), (0, 60), (3, 8), (2, None), (0, 300), (0, 5000), (0, 100_000)])
def test_a_pattern_keeps_to_its_length(pattern: str, bounds: tuple[int, int | None]) -> None:
    least, most = bounds
    schema = {"type": "string", "pattern": pattern, "minLength": least} | ({} if most is None else {"maxLength": most})
    try:
        check_constraint(held(schema))
    except ConstraintError as error:
        assert re.search("pattern|no string matches", str(error))  # noqa: PT017
        return
    narrow = constraint_notice(held(schema)) is not None
    for text in TEXTS:
        # JSON Schema has ECMA's expressions, where \w are letters of ASCII.
        valid = bool(re.search(pattern, text, re.ASCII)) and least <= len(text) and (most is None or len(text) <= most)
        assert admits(held(schema), text) in ((valid, False) if narrow else (valid,)), text


# Bounds


def deep(levels: int) -> Any:
    schema: Any = {"type": "string"}
    for number in range(levels):
        schema = {"oneOf": [schema, {"properties": {f"p{number}": {"not": schema}}, "type": "object"}]}
    return schema


HOSTILE = [
    {"oneOf": [{"properties": {f"p{n}{m}": {"type": "integer"} for m in range(8)}} for n in range(40)]},
    {"oneOf": [{"enum": [f"v{(n * 7 + m) % 500}" for m in range(300)]} for n in range(60)]},
    {"allOf": [{"if": {"required": [f"p{n}"]}, "then": {"required": [f"q{n}"]}} for n in range(200)]},
    {"allOf": [{"oneOf": [{"required": [f"a{n}"]}, {"required": [f"b{n}"]}]} for n in range(30)]},
    {"not": {"enum": [f"{n}" * 90 for n in range(1_000)]}},
    {"type": "number", "not": {"enum": list(range(10_000))}},
    {"not": {"$ref": "#"}},
    {"oneOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]},
    {"$defs": {"node": NODE}, "oneOf": [{"$ref": "#/$defs/node"}, {"properties": {"v": {"$ref": "#"}}}]},
    {"if": {"$ref": "#/$defs/a"}, "then": {"$ref": "#"}, "else": False, "$defs": {"a": {"not": {"$ref": "#"}}}},
    deep(12),
    {"properties": {f"p{n}": {"pattern": r"^(\S+x){0,9}" + "[" * 900, "maxLength": 5000} for n in range(900)}},
    {
        "properties": {
            f"p{n}": {"pattern": "^" + r"(\S+x){0,9}" * 80 + f"{n}$", "maxLength": 50_000} for n in range(900)
        }
    },
    {"oneOf": [{"required": [f"p{n}-{m}" for m in range(400)]} for n in range(150)]},
    {"type": "string", "maxLength": 10**9, "pattern": r"^(\S+\s+){0,1000}(\S{1,900}){0,900}$"},
    {"type": "string", "maxLength": 5, "pattern": "^" + "(" * 200 + "a+" + ")" * 200 + "$"},
    {"type": "array", "uniqueItems": True, "items": {"enum": [1, 2, 3, 4]}, "minItems": 10**9},
    {"not": "x", "oneOf": 3, "if": [], "then": 0, "dependencies": {"a": 1}, "uniqueItems": "yes"},
]


@pytest.mark.parametrize("schema", HOSTILE, ids=range(len(HOSTILE)))
def test_what_would_be_laid_out_without_end_is_bounded(schema: Any) -> None:
    with within(5):
        try:
            check_constraint(held(schema))
        except ConstraintError as error:
            assert str(error).isprintable()  # noqa: PT017
