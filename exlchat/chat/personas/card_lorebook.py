"""The `character_book` of a card, or a lorebook file, as a lorebook and back."""

from __future__ import annotations

import difflib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from exlchat.chat.personas.card_values import count_value, number_value, text_list, text_value
from exlchat.chat.personas.decorators import split_decorators, unknown_decorators
from exlchat.chat.personas.lore_calls import key_pattern
from exlchat.chat.personas.lore_patterns import PatternSearch
from exlchat.chat.personas.lorebook import ALWAYS, SELECTIVE_LOGICS, Lorebook, LoreEntry, Position, SelectiveLogic
from exlchat.untrusted.text import one_line

MOST_ENTRIES = 10_000
_ENTRY_FIELDS = (
    "content",
    "name",
    "enabled",
    "selective",
    "constant",
    "insertion_order",
    "priority",
    "use_regex",
)
_LISTS = {"keys": "key", "secondary_keys": "keysecondary"}
"""The specification's name -> that of a world file."""

_SILLY: dict[str, tuple[str, str]] = {
    "case_sensitive": ("caseSensitive", "case_sensitive"),
    "delay": ("delay", "delay"),
    "delay_until_recursion": ("delayUntilRecursion", "delay_until_recursion"),
    "exclude_recursion": ("excludeRecursion", "exclude_recursion"),
    "group": ("group", "group"),
    "group_override": ("groupOverride", "group_override"),
    "group_weight": ("groupWeight", "group_weight"),
    "ignore_budget": ("ignoreBudget", "ignore_budget"),
    "match_whole_words": ("matchWholeWords", "match_whole_words"),
    "position": ("position", "position"),
    "prevent_recursion": ("preventRecursion", "prevent_recursion"),
    "probability": ("probability", "probability"),
    "scan_depth": ("scanDepth", "scan_depth"),
    "selective_logic": ("selectiveLogic", "selectiveLogic"),
}
"""What SillyTavern keeps beyond the specifications: our name -> its key in a world file, and in a card's extensions."""

FOLLOWED = frozenset(
    (
        *_ENTRY_FIELDS,
        *(name for names in (*_LISTS.items(), *_SILLY.values()) for name in names),
        *("disable", "order", "extensions", "useProbability"),
    )
)
"""Names of all that is read of an entry."""

_SILLY_MARKS = frozenset({"display_index", "exclude_recursion", "selectiveLogic", "useProbability"})
"""Any of these in the extensions of an entry says that SillyTavern wrote it."""

_GROUP_WEIGHT = 100.0
_NORMAL = "normal"
"""The trigger of an ordinary answer; others are of things that are not done here."""


def lorebook_of(book: Any) -> Lorebook | None:
    """The lorebook that a JSON object describes; `None` for anything else."""
    if not isinstance(book, dict):
        return None
    return Lorebook(
        tuple(_entry(one if isinstance(one, dict) else {}) for one in entries_of(book)[:MOST_ENTRIES]),
        name=text_value(book.get("name")),
        description=text_value(book.get("description")),
        scan_depth=count_value(book.get("scan_depth")),
        token_budget=count_value(book.get("token_budget")) or None,
        recursive_scanning=book.get("recursive_scanning") is True,
    )


def entries_of(book: Any) -> list[Any]:
    """The entries of a lorebook as its file has them; SillyTavern's own files number them."""
    entries = book.get("entries") if isinstance(book, dict) else None
    if isinstance(entries, dict):
        return list(entries.values())
    return entries if isinstance(entries, list) else []


