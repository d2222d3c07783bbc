"""What an answer has to be, as requests to several servers say it. What nothing can be held to is refused."""

from __future__ import annotations

import json
from typing import Any

from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.llm.constraint import Constraint, ConstraintKind

_ANY_OBJECT = {"type": "object"}
_NAMES: tuple[tuple[ConstraintKind, tuple[str, ...]], ...] = (
    ("json_schema", ("json_schema", "guided_json")),
    ("regex", ("regex", "regex_pattern", "guided_regex")),
    ("choice", ("choice", "guided_choice")),
    ("grammar", ("grammar", "grammar_string", "guided_grammar")),
)
"""OpenAI's `response_format` comes first; these are ours, TabbyAPI's and vLLM's."""
_STRUCTURED: tuple[tuple[ConstraintKind, str], ...] = (
    ("json_schema", "json"),
    ("regex", "regex"),
    ("choice", "choice"),
    ("grammar", "grammar"),
)


def constraint_of(fields: Fields) -> Constraint | None:
    """Raises `ApiError`: it cannot be, or several are given."""
    found = dict(_response_format(fields))
    for kind, names in _NAMES:
        for name in names:
            # SillyTavern sends an empty one where it means none.
            if fields.raw(name) not in (None, "", {}, []):
                found[name] = _made(name, kind, fields.raw(name))
    structured = fields.nested("structured_outputs")
    for kind, name in _STRUCTURED:
        if name in structured:
            found[f"structured_outputs.{name}"] = _made(f"structured_outputs.{name}", kind, structured.raw(name))
    if len(found) > 1:
        raise bad(list(found)[1], f"{' and '.join(found)} both say what the answer has to be; leave one of them out")
    return next(iter(found.values()), None)


def _response_format(fields: Fields) -> dict[str, Constraint]:
    wanted = fields.nested("response_format")
    match wanted.text("type", "text"):
        case "text":
            return {}
        case "json_object":
            # llama.cpp has a schema beside it.
            schema = wanted.raw("schema") or _ANY_OBJECT
            return {"response_format": _made("response_format.schema", "json_schema", schema)}
        case "json_schema":
            given = wanted.nested("json_schema")
            for name in ("name", "description", "strict"):
                given.raw(name)
            schema = given.raw("schema")
            if not isinstance(schema, dict):
                raise given.wrong("schema", "there is none; give a JSON schema")
            return {"response_format": _made("response_format.json_schema.schema", "json_schema", schema)}
        case other:
            raise wanted.wrong("type", f"there is no {other!r}; it must be text, json_object or json_schema")


def _made(name: str, kind: ConstraintKind, value: Any) -> Constraint:
    try:
        return Constraint(kind, _text(kind, value))
    except ValueError as error:
        raise bad(name, f"{name}: {error}") from None


def _text(kind: ConstraintKind, value: Any) -> str:
    if kind == "json_schema" and isinstance(value, dict | bool):
        return json.dumps(value)
    if kind == "json_schema" and isinstance(value, str):
        json.loads(value)
        return value
    if kind == "choice":
        if not isinstance(value, list) or not all(isinstance(one, str) and len(one.splitlines()) == 1 for one in value):
            raise ValueError("it must be a list of texts of one line each")
        return "\n".join(value)
    if not isinstance(value, str):
        raise ValueError("it must be a text" if kind != "json_schema" else "it must be a JSON schema")
    return value
