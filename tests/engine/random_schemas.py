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
            choices += [lambda: self._object(depth), lambda: self._array(depth)]
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
