"""Which fact a question is about: SQLite's full text search over the facts, by words and not by their order.

A question is short, misspelt, and in the words of other programs. So little words are passed over, a word that no fact
has becomes the nearest one that some fact has, and a fact counts only where it has enough of what was asked for: a
wrong answer is worse than none.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from exlchat.app.guide.facts import Fact

LONGEST = 400
"""Characters of a question that are looked at."""
ENOUGH = 0.25
"""The share of what was asked for, by the weight of its words, that a fact must have."""
SURE = 0.6
"""The share of it that has to stand in one entry, for the best fact to be the one that was meant."""
TELLING, AHEAD = 5.0, 0.15
"""Or, in a long question, the weight that has to stand in one entry, and how far ahead of the next that fact is."""
NEAR = 0.4
"""The share of the best fact's score that another one needs to be thought of."""
ALIKE = 0.82
"""How alike a misspelt word and the one that is meant are, as `difflib` measures it."""
NAMED = 3.0
"""What an entry that is all there counts, for each unit of weight of its words, beside the rank of SQLite."""
UNKNOWN = 3.5
"""The weight of a word that no fact has: about that of one that ten facts have."""
COLUMNS = {"words": 6.0, "ways": 4.0, "name": 2.0, "answer": 0.7}
"""What a word counts where it stands: among those of other programs, in a way to ask, in a fact's name, its answer."""
_LITTLE_WORDS = """
    a about actually again all also am an and any anything are as at b be been being but by can could d did do does
    doing for from get gets getting give go gonna got gotta had has have how i if ill im in into is it
    its itself ive just let lets like m me my n need now of ok on one or our pls please possible r really s say see
    should show so some somehow something still support supported supports t tell than that thats the their them then
    there theres these they thing things this those to too u ur us use used using very wanna want wants was way we were
    what whats when where wheres which while who why will with without works would you your
"""
_LITTLE = frozenset(_LITTLE_WORDS.split())
_SAME_WORDS = """
    not: cannot cant unable fails fail failed doesnt isnt wont didnt dont never arent wasnt couldnt
    chat: conversation conversations convo convos dialog dialogue thread threads chats
    answer: answers reply replies response responses
    model: models llm llms
    delete: deletion deleting remove removes removed removing erase
    image: images picture pictures photo photos
    color: colour colors colours
    folder: folders directory directories path
    storage: stored storing store
    edit: editing edits modify
"""
_SAME = {
    word: line.partition(":")[0].strip() for line in _SAME_WORDS.splitlines() for word in line.partition(":")[2].split()
}
_WORD = re.compile(r"\d+[+/]\d+|[a-z0-9_]+")
_MARKS = re.compile(r"[\[\]|{}<>`]")


