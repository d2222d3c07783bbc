"""Running a Jinja chat template, which comes with a model and is therefore not trusted.

The sandbox keeps it away from Python; the bounds here keep it from running or growing without end. They stop the ways
that templates go wrong by accident or crude intent (endless loops, endless recursion, huge repetition), not every way
to waste memory. What a template can see and call follows `apply_chat_template` of transformers 5, without three
functions of Jinja's that no prompt needs (`lipsum`, `urlize`, `wordwrap`).
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

from jinja2 import Environment, Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

SECONDS = 1.0
"""Of computing, not of waiting for a busy machine. Twenty thousand messages take a fifth of that."""

CHARACTERS = 16_000_000
CAPTURED = 4 * CHARACTERS
"""Of all that the blocks and macros of one rendering keep: what a message goes through may be more than one."""

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
    template = _compiled(source)
    _captured.size = 0
    deadline = time.thread_time() + SECONDS
    for piece in template.generate({**variables, _DEADLINE: deadline}):
        size += len(piece)
        if size > CHARACTERS:
            raise SecurityError(f"it wrote more than {CHARACTERS} characters")
        _check(deadline)
        pieces.append(piece)
    return "".join(pieces)


class _Captured(threading.local):
    """Characters that blocks and macros of the rendering of this thread have kept for themselves."""

    size = 0


_captured = _Captured()


def _concat(pieces: Iterable[str]) -> str:
    """Jinja's own joining of what a `set` block, a macro or a filter block wrote, bounded: blocks that double what
    others kept reach gigabytes long before their time is over.
    """
    kept: list[str] = []
    for piece in pieces:
        _captured.size += len(piece)
        kept.append(piece)
        if _captured.size > CAPTURED:
            raise SecurityError(f"its blocks and macros kept more than {CAPTURED} characters")
    return "".join(kept)


class _Environment(ImmutableSandboxedEnvironment):
    concat = staticmethod(_concat)
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Refuse an operation whose result would be huge, before it is carried out."""
        if _size_of(operator, left, right) > CHARACTERS or _bits_of(operator, left, right) > NUMBER_BITS:
            raise SecurityError(f"the result of {operator} is too large")
        return super().call_binop(context, operator, left, right)

    def call(*args: Any, **kwargs: Any) -> Any:  # names of its own would take those of a template's arguments
        """Refuse a call of a text's own function whose result would be huge."""
        _, _, called, *given = args
        # The sandbox has put a function of its own around that of `format`.
        called = getattr(called, "__wrapped__", called)
        text = getattr(called, "__self__", None)
        if isinstance(text, str):
            _check_wish(getattr(called, "__name__", ""), text, given, kwargs)
        return ImmutableSandboxedEnvironment.call(*args, **kwargs)


class _Generation(Extension):
    """`{% generation %}`: marks the model's own words for training; to a chat it is a block like any other."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Joined(NodeTransformer):
    """`a ~ b` becomes a filter, since no operator of it can be intercepted."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        joined = nodes.Filter(nodes.List(node.nodes), "join", [], [], None, None)
        return joined.set_lineno(node.lineno).set_environment(_environment())


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
    tree = _Joined().visit(environment.parse(source))
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
    # Nothing that a prompt needs, and each takes minutes for what can be written in a line.
    del environment.globals["lipsum"], environment.filters["urlize"], environment.filters["wordwrap"]
    for name in ("batch", "center", "format", "indent", "join", "replace", "round", "slice", "tojson"):
        environment.filters[name] = _bounded(name, environment.filters[name])
    return environment


def _bounded(name: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses what would be huge. What Jinja notes of the function stays noted."""
    first = 1 if hasattr(apply, "jinja_pass_arg") else 0

    @wraps(apply)
    def checked(*args: Any, **kwargs: Any) -> Any:
        value, *given = args[first:]
        if name == "join" and not isinstance(value, str | Mapping):
            # It may be a generator, which is gone when it was looked at.
            value = list(value)
        _check_wish(name, value, given, kwargs)
        return apply(*args[:first], value, *given, **kwargs)

    return checked


def _check_wish(name: str, value: Any, given: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Widths and counts, and how long a text becomes by replacing and joining."""
    told = [*given, *named.values()]
    size = max([0, *(abs(one) for one in told if isinstance(one, int))])
    texts = [one for one in told if isinstance(one, str)]
    if name == "replace" and isinstance(value, str) and len(texts) > 1:
        size = max(size, len(value) + value.count(texts[0]) * len(texts[1]))
    elif name == "join":
        pieces = given[0] if isinstance(value, str) and given and isinstance(given[0], list | tuple) else value
        glue = value if pieces is not value else "".join(texts)
        lengths = [len(one) + len(glue) for one in pieces if isinstance(one, str)]
        size = max(size, sum(lengths))
    elif name == "format" and isinstance(value, str):
        widths = re.findall(r"\d{6,}", value)
        size = max(size, _size_of("%", value, tuple(told)), *(int(width[:20]) for width in widths), 0)
    elif name == "indent" and isinstance(value, str):
        size = max(size, size * (value.count("\n") + 1), sum(map(len, texts)) * (value.count("\n") + 1))
    elif name in ("batch", "slice", "tojson"):
        # How many lists are made, or how many lines begin so.
        size *= 1000
    elif name == "expandtabs" and isinstance(value, str):
        size = max(size, size * value.count("\t"))
    if size > CHARACTERS:
        raise SecurityError(f"the result of {name} is too large")


def strftime_now(pattern: str) -> str:
    """The present local time in the form of `pattern`."""
    return datetime.now().strftime(pattern)


@pass_context
def _tick(context: Context, text: str) -> str:
    """Stands at the head of every loop and macro body; the context makes it run each time instead of once."""
    _check(context[_DEADLINE])
    return text


def _check(deadline: float) -> None:
    if time.thread_time() > deadline:
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
