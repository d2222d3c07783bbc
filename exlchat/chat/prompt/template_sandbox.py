"""Running a Jinja chat template, which comes with a model and is therefore not trusted.

The sandbox keeps it away from Python; nothing here keeps it from computing without end or taking all memory, so that
templates of strangers are run by `template_process`, in a process that can be lost. What a template can see and call
follows `apply_chat_template` of transformers 5.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from exlchat.untrusted.text import one_line


def handle(request: list[Any]) -> list[Any]:
    """What the template `source` makes of `variables`, at a local time in ISO 8601.

    Args:
        request: source, variables, moment; values of JSON, as `untrusted.worker` has them.

    Returns:
        The text; or a clause that says why there is none, and the line of a template that is none, or `None`.

    Raises:
        MemoryError: it takes more than there is.
    """
    source, variables, moment = request
    now = datetime.fromisoformat(moment)
    try:
        return [_compiled(source).render({**variables, "strftime_now": now.strftime})]
    except TemplateSyntaxError as error:
        return [one_line(str(error.message)), error.lineno]
    except MemoryError:
        raise
    except Exception as error:
        # Anything can be raised by a template that is not trusted, down to a plain TypeError.
        return [one_line(str(error)) or type(error).__name__, None]


class _Generation(Extension):
    """`{% generation %}`: marks the model's own words for training; to a chat it is a block like any other."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

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
    return _environment().from_string(source)


@lru_cache(maxsize=1)
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _SafeDict()
    environment.globals["namespace"] = _SafeNamespace
    # Random text is no prompt: two renderings of one conversation have to be the same.
    del environment.globals["lipsum"]
    return environment


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise TemplateError(f"a namespace takes no name with a leading underscore, such as {name!r}")


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
