"""The facts the guide knows: one list, in facts/*.toml, read into checked values.

A `[[fact]]` table has the fields of `Fact`; `[ways]` adds questions to facts by id, `[words]` the words of other
programs and everyday ones; `[slots]` names word lists.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "facts"
FIELDS = {"id", "page", "key", "answers", "goals", "topics", "names", "asks", "more", "then"}


@dataclass(frozen=True)
class Fact:
    """One thing the guide can say, and how people ask for it.

    Args:
        id: its name; ids that begin with "out-" answer questions that have nothing to do with exlchat.
        key: strings of which every answer contains at least one.
        answers: wordings; the first is the usual one, another is used when the same thing is asked again.
        goals: patterns that complete "how do I ...".
        topics: patterns that complete "what is ...".
        names: keys, commands and options, completing "what does ... do".
        asks: patterns of whole questions.
        more: what to add when asked for more.
        then: follow-up questions that only make sense after this fact, by the fact that answers them.
        page: the page of the docs that has more, with its section behind a `#`; empty for small talk.
        words: what people who never saw the docs say for it. The lookup goes by them, the corpus does not.
    """

    id: str
    key: tuple[str, ...]
    answers: tuple[str, ...]
    goals: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    more: str = ""
    then: dict[str, tuple[str, ...]] = field(default_factory=dict)
    page: str = ""
    words: tuple[str, ...] = ()

    @property
    def out_of_scope(self) -> bool:
        """Whether its questions have nothing to do with exlchat."""
        return self.id.startswith("out-")


@cache
def load_facts() -> dict[str, Fact]:
    """All facts by id.

    Raises:
        ValueError: a fact that contradicts itself, in one line.
    """
    facts: dict[str, Fact] = {}
    for name, content in _contents().items():
        for entry in content.get("fact", []):
            fact = _fact(entry, name)
            if fact.id in facts:
                raise ValueError(f"{name}: two facts are called {fact.id}")
            facts[fact.id] = fact
    for content in _contents().values():
        _add(facts, content)
    for fact in facts.values():
        for target in fact.then:
            if target not in facts:
                raise ValueError(f"fact {fact.id} is followed by {target}, which does not exist")
    return facts


@cache
def load_slots() -> dict[str, list[str]]:
    """The word lists behind `<slot>`."""
    slots: dict[str, list[str]] = {}
    for content in _contents().values():
        slots |= content.get("slots", {})
    return slots


@cache
def _contents() -> dict[str, dict[str, Any]]:
    """Of each file, by its name."""
    return {path.name: tomllib.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.toml"))}


def _add(facts: dict[str, Fact], content: dict[str, Any]) -> None:
    """The `[ways]` and `[words]` of a file."""
    for name in (*content.get("ways", {}), *content.get("words", {})):
        if name not in facts:
            raise ValueError(f"there are more ways to ask for {name}, which does not exist")
    for name, asks in content.get("ways", {}).items():
        facts[name] = replace(facts[name], asks=(*facts[name].asks, *_strings(asks)))
    for name, words in content.get("words", {}).items():
        facts[name] = replace(facts[name], words=(*facts[name].words, *_strings(words)))


def _fact(entry: dict[str, Any], file: str) -> Fact:
    name = str(entry.get("id"))
    if unknown := set(entry) - FIELDS:
        raise ValueError(f"{file}: fact {name} has an unknown field {sorted(unknown)[0]}")
    listed = {
        key: tuple(_strings(entry[key]))
        for key in ("key", "answers", "goals", "topics", "names", "asks")
        if key in entry
    }
    then = {target: tuple(_strings(asks)) for target, asks in entry.get("then", {}).items()}
    fact = Fact(id=name, page=str(entry.get("page", "")), more=str(entry.get("more", "")), then=then, **listed)
    for answer in fact.answers:
        if not any(key.lower() in answer.lower() for key in fact.key):
            raise ValueError(f"{file}: an answer of fact {name} contains none of its keys")
    return fact


def _strings(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"a list of strings was expected, not {value!r}")
    return value
