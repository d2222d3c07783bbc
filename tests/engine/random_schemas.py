"""JSON schemas that an answer of some hundred tokens can match: of every kind that is promised, and small."""

from __future__ import annotations

import random
from typing import Any

_FORMATS = ("date", "time", "date-time", "ipv4", "uuid", "duration")
_PATTERNS = ("^[a-z]{1,6}$", "^[A-Z][a-z]{0,4}-[0-9]{2}$", "^(red|green|blue)$", "^x?y{2,4}$", "^[äöü日本]{1,3}$")
_WORDS = ("a", "name", "größe", "日本", "two words", 'quo"te', "back\\slash", "e", "kind", "x/y")
Schema = dict[str, Any]


class RandomSchemas:
    """Schemas from one seed; `root` is one whole."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._defs: dict[str, Schema] = {}

    def root(self) -> Schema:
        source = self._random
        if source.random() < 0.5:
            self._defs["leaf"] = self._leaf()
        if source.random() < 0.3:
            # A list by reference: it ends because `next` may be left out.
            self._defs["chain"] = {
                "type": "object",
                "properties": {"value": self._leaf(), "next": {"$ref": "#/$defs/chain"}},
                "required": ["value"],
                "additionalProperties": False,
            }
        schema = self._any(2) if source.random() < 0.3 else source.choice((self._object, self._array))(2)
        return {**schema, "$defs": self._defs} if self._defs else schema

    def _any(self, depth: int) -> Schema:
        source = self._random
        choices = [self._leaf, self._leaf, self._either(depth)]
        if self._defs:
            choices.append(lambda: {"$ref": "#/$defs/" + source.choice(sorted(self._defs))})
        if depth > 0:
            choices += [lambda: self._object(depth), lambda: self._array(depth), self._conditioned]
        return source.choice(choices)()

    def _either(self, depth: int) -> Any:
        return lambda: {"anyOf": [self._any(depth - 1) if depth > 0 else self._leaf() for _ in range(2)]}

    def _object(self, depth: int) -> Schema:
        source = self._random
        names = source.sample(_WORDS, source.randint(1, 3))
        schema: Schema = {"type": "object", "properties": {name: self._any(depth - 1) for name in names}}
        required = [name for name in names if source.random() < 0.6]
        if required or source.random() < 0.5:
            schema["required"] = required
        schema["additionalProperties"] = False
        return schema

    def _array(self, depth: int) -> Schema:
        source = self._random
        least = source.randint(0, 2)
        schema: Schema = {"type": "array", "items": self._any(depth - 1), "maxItems": least + source.randint(0, 2)}
        if least or source.random() < 0.5:
            schema["minItems"] = least
        if source.random() < 0.2:
            schema["prefixItems"] = [self._leaf()]
        return schema

    def _conditioned(self) -> Schema:
        """What the library does not have, and exlchat lays out."""
        source = self._random
        texts = source.sample(_WORDS, 3)
        tagged = [
            {
                "type": "object",
                "properties": {"kind": {"const": text}, name: self._leaf()},
                "required": ["kind"],
                "additionalProperties": False,
            }
            for text, name in zip(texts, source.sample(("a", "e"), 2), strict=False)
        ]
        record = {"type": "object", "properties": {"a": self._leaf(), "e": self._leaf(), "kind": {"enum": texts}}}
        record["additionalProperties"] = False
        return source.choice(
            (
                {"oneOf": tagged},
                {
                    "oneOf": [
                        {"type": "string", "maxLength": 5},
                        {"enum": ["a", "e", 17]},
                        {"type": ["null", "boolean"]},
                    ]
                },
                {"type": ["string", "null"], "maxLength": 4, "not": {"enum": texts}},
                {"type": "integer", "minimum": 0, "maximum": 90, "not": {"const": 7}},
                {**record, "dependentRequired": {"a": ["kind"], "e": ["a"]}},
                {**record, "oneOf": [{"required": ["a"]}, {"required": ["e"]}]},
                {
                    **record,
                    "if": {"properties": {"kind": {"const": texts[0]}}, "required": ["kind"]},
                    "then": {"required": ["a"]},
                    "else": {"not": {"required": ["e"]}},
                },
                {"type": "string", "maxLength": 6, "format": "directory-path"},
                {"type": "array", "items": {"enum": texts}, "uniqueItems": True, "minItems": 1},
            )
        )

    def _leaf(self) -> Schema:
        return self._random.choice(
            (self._string, self._string, self._integer, self._number, self._enum, self._const, self._plain)
        )()

    def _string(self) -> Schema:
        source = self._random
        match source.randint(0, 2):
            case 0:
                least = source.randint(0, 3)
                return {"type": "string", "minLength": least, "maxLength": least + source.randint(0, 6)}
            case 1:
                return {"type": "string", "pattern": source.choice(_PATTERNS)}
            case _:
                return {"type": "string", "format": source.choice(_FORMATS)}

    def _integer(self) -> Schema:
        source = self._random
        least = source.randint(-1000, 1000)
        schema: Schema = {"type": "integer", source.choice(("minimum", "exclusiveMinimum")): least}
        schema[source.choice(("maximum", "exclusiveMaximum"))] = least + source.randint(30, 5000)
        if source.random() < 0.3:
            schema["multipleOf"] = source.choice((2, 3, 7))
        return schema

    def _number(self) -> Schema:
        least = self._random.randint(-100, 100) / 8
        return {"type": "number", "minimum": least, "exclusiveMaximum": least + self._random.randint(1, 50)}

    def _enum(self) -> Schema:
        values = [*_WORDS, 1, -2.5, True, None, ["a", 1], {"b": "c"}]
        return {"enum": self._random.sample(values, self._random.randint(1, 4))}

    def _const(self) -> Schema:
        return {"const": self._random.choice((*_WORDS, 17, False, None, [1, 2], {"x": [None]}))}

    def _plain(self) -> Schema:
        return {"type": self._random.choice(("boolean", "null", ["boolean", "null"]))}


_SCALARS = (None, True, False, -1, 0, 1, 1.5, 2, 3, 7, "", "a", "b", "ab", "abc", "red")
_NAMES = "abc"


class ConditionedSchemas:
    """Schemas full of conditions, exclusions and choices that overlap, and values that may match, from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def value(self, depth: int = 2) -> Any:
        source = self._random
        dice = source.random()
        if depth == 0 or dice < 0.45:
            return source.choice(_SCALARS)
        if dice < 0.85:
            return {name: self.value(depth - 1) for name in _NAMES if source.random() < 0.5}
        return [self.value(depth - 1) for _ in range(source.randint(0, 3))]

    def schema(self, depth: int = 3) -> Any:
        source = self._random
        dice = source.random()
        if depth <= 0 or dice < 0.2:
            return self._leaf()
        if dice < 0.4:
            return self._object(depth)
        if dice < 0.5:
            return {"type": "array", "items": self.schema(depth - 1), "maxItems": source.randint(1, 3)}
        base = source.choice(({}, {"type": "object"}, {"type": ["string", "integer", "object"]}, self._object(1)))
        return {**base, **self._condition(depth - 1)}

    def _condition(self, depth: int) -> Schema:
        source = self._random
        match source.randint(0, 5):
            case 0:
                return {"oneOf": [self.schema(depth) for _ in range(source.randint(2, 3))]}
            case 1:
                return {"not": self.schema(depth)}
            case 2:
                follows = {key: self.schema(depth) for key in ("then", "else") if source.random() < 0.7}
                return {"if": self.schema(depth), **follows}
            case 3:
                return {"dependentRequired": {"a": ["b"], **({"b": ["c"]} if source.random() < 0.3 else {})}}
            case 4:
                return {"dependentSchemas": {"a": self.schema(depth)}}
            case _:
                return {"allOf": [self.schema(depth), self.schema(depth)]}

    def _object(self, depth: int) -> Schema:
        source = self._random
        schema: Schema = {"type": "object"}
        schema["properties"] = {name: self.schema(depth - 1) for name in _NAMES if source.random() < 0.6}
        if source.random() < 0.5:
            schema["required"] = [name for name in schema["properties"] if source.random() < 0.5]
        if source.random() < 0.5:
            schema["additionalProperties"] = False
        return schema

    def _leaf(self) -> Any:
        source = self._random
        return source.choice(
            (
                {"type": source.choice(("string", "integer", "number", "boolean", "null"))},
                {"enum": source.sample(_SCALARS, source.randint(1, 4))},
                {"const": source.choice(_SCALARS)},
                {"type": "string", "maxLength": source.randint(0, 2)},
                {"type": "string", "minLength": source.randint(1, 3)},
                {"minimum": source.randint(-1, 3)},
                {"type": "integer", "exclusiveMinimum": source.randint(0, 2)},
                {"type": ["string", "null"]},
                True,
            )
        )
