"""YAML of strangers: plain values only, bounded in size and depth, without references that grow."""

from __future__ import annotations

from typing import Any

from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.plain_text import one_line

LARGEST = 200_000
"""Characters; YAML is slow to read, and a character has a few thousand."""

DEEPEST = 32


def read_yaml(text: str, where: str) -> Any:
    """The value that `text` writes; `where` names it in errors.

    Raises:
        PersonaError: too large, too deep, with references, or not YAML.
    """
    import yaml

    if len(text) > LARGEST:
        raise PersonaError(f"{where}: larger than {LARGEST:,} characters, which no such file is")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.events.AliasEvent):
                raise PersonaError(f"{where}: references (*{one_line(str(event.anchor), 40)}) are not taken")
            depth += isinstance(event, yaml.events.CollectionStartEvent)
            depth -= isinstance(event, yaml.events.CollectionEndEvent)
            if depth > DEEPEST:
                raise PersonaError(f"{where}: nested deeper than {DEEPEST} levels")
        # A safe loader makes plain values and dates, never objects.
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        cause = one_line(str(getattr(error, "problem", None) or type(error).__name__), 80)
        raise PersonaError(f"{where}: not YAML{line}: {cause}") from None
    except (ValueError, RecursionError, TypeError, OverflowError) as error:
        raise PersonaError(f"{where}: not YAML that can be read: {one_line(str(error), 80)}") from None