@dataclass(frozen=True, slots=True)
class Found:
    """The facts that a question may be about, the best first; `sure`: it is about the first."""

    facts: tuple[Fact, ...]
    sure: bool


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of the question as some fact has it, and how much it says: rare words more than common ones."""

    word: str
    weight: float


@dataclass(frozen=True, slots=True)
class _Entry:
    """A text by which a fact goes: its telling words, or all where none is telling. `little`: none is."""

    place: int
    stems: frozenset[str]
    little: bool


class Lookup:
    """Finds facts; one question after the other, from any thread.

    Args:
        facts: all of them, by id.
    """

    def __init__(self, facts: Mapping[str, Fact]) -> None:
        self._facts = list(facts.values())
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._table("fact", tuple(COLUMNS))
        self._table("scratch", ("words",))
        self._database.execute("CREATE VIRTUAL TABLE stem USING fts5vocab (scratch, 'instance')")
        rows = [(place, *_columns(fact)) for place, fact in enumerate(self._facts)]
        self._database.executemany("INSERT INTO fact (rowid, words, ways, name, answer) VALUES (?, ?, ?, ?, ?)", rows)
        self._known = sorted({word for row in rows for text in row[1:] for word in _words(str(text))})
        self._entries: dict[str, list[_Entry]] = defaultdict(list)
        for entry in self._all_entries():
            for stem in entry.stems:
                self._entries[stem].append(entry)

    def find(self, question: str) -> Found:
        """What it may be about; nothing where no fact has enough of it."""
        asked = _words(question[:LONGEST])
        telling = [word for word in asked if word not in _LITTLE]
        terms = [self._term(word) for word in dict.fromkeys(telling or asked)]
        had: dict[int, float] = defaultdict(float)
        for term in terms:
            for place in self._places(term.word):
                had[place] += term.weight
        whole = sum(term.weight for term in terms)
        score, named = self._ranked(terms), self._named(terms, little=not telling)
        for place, weight in named.items():
            score[place] = score.get(place, 0.0) + NAMED * weight
        best = sorted(score, key=lambda place: (-score[place], place))
        enough = [place for place in best if had[place] >= ENOUGH * whole]
        if not enough:
            return Found((), sure=False)
        near = [place for place in enough if score[place] >= NEAR * score[enough[0]]]
        weight = named.get(near[0], 0.0)
        ahead = len(near) == 1 or score[near[1]] <= (1 - AHEAD) * score[near[0]]
        sure = weight >= SURE * whole or (weight >= TELLING and ahead)
        return Found(tuple(self._facts[place] for place in near), sure)

    def _term(self, word: str) -> _Term:
        """The word, or the one that was meant, with what it says; no word where none is like it."""
        count = len(self._places(word))
        if not count and len(word) > 3:
            # Two letters that changed places are more often meant than a word with one letter less.
            turned = [known for known in self._known if sorted(known) == sorted(word)]
            word = next(iter(turned or get_close_matches(word, self._known, 1, ALIKE)), "")
            count = len(self._places(word))
        return _Term(word, math.log(1 + len(self._facts) / count)) if count else _Term("", UNKNOWN)

    def _places(self, word: str) -> list[int]:
        """The facts that have the word in a way to ask, in any form of it."""
        if not word:
            return []
        found = self._database.execute("SELECT rowid FROM fact WHERE fact MATCH ?", (f'- answer : "{word}"',))
        return [place for (place,) in found]

    def _ranked(self, terms: Sequence[_Term]) -> dict[int, float]:
        match = " OR ".join(f'"{term.word}"' for term in terms if term.word)
        if not match:
            return {}
        weights = ", ".join(str(weight) for weight in COLUMNS.values())
        found = self._database.execute(f"SELECT rowid, -bm25(fact, {weights}) FROM fact WHERE fact MATCH ?", (match,))
        return dict(found)

    def _named(self, terms: Sequence[_Term], *, little: bool) -> dict[int, float]:
        """Facts with an entry whose words are all in the question, with the weight of the weightiest such entry."""
        known = [term for term in terms if term.word]
        weights: dict[str, float] = {}
        for term, stems in zip(known, self._stems([term.word for term in known]), strict=True):
            weights |= dict.fromkeys(stems, term.weight)
        named: dict[int, float] = {}
        for entry in {entry for stem in weights for entry in self._entries.get(stem, ())}:
            if entry.stems <= weights.keys() and (not entry.little or (little and len(entry.stems) == len(weights))):
                weight = sum(weights[stem] for stem in entry.stems)
                named[entry.place] = max(named.get(entry.place, 0.0), weight)
        return named

    def _all_entries(self) -> Iterable[_Entry]:
        texts = [
            (place, _words(text))
            for place, fact in enumerate(self._facts)
            for text in (*fact.words, *(way for way in _ways(fact) if not set("[{<") & set(way)))
        ]
        telling = [[word for word in words if word not in _LITTLE] for _, words in texts]
        stems = self._stems([" ".join(told or words) for (_, words), told in zip(texts, telling, strict=True)])
        for (place, _), told, found in zip(texts, telling, stems, strict=True):
            if found:
                yield _Entry(place, found, little=not told)

    def _stems(self, texts: Sequence[str]) -> list[frozenset[str]]:
        """The stems of the words of each text, as SQLite has them."""
        self._database.execute("DELETE FROM scratch")
        self._database.executemany("INSERT INTO scratch (rowid, words) VALUES (?, ?)", enumerate(texts))
        found: list[set[str]] = [set() for _ in texts]
        for place, stem in self._database.execute("SELECT doc, term FROM stem"):
            found[place].add(stem)
        return [frozenset(stems) for stems in found]

    def _table(self, name: str, columns: tuple[str, ...]) -> None:
        tokenizer = "porter unicode61 tokenchars '_+/'"
        self._database.execute(f'CREATE VIRTUAL TABLE {name} USING fts5 ({", ".join(columns)}, tokenize="{tokenizer}")')


def _columns(fact: Fact) -> tuple[str, ...]:
    return _plain(fact.words), _plain(_ways(fact)), fact.id.replace("-", " "), fact.answers[0]


def _ways(fact: Fact) -> tuple[str, ...]:
    return (*fact.asks, *fact.goals, *fact.topics, *fact.names)


def _plain(texts: Iterable[str]) -> str:
    return " ".join(_words(_MARKS.sub(" ", " ".join(texts))))


def _words(text: str) -> list[str]:
    found = _WORD.findall(text.lower().replace("'", "").replace("’", ""))
    return [_SAME.get(word, word) for word in found]
