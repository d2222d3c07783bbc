"""YAML of strangers -> plain values: bounded in size and depth, and nothing in it refers, merges or names a type.

Values are built from the parser's events, one after another and without recursion, so that neither a library's
constructors nor its stack are ever reached, and what is refused is refused before more of it is read. PyYAML reads
YAML 1.1; the values here are those of YAML 1.2's core schema, as the programs that write such files mean them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from yaml.events import Event

DEEPEST = 100
"""Lists and tables within each other; of the files read here the deepest needs about ten."""

LONGEST_NUMBER = 300
"""Characters; Python's time for a number of digits grows with their square."""

_CORE = "tag:yaml.org,2002:"

_NEVER = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What may stand in no YAML: control characters, surrogates."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_BREAK = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
"""What ends a line for the parser."""

_TAG_LINE = re.compile(rf"(?:\A|{_BREAK.pattern})(?P<tag>%TAG)")

_PLAIN = re.compile(
    r"(?P<null>~|null|Null|NULL|)"
    r"|(?P<true>true|True|TRUE)"
    r"|(?P<false>false|False|FALSE)"
    r"|(?P<int>[-+]?(?:0|[1-9][0-9]*)|0x[0-9a-fA-F]+|0o[0-7]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?)"
    r"|(?P<endless>[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))"
)
"""The core schema, but that digits behind a leading 0 are text: 0644 is octal for some readers, decimal for others."""

_TAGGED = {"null": "null", "true": "bool", "false": "bool", "int": "int", "float": "float", "endless": "float"}


class YamlError(Exception):
    """What is wrong with a text, as a clause behind "is …" or "FILE: …" that names the line, and is one line itself."""


def read_yaml(text: str, *, most: int) -> Any:
    """The value that `text` writes: `None`, bool, int, float, str, lists, and dicts whose keys are texts as written.

    Args:
        text: of one document; an empty one is `None`.
        most: characters it may have.

    Raises:
        YamlError: too large, too deep, not YAML, of several documents, or with what is not taken from strangers:
            references, merge keys, tags beyond the core schema's, keys that are no texts or stand twice.
    """
    if len(text) > most:
        raise YamlError(f"YAML of more than {most:,} characters; give a smaller file")
    text = text.removeprefix("\ufeff")
    _check_characters(text)
    import yaml

    try:
        return _grown(yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        problem = getattr(error, "problem", None) or str(error)
        raise YamlError(f"no YAML ({where}{one_line(problem, 100)})") from None
    except ValueError as error:
        # The parser in Python leaves escapes and versions beyond all bounds to Python's own conversions.
        raise YamlError(f"no YAML ({one_line(str(error), 100)})") from None


def _check_characters(text: str) -> None:
    if (found := _NEVER.search(text)) is not None:
        where = f"line {_line_of(text, found.start())}"
        raise YamlError(f"no YAML ({where}: the character U+{ord(found[0]):04X}, which none may have); take it out")
    # The parser compares each of these lines with all before it, and without tags they serve nothing.
    if (found := _TAG_LINE.search(text)) is not None:
        raise YamlError(f"YAML with a %TAG line (line {_line_of(text, found.start('tag'))}); take it out")


def _line_of(text: str, place: int) -> int:
    return sum(1 for _ in _BREAK.finditer(text, 0, place)) + 1


def _grown(events: Iterable[Event]) -> Any:
    import yaml

    growing = _Growing()
    for event in events:
        line = event.start_mark.line + 1 if event.start_mark is not None else 0
        if isinstance(event, yaml.ScalarEvent):
            growing.add_scalar(event.value, event.tag, event.implicit[0], line)
        elif isinstance(event, yaml.SequenceStartEvent):
            growing.begin([], "seq", event.tag, line)
        elif isinstance(event, yaml.MappingStartEvent):
            growing.begin({}, "map", event.tag, line)
        elif isinstance(event, yaml.CollectionEndEvent):
            growing.end()
        elif isinstance(event, yaml.AliasEvent):
            raise YamlError(f"YAML with a reference (*{_cut(str(event.anchor))}, line {line}); write out what it means")
        elif isinstance(event, yaml.DocumentStartEvent):
            growing.begin_document(line)
    return growing.value


class _Growing:
    def __init__(self) -> None:
        self.value: Any = None
        self._open: list[list[Any] | dict[str, Any]] = []
        self._keys: list[str | None] = []
        """Of each open table the key whose value comes next; of a list always `None`."""
        self._begun = False

    def begin_document(self, line: int) -> None:
        if self._begun:
            raise YamlError(f"YAML of several documents (another in line {line}); give one file for each")
        self._begun = True

    def begin(self, inner: list[Any] | dict[str, Any], kind: str, tag: str | None, line: int) -> None:
        if len(self._open) >= DEEPEST:
            raise YamlError(f"nested more than {DEEPEST} levels deep (line {line})")
        if tag not in (None, "!", _CORE + kind):
            raise _tag_error(tag, line)
        if self._wants_key():
            raise YamlError(f"YAML with a list or a table as a key (line {line}); make the key a text")
        self._place(inner)
        self._open.append(inner)
        self._keys.append(None)

    def end(self) -> None:
        self._open.pop()
        self._keys.pop()

    def add_scalar(self, text: str, tag: str | None, plain: bool, line: int) -> None:
        value = _value_of(text, tag, plain, line)
        if not self._wants_key():
            self._place(value)
            return
        if text == "<<" and plain:
            raise YamlError(f"YAML with a merge key (<<, line {line}); write out what it takes over")
        if text in self._open[-1]:
            raise YamlError(f"YAML with the key {_cut(text)!r} twice (again in line {line}); take one of them out")
        self._keys[-1] = text

    def _wants_key(self) -> bool:
        return bool(self._open) and self._keys[-1] is None and isinstance(self._open[-1], dict)

    def _place(self, value: Any) -> None:
        if not self._open:
            self.value = value
            return
        holder, key = self._open[-1], self._keys[-1]
        if isinstance(holder, list):
            holder.append(value)
        elif key is not None:
            holder[key] = value
            self._keys[-1] = None


def _value_of(text: str, tag: str | None, plain: bool, line: int) -> Any:
    """The value of a scalar: by its tag, else by its form if it is plain, that is without quotes or a block mark."""
    if not text.isascii() and _SURROGATE.search(text):
        # Only the parser in Python makes them of escapes, and no file can hold them.
        raise YamlError(f"no YAML (line {line}: an escape for half a character); take it out")
    if tag in ("!", _CORE + "str") or (tag is None and not plain):
        return text
    found = _PLAIN.fullmatch(text)
    kind = found.lastgroup if found is not None else None
    if tag is not None and tag != _CORE + _TAGGED.get(kind or "", "str"):
        raise _tag_error(tag, line)
    if kind is None:
        return text
    if kind in ("null", "true", "false"):
        return {"null": None, "true": True, "false": False}[kind]
    if len(text) > LONGEST_NUMBER:
        raise YamlError(f"YAML with a number of more than {LONGEST_NUMBER} digits (line {line}); put it in quotes")
    if kind == "int":
        return int(text, 0)
    return float(text.replace(".", "") if kind == "endless" else text)


def _tag_error(tag: str | None, line: int) -> YamlError:
    shown = _cut(str(tag).replace(_CORE, "!!", 1))
    return YamlError(f"YAML with a tag that is not taken ({shown}, line {line}); take the tag out")


def _cut(text: str) -> str:
    return one_line(text, 60)