def put_lorebook(data: dict[str, Any], lorebook: Lorebook | None) -> None:
    """Write into `data["character_book"]` what differs from `lorebook`."""
    if lorebook is None:
        data.pop("character_book", None)
        return
    if not isinstance(data.get("character_book"), dict):
        data["character_book"] = {"extensions": {}, "entries": []}
    book = data["character_book"]
    before = lorebook_of(book) or Lorebook()
    for field in ("name", "description", "scan_depth", "token_budget", "recursive_scanning"):
        value = getattr(lorebook, field)
        if value != getattr(before, field):
            book[field] = value
            if value is None:
                del book[field]
    if lorebook.entries == before.entries:
        return
    old = book.get("entries")
    raw = _put_entries(entries_of(book), before.entries, lorebook.entries)
    book["entries"] = dict(zip(_numbers(old), raw, strict=False)) if isinstance(old, dict) else raw


def _put_entries(raw: list[Any], before: Sequence[LoreEntry], after: Sequence[LoreEntry]) -> list[Any]:
    """`raw`, which says `before`, so that it says `after`: an entry that has only moved keeps all that is in it."""
    written: list[Any] = []
    steps = difflib.SequenceMatcher(None, before, after).get_opcodes()
    for step, start, end, first, last in steps:
        if step == "equal":
            written += raw[start:end]
            continue
        changed = raw[start:end] + [None] * (last - first)
        written += [_put_entry(one, entry) for one, entry in zip(changed, after[first:last], strict=False)]
    return written + raw[MOST_ENTRIES:]


def _numbers(old: Mapping[str, Any]) -> Iterator[str]:
    yield from old
    yield from (str(number) for number in itertools.count() if str(number) not in old)


