"""What a persona knows and is told only when it is talked about, placed so that nothing before it ever changes.

Other programs put lore near the end of every prompt anew, so that most of the prompt has to be read again. Here an
entry is told once, together with the message that called for it, and stays there. `triggered` is a pure function of
what was said: it only ever adds something before the next answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from exlchat.chat.personas.decorators import Decorators, split_decorators
from exlchat.chat.personas.lore_keys import contains_any

USUAL_SCAN_DEPTH = 4
"""Messages that are looked through where a lorebook does not say how many."""

SCANNED_CHARACTERS = 20_000
"""Of what was said last; longer messages are looked through from there on."""

MOST_PATTERNS = 50
"""Entries of a lorebook whose patterns are used, the first of each."""

_MOST_PASSES = 8

Position = Literal["before_char", "after_char"]


@dataclass(frozen=True, slots=True)
class LoreEntry:
    """One thing to know.

    Args:
        content: what the model is told; may begin with the decorators of the third card specification.
        keys: any of them in the text calls for the entry.
        secondary_keys: of a selective entry; one of them must be there too.
        name: for people.
        enabled: whether it is ever told.
        selective: whether `secondary_keys` count.
        constant: told without any key.
        insertion_order: the lower, the earlier.
        priority: the lowest are left out first; `None` goes by `insertion_order`.
        case_sensitive: whether keys are compared letter by letter.
        use_regex: whether keys are patterns.
        position: of a constant entry: before or after what is said of the character.
        hidden_keys: texts that are not told, but call for other entries.
    """

    content: str
    keys: tuple[str, ...] = ()
    secondary_keys: tuple[str, ...] = ()
    name: str = ""
    enabled: bool = True
    selective: bool = False
    constant: bool = False
    insertion_order: float = 0.0
    priority: float | None = None
    case_sensitive: bool = False
    use_regex: bool = False
    position: Position = "after_char"
    hidden_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lorebook:
    """Entries, and how they are looked for.

    Args:
        entries: in the order of the file; an entry is known by its place in it.
        name: for people.
        description: for people.
        scan_depth: messages looked through, counted from the last; `None` is `USUAL_SCAN_DEPTH`.
        token_budget: what all entries that the model sees may take together; `None` sets no bound.
        recursive_scanning: whether the text of one entry calls for others.
    """

    entries: tuple[LoreEntry, ...] = ()
    name: str = ""
    description: str = ""
    scan_depth: int | None = None
    token_budget: int | None = None
    recursive_scanning: bool = False


@dataclass(frozen=True, slots=True)
class Lore:
    """An entry to be told: its place in the lorebook, and the text without decorators."""

    index: int
    text: str
    position: Position = "after_char"


def triggered(
    lorebook: Lorebook,
    texts: Sequence[str],
    already: Collection[int] = (),
    *,
    count_tokens: Callable[[str], int] | None = None,
    told_before: Collection[int] = (),
    answers: int | None = None,
    greeting: int | None = None,
) -> tuple[Lore, ...]:
    """The entries to tell with the last message, before it is answered, in the order in which they are told.

    Args:
        lorebook: frozen with the persona, so that places in it keep their meaning.
        texts: of the branch, oldest first, as they were written (without lore).
        already: places of entries that stand in what the model sees; they are not told again.
        count_tokens: tokens of a text; needed only where there is a budget.
        told_before: places of entries that were told on this branch, seen or not.
        answers: how many answers there are, for the decorators that count them; `None` ignores these.
        greeting: which greeting was taken, 0 the first; `None` ignores the decorators that ask.

    Raises:
        ValueError: the lorebook has a token budget and there is no way to count.
    """
    if lorebook.token_budget is not None and count_tokens is None:
        raise ValueError("a lorebook with a token budget needs a way to count tokens")
    situation = _Situation(frozenset(told_before), answers, greeting, _patterned(lorebook))
    split = [split_decorators(entry.content) for entry in lorebook.entries]
    found: dict[int, Lore] = {}
    extra: list[str] = []
    for _ in range(_MOST_PASSES):
        scanned = _Scanned(texts, extra)
        new = [
            place
            for place, (decorators, text) in enumerate(split)
            if text and place not in already and place not in found
            if _matches(_Candidate(place, lorebook, decorators), situation, scanned)
        ]
        for place in new:
            found[place] = Lore(place, split[place][1], lorebook.entries[place].position)
        if not (new and lorebook.recursive_scanning):
            break
        extra = [text for place in found for text in (found[place].text, *lorebook.entries[place].hidden_keys)]
    kept = _within_budget(lorebook, found, already, split, count_tokens)
    return tuple(sorted(kept, key=lambda lore: (lorebook.entries[lore.index].insertion_order, lore.index)))


def constant_places(lorebook: Lorebook) -> frozenset[int]:
    """The entries that are told whatever is said, and so may stand in the system prompt from the start."""
    return frozenset(
        place
        for place, entry in enumerate(lorebook.entries)
        if entry.enabled and entry.constant and not split_decorators(entry.content)[0].conditional
    )


def told_text(text: str, lore: Sequence[Lore]) -> str:
    """What the model sees of a message with which `lore` is told: the lore, a blank line, the message."""
    return "\n\n".join([*(one.text for one in lore), text])


@dataclass(frozen=True, slots=True)
class _Situation:
    told_before: frozenset[int]
    answers: int | None
    greeting: int | None
    patterned: frozenset[int]


class _Scanned:
    """What is looked through, by the number of messages; `extra` are texts of other entries, at any depth."""

    def __init__(self, texts: Sequence[str], extra: Sequence[str]) -> None:
        self._texts = texts
        self._extra = extra
        self._found: dict[int, str] = {}

    def last(self, depth: int) -> str:
        """The last `depth` messages as one text."""
        if depth not in self._found:
            texts = self._texts[max(len(self._texts) - depth, 0) :]
            self._found[depth] = "\n".join([*texts, *self._extra])[-SCANNED_CHARACTERS:]
        return self._found[depth]


def _patterned(lorebook: Lorebook) -> frozenset[int]:
    """The entries whose patterns are used; each may take milliseconds."""
    places = (place for place, entry in enumerate(lorebook.entries) if entry.use_regex)
    return frozenset(islice(places, MOST_PATTERNS))


@dataclass(frozen=True, slots=True)
class _Candidate:
    place: int
    lorebook: Lorebook
    decorators: Decorators

    @property
    def entry(self) -> LoreEntry:
        return self.lorebook.entries[self.place]

    @property
    def scan_depth(self) -> int:
        if self.decorators.scan_depth is not None:
            return self.decorators.scan_depth
        return USUAL_SCAN_DEPTH if self.lorebook.scan_depth is None else self.lorebook.scan_depth


def _matches(candidate: _Candidate, situation: _Situation, scanned: _Scanned) -> bool:
    """Whether an entry is called for."""
    entry, decorators = candidate.entry, candidate.decorators
    if not entry.enabled or decorators.activate:
        return entry.enabled
    if decorators.dont_activate or not _allowed(candidate, situation):
        return False
    text = scanned.last(candidate.scan_depth)

    def found(keys: Sequence[str]) -> bool:
        if entry.use_regex:
            keys = keys[:1] if candidate.place in situation.patterned else ()
        return contains_any(text, keys, case_sensitive=entry.case_sensitive, patterns=entry.use_regex)

    if not entry.use_regex and found(decorators.exclude_keys):
        return False
    kept = decorators.keep_activate_after_match and candidate.place in situation.told_before
    if kept or not all(found(keys) for keys in decorators.additional_keys):
        return kept
    if entry.constant:
        return True
    selective = entry.selective and bool(entry.secondary_keys) and not entry.use_regex
    return found(entry.keys) and (not selective or found(entry.secondary_keys))


def _allowed(candidate: _Candidate, situation: _Situation) -> bool:
    decorators = candidate.decorators
    if decorators.dont_activate_after_match and candidate.place in situation.told_before:
        return False
    if situation.answers is not None:
        if decorators.only_after is not None and situation.answers < decorators.only_after:
            return False
        if decorators.only_every and situation.answers % decorators.only_every:
            return False
    asked = decorators.is_greeting
    return asked is None or situation.greeting is None or asked == situation.greeting


def _within_budget(
    lorebook: Lorebook,
    found: dict[int, Lore],
    already: Collection[int],
    split: Sequence[tuple[Decorators, str]],
    count_tokens: Callable[[str], int] | None,
) -> list[Lore]:
    """The entries with the highest priority that fit beside those already told, which cannot be taken back."""
    if lorebook.token_budget is None or count_tokens is None:
        return list(found.values())
    left = lorebook.token_budget - sum(count_tokens(split[place][1]) for place in already if place < len(split))

    def importance(lore: Lore) -> tuple[float, int]:
        entry = lorebook.entries[lore.index]
        return (-(entry.insertion_order if entry.priority is None else entry.priority), lore.index)

    kept = []
    for lore in sorted(found.values(), key=importance):
        size = count_tokens(lore.text)
        if size <= left:
            left -= size
            kept.append(lore)
    return kept
