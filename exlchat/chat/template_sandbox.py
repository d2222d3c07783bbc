"""Running a Jinja chat template, which comes with a model and is therefore not trusted.

The sandbox keeps it away from Python; the bounds here keep it from running or growing without end. They stop the ways
that templates go wrong by accident or crude intent (endless loops, endless recursion, huge repetition), not every way
to waste memory. What a template can see and call follows `apply_chat_template` of transformers 5.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Environment, Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

SECONDS = 10.0
CHARACTERS = 16_000_000
NUMBER_BITS = 10_000

_DEADLINE = "deadline of this rendering"
"""Where a rendering keeps its deadline; no template can name a variable with spaces in it."""


def run(source: str, variables: Mapping[str, object]) -> str:
    """The text that the template `source` makes of `variables`.

    Raises:
        Exception: whatever the template runs into; it is the caller who knows how to name the template.
    """
    pieces: list[str] = []
    size = 0
    deadline = time.monotonic() + SECONDS
    for piece in _compiled(source).generate({**variables, _DEADLINE: deadline}):
        size += len(piece)
        if size > CHARACTERS:
            raise SecurityError(f"it wrote more than {CHARACTERS} characters")
        _check(deadline)
        pieces.append(piece)
    return "".join(pieces)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be huge, before it is carried out."""
        if _size_of(operator, left, right) > CHARACTERS or _bits_of(operator, left, right) > NUMBER_BITS:
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}`: marks the model's own words for training; to a chat it is a block like any other."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _SafeNamespace(Namespace):
    """A namespace that takes no name with a leading underscore: those reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # the first argument has no name so that `self=` stays free
        self, *rest = args
        names = dict(*rest, **kwargs)
        for name in names:
            _check_name(name)
        Namespace.__init__(self, names)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class _SafeDict:
    """`dict(...)` without the attributes of the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        """The one of the type's own functions that templates may want."""
        return dict.fromkeys(keys, value)


@lru_cache(maxsize=16)
def _compiled(source: str) -> Template:
    environment = _environment()
    tree = environment.parse(source)
    repeated: list[nodes.For | nodes.Macro] = [*tree.find_all(nodes.For), *tree.find_all(nodes.Macro)]
    for node in repeated:
        tick = nodes.Filter(nodes.Const(""), "tick", [], [], None, None)
        node.body.insert(0, nodes.Output([tick]).set_lineno(node.lineno))
        node.set_environment(environment)
    return environment.from_string(tree)


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters["tick"] = _tick
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["dict"] = _SafeDict()
    environment.globals["namespace"] = _SafeNamespace
    del environment.globals["lipsum"]
    return environment


def strftime_now(pattern: str) -> str:
    """The present local time in the form of `pattern`."""
    return datetime.now().strftime(pattern)


@pass_context
def _tick(context: Context, text: str) -> str:
    """Stands at the head of every loop and macro body; the context makes it run each time instead of once."""
    _check(context[_DEADLINE])
    return text


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SecurityError(f"it ran longer than {SECONDS:g} s")


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name with a leading underscore, such as {name!r}")


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a prompt is not."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _size_of(operator: str, left: Any, right: Any) -> int:
    """Length of a text or list result, at least roughly; 0 where the result is neither."""
    if operator == "%" and isinstance(left, str):
        widths = [int(width) for pair in re.findall(r"%[-+ #0]*(\d*)\.?(\d*)", left) for width in pair if width]
        stars = [value for value in (right if isinstance(right, tuple) else ()) if isinstance(value, int)]
        return max([0, *widths, *(stars if "*" in left else [])])
    sequences = (str, list, tuple)
    if operator == "+" and isinstance(left, sequences) and isinstance(right, sequences):
        return len(left) + len(right)
    if operator == "*" and isinstance(left, sequences) and isinstance(right, int):
        return len(left) * right
    if operator == "*" and isinstance(right, sequences) and isinstance(left, int):
        return len(right) * left
    return 0


def _bits_of(operator: str, left: Any, right: Any) -> int:
    """Bits of a whole-number result; 0 where the result is none."""
    if not (isinstance(left, int) and isinstance(right, int)):
        return 0
    if operator == "**":
        return left.bit_length() * max(right, 0)
    return left.bit_length() + right.bit_length() if operator == "*" else 0