def without_decorators(book: Any) -> None:
    """Take the decorators out of the entries of a book, for programs that would tell them to the model."""
    entries = book.get("entries") if isinstance(book, dict) else None
    for entry in entries if isinstance(entries, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and "@@" in entry["content"]:
            entry["content"] = split_decorators(entry["content"])[1]


def is_world_entry(raw: Mapping[str, Any]) -> bool:
    return "keys" not in raw and not frozenset(_LISTS.values()).isdisjoint(raw)


def silly_value(raw: Mapping[str, Any], world_key: str, card_key: str) -> Any:
    """What SillyTavern keeps of an entry under these names, of a world file or of a card; `None` for nothing."""
    extensions = raw.get("extensions")
    extensions = extensions if isinstance(extensions, dict) else {}
    given = [extensions.get(card_key), extensions.get(world_key), raw.get(world_key)]
    return next((one for one in (given[::-1] if is_world_entry(raw) else given) if one is not None), None)


def _entry(raw: dict[str, Any]) -> LoreEntry:
    order = number_value(raw.get("insertion_order", raw.get("order")))
    enabled = raw.get("enabled", not raw.get("disable", False))
    triggers = silly_value(raw, "triggers", "triggers")
    elsewhere = isinstance(triggers, list) and bool(triggers) and _NORMAL not in triggers
    extensions = raw.get("extensions")
    silly = is_world_entry(raw) or (isinstance(extensions, dict) and not _SILLY_MARKS.isdisjoint(extensions))
    asked = {field: silly_value(raw, *names) for field, names in _SILLY.items()}
    case = asked["case_sensitive"] if isinstance(asked["case_sensitive"], bool) else raw.get("case_sensitive")
    return LoreEntry(
        content=text_value(raw.get("content")),
        keys=text_list(raw.get("keys", raw.get("key"))),
        secondary_keys=text_list(raw.get("secondary_keys", raw.get("keysecondary"))),
        name=text_value(raw.get("name") or raw.get("comment")),
        enabled=enabled is not False and not elsewhere,
        selective=raw.get("selective") is True,
        selective_logic=_logic(asked["selective_logic"]),
        constant=raw.get("constant") is True,
        insertion_order=0.0 if order is None else order,
        priority=number_value(raw.get("priority")),
        case_sensitive=case is True,
        match_whole_words=asked["match_whole_words"] is True,
        # SillyTavern writes it into every entry, and goes by the slashes around a key.
        use_regex=raw.get("use_regex") is True and not silly,
        position=_position(asked["position"], raw.get("position")),
        scan_depth=count_value(asked["scan_depth"]),
        probability=_probability(raw, asked["probability"]),
        delay=count_value(asked["delay"]) or 0,
        group=text_value(asked["group"]),
        group_override=asked["group_override"] is True,
        group_weight=_number(asked["group_weight"], _GROUP_WEIGHT),
        exclude_recursion=asked["exclude_recursion"] is True,
        prevent_recursion=asked["prevent_recursion"] is True,
        delay_until_recursion=_level(asked["delay_until_recursion"]),
        ignore_budget=asked["ignore_budget"] is True,
    )


def _logic(value: Any) -> SelectiveLogic:
    known = type(value) is int and 0 <= value < len(SELECTIVE_LOGICS)
    return SELECTIVE_LOGICS[value] if known else "and_any"


def _position(silly: Any, given: Any) -> Position:
    """The word of the specification, else what it makes of SillyTavern's number, which has more places."""
    if isinstance(given, str) or type(silly) is not int:
        return "before_char" if given == "before_char" else "after_char"
    return "before_char" if silly == 0 else "after_char"


def _probability(raw: Mapping[str, Any], value: Any) -> float:
    if silly_value(raw, "useProbability", "useProbability") is False:
        return ALWAYS
    return _number(value, ALWAYS)


def _number(value: Any, usual: float) -> float:
    number = number_value(value)
    return usual if number is None or number < 0 else number


def _level(value: Any) -> int:
    return 1 if value is True else count_value(value) or 0


def _put_entry(old: Any, entry: LoreEntry) -> dict[str, Any]:
    raw = dict(old) if isinstance(old, dict) else {}
    if not raw:
        raw = {"keys": [], "content": "", "extensions": {}, "enabled": True, "insertion_order": 0, "use_regex": False}
    before = _entry(raw)
    for field in _ENTRY_FIELDS:
        value = getattr(entry, field)
        if value != getattr(before, field):
            raw[field] = value
            if value is None:
                del raw[field]
    world = is_world_entry(raw)
    for field, world_key in _LISTS.items():
        if getattr(entry, field) != getattr(before, field):
            raw[world_key if world else field] = list(getattr(entry, field))
    for field in _SILLY:
        if getattr(entry, field) != getattr(before, field):
            _put_silly(raw, field, getattr(entry, field))
    return raw


def _put_silly(raw: dict[str, Any], field: str, value: Any) -> None:
    """Write a field where SillyTavern has it, in its values; a card has the specification's word for some as well."""
    world_key, card_key = _SILLY[field]
    world = is_world_entry(raw)
    if field in ("position", "case_sensitive") and not world:
        known = silly_value(raw, world_key, card_key)
        raw[field] = value
        if known is None or isinstance(known, str):
            return
    if field == "selective_logic":
        value = SELECTIVE_LOGICS.index(value)
    elif field == "position":
        value = 0 if value == "before_char" else 1
    named = {world_key if world else card_key: value}
    if field == "probability":
        named["useProbability"] = True
    if world:
        raw |= named
    else:
        extensions = raw.get("extensions")
        raw["extensions"] = {**(extensions if isinstance(extensions, dict) else {}), **named}


_FOLLOWED_POSITIONS = (0, 1)
_ELSEWHERE = {
    2: "position 2 (above the author's note)",
    3: "position 3 (below the author's note)",
    4: "position 4 (at a depth of the chat)",
    5: "position 5 (above the examples)",
    6: "position 6 (below the examples)",
    7: "position 7 (an outlet)",
}
_WISHES = {
    "vectorized": "vectorized",
    "useGroupScoring": "use_group_scoring",
    "matchPersonaDescription": "match_persona_description",
    "matchCharacterDescription": "match_character_description",
    "matchCharacterPersonality": "match_character_personality",
    "matchCharacterDepthPrompt": "match_character_depth_prompt",
    "matchScenario": "match_scenario",
    "matchCreatorNotes": "match_creator_notes",
    "automationId": "automation_id",
    "triggers": "triggers",
    "sticky": "sticky",
    "cooldown": "cooldown",
}
"""What SillyTavern keeps of an entry: in a world file -> in a card."""

_OF_EDITORS = (
    *("id", "uid", "comment", "addMemo", "displayIndex", "display_index", "world", "hash", "exlchat"),
    *("depth", "role", "outletName", "outlet_name"),
)
"""What says nothing of when an entry is told; the last ones go with a position."""

_FILTER = ("characterFilter", "character_filter")
_KNOWN = frozenset((*FOLLOWED, *_OF_EDITORS, *_FILTER, *_WISHES.keys(), *_WISHES.values()))
_MOST_NAMED = 12
_LONGEST = 40


def not_followed(book: Any, *, decorated: bool) -> list[str]:
    """Clauses about what the entries of a lorebook ask for and do not get.

    Args:
        book: as its file has it.
        decorated: whether it is of a specification that has decorators; in others they are chance.
    """
    entries = entries_of(book)
    known = [entry for entry in entries[:MOST_ENTRIES] if isinstance(entry, dict)]
    counts = Counter(one for entry in known for one in _asked(entry))
    if decorated:
        counts.update(f"@@{name}" for entry in known for name in unknown_decorators(entry.get("content")))
    said = [f"{one_line(name, _LONGEST)} in {_entries(count)}" for name, count in counts.most_common()]
    more = [f"{len(said) - _MOST_NAMED} more"] if len(said) > _MOST_NAMED else []
    clauses = [f"its lorebook has what is not followed: {', '.join([*said[:_MOST_NAMED], *more])}"] if said else []
    if len(entries) > MOST_ENTRIES:
        clauses.append(f"the last {len(entries) - MOST_ENTRIES:,} entries of its lorebook are never told")
    return clauses


def patterns_not_used(lorebook: Lorebook) -> list[str]:
    """A clause about the patterns of a lorebook that are never found.

    Raises:
        ChildError: they cannot be tried.
    """
    keys = {
        key: pattern
        for entry in lorebook.entries
        for key in (*entry.keys, *entry.secondary_keys)
        if (pattern := key_pattern(entry, key)) is not None
    }
    unusable = PatternSearch().unusable({one.python for one in keys.values() if one.problem is None})
    why = {
        key: pattern.problem or "it cannot be said in Python's words"
        for key, pattern in keys.items()
        if pattern.problem is not None or pattern.python in unusable
    }
    if not why:
        return []
    key, problem = next(iter(why.items()))
    count = "1 pattern of its lorebook is" if len(why) == 1 else f"{len(why)} patterns of its lorebook are"
    return [f"{count} never found, as {one_line(key, _LONGEST)!r} ({problem})"]


def _asked(entry: Mapping[str, Any]) -> Iterator[str]:
    position = silly_value(entry, "position", "position")
    if type(position) is int and position not in _FOLLOWED_POSITIONS:
        yield _ELSEWHERE.get(position, f"position {position} (which there is not)")
    logic = silly_value(entry, "selectiveLogic", "selectiveLogic")
    if logic is not None and not (type(logic) is int and 0 <= logic < len(SELECTIVE_LOGICS)):
        yield f"selectiveLogic {one_line(str(logic), 20)} (which there is not)"
    for world_key, card_key in _WISHES.items():
        if silly_value(entry, world_key, card_key):
            yield world_key
    filtered = silly_value(entry, *_FILTER)
    if isinstance(filtered, dict) and (filtered.get("names") or filtered.get("tags")):
        yield _FILTER[0]
    extensions = entry.get("extensions")
    for fields in (entry, extensions if isinstance(extensions, dict) else {}):
        yield from (key for key, value in fields.items() if value and key not in _KNOWN)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"
