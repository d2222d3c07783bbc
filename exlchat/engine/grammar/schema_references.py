"""Where the references of a JSON schema lead: each is settled once, as a pointer from the top of the document."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from exlchat.llm.constraint import ConstraintError

Schema = dict[str, Any]
"""A JSON schema that is an object; true and false are schemas too."""

LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
MAPS = ("properties", "patternProperties", "dependentSchemas", "dependencies")
SINGLE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else")
# The library has none of these, and refuses them; what they lead to need not be there.
_SHELVES = ("$defs", "definitions")
BESIDE_REFERENCES = 2019
"""The first draft in which something may stand beside a reference."""
_NEWEST = 2020
_SINCE = {
    "const": 6,
    "contains": 6,
    "propertyNames": 6,
    "if": 7,
    "dependentRequired": 2019,
    "dependentSchemas": 2019,
    "unevaluatedItems": 2019,
    "unevaluatedProperties": 2019,
    "prefixItems": 2020,
}
_UNTIL = {"dependencies": 7}


class SchemaDocument:
    """A JSON schema whose references are pointers, as "#/$defs/a". Changes the schema it is given.

    Attributes:
        root: the whole.
        targets: what each pointer that is referred to leads to.
        places: of each schema that is reached, by its identity, where it stands.
        draft: of JSON Schema, as 4, 7 or 2020.

    Raises:
        ConstraintError: a reference leads nowhere, or to another document.
    """

    def __init__(self, root: Schema) -> None:
        self.root = root
        self.targets: dict[str, Any] = {}
        self.places: dict[int, str] = {}
        named = re.search(r"/draft(?:-0|/)(\d+)", str(root.get("$schema", "")))
        self.draft = int(named[1]) if named else _NEWEST
        self._shelf = _Shelf(root)
        waiting: list[tuple[str, Any, str]] = [("#", root, "")]
        while waiting:
            place, schema, base = waiting.pop()
            if not isinstance(schema, dict) or id(schema) in self.places:
                continue
            self.places[id(schema)] = place
            base = _joined(base, _identity(schema))
            waiting += [(f"{place}/{part}", inner, base) for part, inner in reversed(list(parts(schema)))]
            if isinstance(schema.get("$ref"), str):
                target, found, base = self._shelf.find(schema["$ref"], base)
                schema["$ref"] = target
                self.targets[target] = found
                waiting.append((target, found, base))

    def knows(self, keyword: str) -> bool:
        """Whether its draft has a keyword: one that it lacks means nothing there, and nothing can be taken from it."""
        return _SINCE.get(keyword, 0) <= self.draft <= _UNTIL.get(keyword, _NEWEST)


class _Shelf:
    """What a document holds: resources by their address, and what they call by a name."""

    def __init__(self, root: Schema) -> None:
        self._resources: dict[str, tuple[str, Any]] = {"": ("#", root)}
        self._anchors: dict[str, tuple[str, Any]] = {}
        waiting: list[tuple[str, Any, str]] = [("#", root, "")]
        while waiting:
            place, schema, base = waiting.pop()
            if not isinstance(schema, dict):
                continue
            name = _identity(schema)
            base = _joined(base, name)
            if name:
                self._resources.setdefault(base, (place, schema))
            for anchor in (schema.get("$anchor"), schema.get("$id"), schema.get("id")):
                if isinstance(anchor, str) and (anchor.startswith("#") or anchor == schema.get("$anchor")):
                    self._anchors.setdefault(f"{base}#{anchor.removeprefix('#')}", (place, schema))
            waiting += [(f"{place}/{part}", inner, base) for part, inner in parts(schema, shelves=True)]

    def find(self, reference: str, base: str) -> tuple[str, Any, str]:
        """The pointer from the top, what is there, and the address that references in it are relative to."""
        address, fragment = urldefrag(reference)
        base = _joined(base, address)
        place, found = self._resources.get(base.removesuffix("#"), (None, None))
        if place is None:
            raise ConstraintError("the JSON schema: a $ref to another document is not followed; copy it to $defs")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            place, found = self._anchors.get(f"{base}#{fragment}", (None, None))
        for part in fragment.split("/")[1:] if fragment.startswith("/") else ():
            found = _inside(found, part.replace("~1", "/").replace("~0", "~"))
            place = f"{place}/{part}"
        if not place or not isinstance(found, dict | bool):
            raise ConstraintError(f"the JSON schema: the $ref to #{fragment[:80]} leads nowhere")
        return place, found, base


def parts(schema: Schema, *, shelves: bool = False) -> Iterator[tuple[str, Any]]:
    """The schemas directly within one, with their names as a pointer has them; with `shelves` also those put away."""
    for key, inner in schema.items():
        if isinstance(inner, dict) and (key in MAPS or (shelves and key in _SHELVES)):
            yield from ((f"{key}/{name.replace('~', '~0').replace('/', '~1')}", one) for name, one in inner.items())
        elif isinstance(inner, list) and key in LISTS:
            yield from ((f"{key}/{number}", one) for number, one in enumerate(inner))
        elif key in SINGLE:
            yield key, inner


def _identity(schema: Schema) -> str:
    """What a schema calls itself; a name within its document is no address."""
    for key in ("$id", "id"):
        name = schema.get(key)
        if isinstance(name, str) and not name.startswith("#"):
            return name
    return ""


def _joined(base: str, address: str) -> str:
    try:
        return urldefrag(urljoin(base, address))[0]
    except ValueError:
        raise ConstraintError(f"the JSON schema: {address[:80]!a} is no address") from None


def _inside(found: Any, name: str) -> Any:
    if isinstance(found, dict):
        return found.get(name)
    if isinstance(found, list) and name.isdecimal() and len(name) < 10 and int(name) < len(found):
        return found[int(name)]
    return None
