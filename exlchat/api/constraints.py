"""What an answer has to be, as requests say it."""

from __future__ import annotations

import json

from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.llm.constraint import Constraint

_ANY_OBJECT = '{"type": "object"}'


def constraint_of(fields: Fields) -> Constraint | None:
    """Raises `ApiError`: what no answer can be held to is refused, never ignored."""
    wanted = fields.nested("response_format")
    match wanted.text("type", "text"):
        case "text":
            return None
        case "json_object":
            return Constraint("json_schema", _ANY_OBJECT)
        case "json_schema":
            given = wanted.nested("json_schema")
            for name in ("name", "description", "strict"):
                given.raw(name)
            schema = given.raw("schema")
            if not isinstance(schema, dict):
                raise given.wrong("schema", "there is none; give a JSON schema")
            return _made(schema)
        case other:
            raise wanted.wrong("type", f"there is no {other!r}; it must be text, json_object or json_schema")


def _made(schema: dict[str, object]) -> Constraint:
    try:
        return Constraint("json_schema", json.dumps(schema))
    except ValueError as error:
        raise bad("response_format.json_schema.schema", str(error)) from None
