"""Macros in the texts of personas and cards: `{{user}}`, `{{random:a,b}}` and others, resolved once.

Chance comes from a seed, so that the same persona frozen with the same seed says the same. A value that is put in is
never looked through again: no text can grow without end, and a user called `{{char}}` keeps that name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

BUILT_IN_NAMES = (
    "user",
    "char",
    "date",
    "time",
    "weekday",
    "isodate",
    "isotime",
    "newline",
    "original",
    "random",
    "pick",
    "roll",
    "reverse",
    "comment",
    "hidden_key",
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_BRACES = re.compile(r"\{\{|\}\}")
_ANGLED = re.compile(r"<(user|char|bot)>", re.IGNORECASE)
_DICE = re.compile(r"(?P<count>\d{0,3})d(?P<sides>\d{1,9})(?P<more>[+-]\d{1,9})?|(?P<most>\d{1,9})", re.IGNORECASE)
_SPLIT = re.compile(r"(?<!\\),")
_MOST_DICE = 100
_DEEPEST = 16
MOST_CHARACTERS = 1_000_000
"""Of all texts of a persona together; the largest cards have a tenth of that."""


def clock_values(now: datetime) -> dict[str, str]:
    """`date`, `time`, `weekday` and their kin, in English and ISO whatever the locale says."""
    date, time = f"{now:%Y-%m-%d}", f"{now:%H:%M}"
    return {"date": date, "isodate": date, "time": time, "isotime": time, "weekday": _WEEKDAYS[now.weekday()]}


@dataclass(slots=True)
class Macros:
    """Resolves the macros of texts, one after the other; the same texts in the same order give the same.

    Args:
        values: names in lower case -> what stands for them.
        seed: decides what chance gives.
        angled: whether `<user>`, `<char>` and `<bot>` are macros too, as in old cards.
        hidden: what `{{hidden_key:...}}` held, in the order of the texts.
    """

    values: Mapping[str, str]
    seed: int
    angled: bool = False
    hidden: list[str] = field(default_factory=list)
    _draws: int = 0
    _seen: int = 0

    def resolve(self, text: str) -> str:
        """`text` without macros; what is not one stays as it is, and so does a text beyond `MOST_CHARACTERS`."""
        self._seen += len(text)
        if self._seen > MOST_CHARACTERS:
            return text
        open_bodies: list[list[str]] = [[]]
        place = 0
        for brace in _BRACES.finditer(text):
            open_bodies[-1].append(self._plain(text[place : brace.start()]))
            place = brace.end()
            if brace[0] == "{{" and len(open_bodies) <= _DEEPEST:
                open_bodies.append([])
            elif brace[0] == "{{":
                open_bodies[-1].append("{{")
            elif len(open_bodies) > 1:
                body = "".join(open_bodies.pop())
                open_bodies[-1].append(self._value(body))
            else:
                open_bodies[-1].append("}}")
        open_bodies[-1].append(self._plain(text[place:]))
        return "{{".join("".join(body) for body in open_bodies)

    def _plain(self, text: str) -> str:
        if not self.angled or "<" not in text:
            return text
        return _ANGLED.sub(lambda found: self.values["user" if found[1].lower() == "user" else "char"], text)

    def _value(self, body: str) -> str:
        if body.lstrip().startswith("//"):
            return ""
        name, colon, argument = body.partition(":")
        name = name.strip().lower()
        if not colon:
            return self._named(name, body)
        function = _FUNCTIONS.get(name)
        if function is not None:
            given = function(self, argument)
            if given is not None:
                return given
        return f"{{{{{body}}}}}"

    def _named(self, name: str, body: str) -> str:
        if name == "newline":
            return "\n"
        return self.values.get(name, f"{{{{{body}}}}}")

    def _drawn(self, below: int, *, of: str | None = None) -> int:
        """A whole number from 0 to `below` - 1: a new one, or always the same one `of` a text."""
        if of is None:
            self._draws += 1
        name = f"{self.seed}\n{self._draws if of is None else of}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:16], "big") % below

    def _random(self, argument: str) -> str | None:
        choices = _choices(argument)
        return choices[self._drawn(len(choices))]

    def _pick(self, argument: str) -> str | None:
        choices = _choices(argument)
        return choices[self._drawn(len(choices), of=argument)]

    def _roll(self, argument: str) -> str | None:
        dice = _DICE.fullmatch(argument.strip())
        if dice is None:
            return None
        sides = int(dice["sides"] or dice["most"])
        count = int(dice["count"] or 1)
        if sides < 1 or not 1 <= count <= _MOST_DICE:
            return None
        return str(sum(1 + self._drawn(sides) for _ in range(count)) + int(dice["more"] or 0))

    def _hide(self, argument: str) -> str | None:
        self.hidden.append(argument.strip())
        return ""


def _choices(argument: str) -> list[str]:
    """`a,b` or, as SillyTavern writes it, `:a::b`; a comma behind a backslash is one."""
    if argument.startswith(":"):
        return argument[1:].split("::")
    return [part.strip().replace("\\,", ",") for part in _SPLIT.split(argument)]


_FUNCTIONS: dict[str, Callable[[Macros, str], str | None]] = {
    "random": Macros._random,
    "pick": Macros._pick,
    "roll": Macros._roll,
    "reverse": lambda _macros, argument: argument[::-1],
    "comment": lambda _macros, _argument: "",
    "hidden_key": Macros._hide,
}
