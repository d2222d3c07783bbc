"""How model families write calls of functions: told by what their templates write, read from what they say.

Formats are those of the families' own chat templates; `tests/api/test_tool_families.py` has examples of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from exlchat.api.tools.offered import Tool

Body = Literal["objects", "list", "own"]
_SPACE = r"/[ \n]{0,2}/"
"""Bounded: a model that is held to a call it did not want may write nothing else for ever. So are objects."""
_WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""As templates write them."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Family:
    """How calls are marked.

    Args:
        name: of the first that wrote so.
        signs: texts of which a template that writes so has all.
        opening: what stands before calls; "" where they begin the answer.
        body: what stands behind it: JSON objects, each with `closing` behind it and `opening` before the next; one
            list of them; or something of its own, which no grammar here writes.
        closing: behind an object.
        arguments: what the object calls them.
        read: the calls in a text from `opening` on, for bodies of their own.
    """

    name: str
    signs: tuple[str, ...]
    opening: str
    body: Body = "objects"
    closing: str = ""
    arguments: str = "arguments"
    called: str = "name"
    read: Callable[[str, Sequence[Tool]], list[ToolCall]] | None = None

    def grammar(self, tools: Sequence[Tool], *, parallel: bool) -> str | None:
        """What has to stand behind `opening`, in llguidance's Lark; `None` where nothing here writes it."""
        if self.body == "own":
            return None
        one = _schema(self, tools)
        if self.body == "list":
            listed = {"type": "array", "items": one, "minItems": 1, "x-guidance": _WRITING}
            listed |= {} if parallel else {"maxItems": 1}
            return f"start: {_SPACE} calls\ncalls: %json {json.dumps(listed)}\n"
        closing = f" {_SPACE} {json.dumps(self.closing)}" if self.closing else ""
        more = f" ({_SPACE} {json.dumps(self.opening)} {_SPACE} call)*" if parallel and self.opening else ""
        schema = json.dumps(one | {"x-guidance": _WRITING})
        return f"start: {_SPACE} call{more}\ncall: object{closing}\nobject: %json {schema}\n"

    def calls(self, text: str, tools: Sequence[Tool]) -> tuple[str, list[ToolCall]]:
        """What a text says beside its calls, and these; none where nothing reads as calls of these tools."""
        at = text.find(self.opening) if self.opening else len(text) - len(text.lstrip())
        if at < 0:
            return text, []
        try:
            found = (
                self.read(text[at:], tools) if self.read is not None else self._objects(text[at + len(self.opening) :])
            )
        except (ValueError, RecursionError):
            return text, []
        names = {one.name for one in tools}
        if not found or not all(one.name in names for one in found):
            return text, []
        return text[:at].rstrip(), found

    def _objects(self, text: str) -> list[ToolCall]:
        # Between two calls stands the mark again, which may hold brackets.
        text = text.replace(self.opening, "\n") if self.opening else text
        found: list[ToolCall] = []
        decoder = json.JSONDecoder()
        position = 0
        while (start := _next(text, position)) is not None:
            try:
                value, position = decoder.raw_decode(text, start)
            except ValueError:
                if not found:
                    raise
                # The answer was cut within a call; those before it are whole.
                break
            found += [self._call(one) for one in (value if isinstance(value, list) else [value])]
        return found

    def _call(self, value: Any) -> ToolCall:
        """Raises `ValueError` for what is none."""
        if not isinstance(value, Mapping) or not isinstance(value.get(self.called), str):
            raise ValueError("no call")
        given: Any = next((value[key] for key in (self.arguments, "arguments", "parameters") if key in value), {})
        if isinstance(given, str):
            given = json.loads(given)
        if not isinstance(given, Mapping):
            raise ValueError("no arguments")
        return ToolCall(value[self.called], json.dumps(given, ensure_ascii=False))


def _schema(family: Family, tools: Sequence[Tool]) -> dict[str, Any]:
    """Of a call of one of them, with the keys in the family's order."""
    each = [
        {
            "type": "object",
            "properties": {family.called: {"const": one.name}, family.arguments: dict(one.parameters)},
            "required": [family.called, family.arguments],
            "additionalProperties": False,
        }
        for one in tools
    ]
    return each[0] if len(each) == 1 else {"anyOf": each}


