"""What is asked of a grammar in llguidance's variant of Lark before the library sees it.

The library checks the syntax, so this reads what is right and leaves the rest to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from exlchat.llm.constraint import ConstraintError

BODY = "exlchat-answer"
"""What a grammar's own `start` is called where another one is put before it."""

# The library gives up at a depth of its own; the reader here calls itself for each bracket.
_DEEPEST = 100
_ROUNDS = 50
# Of rules and terminals that ask for the next. The library calls itself for each, and at some thousands the program
# would end without a word.
_LONGEST_CHAIN = 400
# Preparing one takes some milliseconds.
_MOST_TERMINALS = 100

_TOKENS = re.compile(
    r"""(?P<space>[ \t\r]+|(?:\#|//)[^\n]*)
      | (?P<newline>\n)
      | (?P<string>"(?:\\.|[^"\\\n])*"i?)
      | (?P<regex>/(?:\\.|[^/\\])+/[imslux]*)
      | (?P<special><[^<>\s]+>)
      | (?P<json>%(?:json|regex|llguidance)\b)
      | (?P<command>%[a-z_]+)
      | (?P<rule>!?[_?]?[a-z][_a-z0-9\-]*)
      | (?P<terminal>_?[A-Z][_A-Z0-9\-]*)
      | (?P<reference>@[\w\-]+)
      | (?P<number>[+-]?[0-9]+)
      | (?P<mark>->|::|\.\.|.)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Word:
    kind: str
    text: str
    line: int
    start: int


def check_grammar(text: str) -> None:
    """Refuses what the library would take and an answer could not follow.

    Raises:
        ConstraintError: it asks for a token by its name or id, is nested too deep, or a rule never ends.
    """
    words = list(_scan(text))
    depth = 0
    for word in words:
        depth += (word.text in ("(", "[")) - (word.text in (")", "]"))
        if depth > _DEEPEST:
            raise ConstraintError(f"the grammar, line {word.line}: is nested deeper than {_DEEPEST} brackets")
        if word.kind == "special":
            raise ConstraintError(
                f"the grammar, line {word.line}: {word.text[:40]} names a token; a grammar can ask for text only, and "
                "ends an answer by matching it as a whole"
            )
    _check_chains(_definitions(words, ("rule", "terminal")))
    rules = _definitions(words, ("rule",))
    ends = _ending(rules)
    endless = [name for name in _reachable(rules) if name not in ends]
    if endless:
        # The last one asks for itself, or for one that does.
        name = endless[-1]
        raise ConstraintError(
            f"the grammar, line {rules[name][0].line}: each way through the rule {name[:40]} comes back to itself, so "
            "that no text of it ends; give it an alternative without itself"
        )


def _ending(rules: dict[str, list[_Word]]) -> set[str]:
    """The rules that have a text that ends."""
    ends: set[str] = set()
    names = list(rules)
    for _ in range(_ROUNDS):
        before = len(ends)
        for name in names:
            if name not in ends and _Reader(rules[name], rules, ends).ends():
                ends.add(name)
        if len(ends) == before:
            return ends
        # A long chain is followed in one round, whichever way it was written.
        names.reverse()
    raise ConstraintError("the grammar's rules ask for each other in too many ways; make it simpler")


def behind_a_space(text: str) -> str | None:
    """The grammar with a space in front; None where that would let it ignore more than it does."""
    if any(word.text == "%ignore" for word in _scan(text)):
        return None
    return f'{_renamed(text)}\nstart: " " {BODY}\n'


def terminals(text: str) -> Iterator[tuple[str, int, str]]:
    """Terminals that nothing may match, because they are made with `&` or `~`; of grammars with many the first ones.

    Yields:
        the name, the line, and a grammar that is nothing but it.
    """
    renamed, count = _renamed(text), 0
    name: _Word | None = None
    begins = True
    for word in _scan(text):
        if begins and word.kind != "newline" and word.text not in ("|", "&"):
            name = word if word.kind == "terminal" else None
        begins = word.kind == "newline"
        if name is not None and word.text in ("&", "~") and count < _MOST_TERMINALS:
            yield name.text, name.line, f"{renamed}\nstart: {name.text}\n"
            name, count = None, count + 1


def _renamed(text: str) -> str:
    parts, done = [], 0
    for word in _scan(text):
        if word.text.lstrip("!?") == "start" and word.kind == "rule":
            parts += [text[done : word.start], BODY]
            done = word.start + len(word.text)
    return "".join([*parts, text[done:]])


def _scan(text: str) -> Iterator[_Word]:
    place, line = 0, 1
    while place < len(text):
        found = _TOKENS.match(text, place)
        if found is None or found.lastgroup is None:
            return
        end = found.end()
        if found.lastgroup != "space":
            yield _Word(found.lastgroup, found[0], line, place)
        if found.lastgroup == "json":
            end = _behind_json(text, end)
        line += text.count("\n", place, end)
        place = end


def _behind_json(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    try:
        return json.JSONDecoder().raw_decode(text, place)[1]
    except (ValueError, RecursionError):
        # The library will say it.
        return len(text)


def _definitions(words: list[_Word], kinds: tuple[str, ...]) -> dict[str, list[_Word]]:
    """What stands behind the colon of each rule or terminal, by its name; the name itself comes first."""
    rules: dict[str, list[_Word]] = {}
    current: list[_Word] | None = None
    for place, word in enumerate(words):
        begins = place == 0 or words[place - 1].kind == "newline"
        if begins and word.kind in ("rule", "terminal", "command", "json") and word.text != "%json":
            current = None
            if word.kind in kinds:
                current = rules.setdefault(_name(word), [])
        if current is not None and word.kind != "newline":
            current.append(word)
    return {name: [rule[0], *_behind_colon(rule)] for name, rule in rules.items()}


def _name(word: _Word) -> str:
    return word.text.lstrip("!?")


def _behind_colon(rule: list[_Word]) -> list[_Word]:
    for place, word in enumerate(rule):
        if word.text == ":":
            return rule[place + 1 :]
    return []


def _check_chains(definitions: dict[str, list[_Word]]) -> None:
    seen: set[str] = set()
    for first in definitions:
        waiting = [(first, 0)]
        while waiting:
            name, depth = waiting.pop()
            if depth > _LONGEST_CHAIN:
                raise ConstraintError(
                    f"the grammar, line {definitions[first][0].line}: {first[:40]} begins a chain of more than "
                    f"{_LONGEST_CHAIN} names, each asking for the next"
                )
            if name not in seen:
                seen.add(name)
                words = definitions[name][1:]
                waiting += [(_name(word), depth + 1) for word in words if _name(word) in definitions]


def _reachable(rules: dict[str, list[_Word]]) -> list[str]:
    found: dict[str, None] = {}
    waiting = ["start"]
    while waiting:
        name = waiting.pop()
        if name in rules and name not in found:
            found[name] = None
            waiting += [_name(word) for word in rules[name][1:] if word.kind == "rule"]
    return list(found)


class _Reader:
    """Whether a rule has a way through that needs only rules which are known to end."""

    def __init__(self, rule: list[_Word], rules: dict[str, list[_Word]], ends: set[str]) -> None:
        self._words = rule[1:]
        self._rules = rules
        self._ends = ends

    def ends(self) -> bool:
        place, found = 0, False
        while place <= len(self._words):
            one, place = self._choice(place)
            found = found or one
            # Something that this does not know, as a stray bracket, is for the library.
            place += 1
        return found

    def _choice(self, place: int) -> tuple[bool, int]:
        found, place = self._sequence(place)
        while self._text(place) == "|":
            other, place = self._sequence(place + 1)
            found = found or other
        return found, place

    def _sequence(self, place: int) -> tuple[bool, int]:
        found = True
        while place < len(self._words) and self._text(place) not in ("|", ")", "]"):
            one, place = self._item(place)
            found = found and one
        return found, place

    def _item(self, place: int) -> tuple[bool, int]:
        word = self._words[place]
        place += 1
        found = True
        if word.text == "->":
            return True, place + 1
        if word.text in ("(", "["):
            found, place = self._choice(place)
            found, place = found or word.text == "[", place + 1
        elif word.kind == "rule" and _name(word) in self._rules:
            found = _name(word) in self._ends
        while self._text(place) in ("?", "*", "+", "{", "~"):
            least, place = self._least(place)
            found = found or not least
        return found, place

    def _least(self, place: int) -> tuple[int, int]:
        """How often what stands before must come, and where the next word is."""
        mark = self._text(place)
        if mark in ("?", "*", "+"):
            return int(mark == "+"), place + 1
        number = self._text(place + 1)
        least = int(number) if number.isdecimal() else 0 if number == "," else 1
        if mark == "{":
            while place < len(self._words) and self._text(place) != "}":
                place += 1
            return least, place + 1
        return least, place + (4 if self._text(place + 2) == ".." else 2)

    def _text(self, place: int) -> str:
        return self._words[place].text if place < len(self._words) else ""
