"""`tools`, `tool_choice` and `parallel_tool_calls` of a request's body, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exlchat.api.errors import bad
from exlchat.api.fields import Fields

_MOST_TOOLS = 256
_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_ANY = {"type": "object"}

ToolChoice = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A function. `parameters` is the JSON schema of the object that it is called with."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: _ANY, hash=False)

    def as_told(self) -> dict[str, Any]:
        """As templates want it."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Offered:
    """What a model may call.

    Args:
        tools: those that may be called; none where nothing is to be called.
        told: those that the model is told of; all that were offered.
        forced: whether it has to call one.
        parallel: whether it may call several.
    """

    tools: tuple[Tool, ...] = ()
    told: tuple[Tool, ...] = ()
    forced: bool = False
    parallel: bool = True


def read_tools(fields: Fields) -> Offered:
    """Raises `ApiError` for a field that cannot be."""
    if fields.raw("functions") or fields.raw("function_call") not in (None, "none", "auto"):
        raise bad("functions", "functions: its successor is tools; name them there")
    tools = tuple(_tool(one, number) for number, one in enumerate(_listed(fields)))
    names = [one.name for one in tools]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise bad("tools", f"tools: {twice} is there twice; give each function a name of its own")
    parallel = fields.flag("parallel_tool_calls", default=True)
    choice = _choice(fields, tools)
    if isinstance(choice, Tool):
        return Offered((choice,), tools, forced=True, parallel=False)
    if choice != "none" and not tools and fields.raw("tool_choice") not in (None, "auto"):
        raise bad("tool_choice", "tool_choice: there are no tools to be called; give some, or leave it out")
    # Told of them it is even where it may not call: the conversation before may have calls in it.
    return Offered(() if choice == "none" else tools, tools, forced=choice == "required", parallel=parallel)


def _listed(fields: Fields) -> list[Any]:
    given = fields.listed("tools") or []
    if len(given) > _MOST_TOOLS:
        raise bad("tools", f"there are {len(given):,} tools; {_MOST_TOOLS} is most")
    return given


def _tool(value: Any, number: int) -> Tool:
    said = Fields(value if isinstance(value, dict) else {}, f"tools[{number}].")
    kind = said.text("type")
    if kind != "function":
        raise said.wrong("type", f"there is no {kind!r}; it must be function")
    function = said.nested("function")
    name = function.text("name")
    if not _NAME.fullmatch(name):
        raise function.wrong("name", "it must be 1 to 128 letters, digits and _ . : / -")
    return Tool(name, function.text("description"), function.mapping("parameters") or _ANY)


def _choice(fields: Fields, tools: tuple[Tool, ...]) -> ToolChoice | Tool:
    value = fields.raw("tool_choice")
    match value:
        case None:
            return "auto"
        case "none" | "auto" | "required":
            return value  # type: ignore[no-any-return]
        case "any":
            return "required"
        case {"type": "function", "function": {"name": str(name)}}:
            found = next((one for one in tools if one.name == name), None)
            if found is not None:
                return found
            raise bad("tool_choice", f"tool_choice: there is no tool {name[:60]!r} among those that are given")
    raise bad(
        "tool_choice", 'tool_choice must be none, auto, required or {"type": "function", "function": {"name": …}}'
    )