def _next(text: str, position: int) -> int | None:
    found = [at for mark in "{[" if (at := text.find(mark, position)) >= 0]
    return min(found, default=None)


# Bodies of their own


def _arguments(pairs: Mapping[str, str], name: str, tools: Sequence[Tool]) -> str:
    """Texts by parameter as JSON: what is to be a text stays one."""
    known = next((one.parameters.get("properties") for one in tools if one.name == name), None)
    kinds = known if isinstance(known, Mapping) else {}
    return json.dumps({key: _value(text, kinds.get(key)) for key, text in pairs.items()}, ensure_ascii=False)


def _value(text: str, schema: Any) -> Any:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


_GLM = re.compile(r"<tool_call>\s*([^\s<]+)(.*?)</tool_call>", re.DOTALL)
_GLM_PAIR = re.compile(r"<arg_key>\s*(.*?)\s*</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


def _glm(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    return [
        ToolCall(name, _arguments({key: value.strip() for key, value in _GLM_PAIR.findall(rest)}, name, tools))
        for name, rest in _GLM.findall(text)
    ]


_CODER = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_CODER_PAIR = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


def _coder(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
    return [
        ToolCall(name, _arguments(dict(_CODER_PAIR.findall(rest)), name, tools)) for name, rest in _CODER.findall(text)
    ]


def _by(pattern: str) -> Callable[[str, Sequence[Tool]], list[ToolCall]]:
    """A reader of `name` and `arguments`, which are JSON."""
    compiled = re.compile(pattern, re.DOTALL)

    def read(text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        del tools
        found = []
        for match in compiled.finditer(text):
            value, _ = json.JSONDecoder().raw_decode(text, match.end())
            if not isinstance(value, dict):
                raise ValueError("no arguments")
            found.append(ToolCall(match["name"], json.dumps(value, ensure_ascii=False)))
        return found

    return read


FAMILIES = (
    Family(
        "gpt-oss",
        ("to=functions.", "<|channel|>"),
        "<|channel|>commentary to=functions.",
        "own",
        read=_by(r"to=functions\.(?P<name>[\w.-]+)(?:[^{]*?)<\|message\|>\s*(?=\{)"),
    ),
    Family(
        "DeepSeek V3",
        ("<｜tool▁calls▁begin｜>",),
        "<｜tool▁calls▁begin｜>",
        "own",
        read=_by(
            r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?(?P<name>[\w.-]+)\s*(?:<｜tool▁sep｜>)?\s*(?:```json)?\s*(?=\{)"
        ),
    ),
    Family(
        "Kimi K2",
        ("<|tool_call_begin|>",),
        "<|tool_calls_section_begin|>",
        "own",
        read=_by(
            r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w.-]+?)(?::\d+)?\s*"
            r"<\|tool_call_argument_begin\|>\s*(?=\{)"
        ),
    ),
    Family("GLM 4.5", ("<tool_call>", "<arg_key>"), "<tool_call>", "own", read=_glm),
    Family("Qwen3 Coder", ("<tool_call>", "<function="), "<tool_call>", "own", read=_coder),
    Family(
        "Mistral 3.1",
        ("[TOOL_CALLS]", "[ARGS]"),
        "[TOOL_CALLS]",
        "own",
        read=_by(r"(?P<name>[\w.-]+)\[ARGS\]\s*(?=\{)"),
    ),
    Family("Mistral", ("[TOOL_CALLS]",), "[TOOL_CALLS]", "list"),
    Family(
        "Command R7B", ("<|START_ACTION|>",), "<|START_ACTION|>", "list", arguments="parameters", called="tool_name"
    ),
    Family("Granite 3, Phi-4", ("<|tool_call|>",), "<|tool_call|>", "list"),
    Family("Hermes, Qwen", ("<tool_call>",), "<tool_call>", "objects", "</tool_call>"),
    Family("Llama 3", ('"parameters":', "ipython"), "", "objects", arguments="parameters"),
)
"""The first whose signs a template has."""

PLAIN = Family("plain", (), "<tool_call>", "objects", "</tool_call>")
"""For formats that know no tools: the model is told of them, and of how to call one, by a text."""


def family_of(source: str) -> Family | None:
    """Of a template; `None` where it is told of no tools."""
    if "tools" not in source:
        return None
    return next((one for one in FAMILIES if all(sign in source for sign in one.signs)), PLAIN)
