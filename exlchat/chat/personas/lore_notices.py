"""What of a lorebook of another program is not followed here, said when it is imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from exlchat.chat.personas.card_lorebook import FOLLOWED, MOST_ENTRIES, entries_of, silly_value
from exlchat.chat.personas.decorators import unknown_decorators
from exlchat.chat.personas.lore_calls import key_pattern
from exlchat.chat.personas.lore_patterns import PatternSearch
from exlchat.chat.personas.lorebook import SELECTIVE_LOGICS, Lorebook
from exlchat.untrusted.text import one_line

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
