"""Which keys do what: those of the registry, and those of `[keys]` in settings.toml in their place where that can be.

What cannot be is explained in one line, and the keys of the registry stay. No terminal library here.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from exlchat.app.commands.actions import ACTIONS, BY_ID
from exlchat.app.keys.names import EDITING, MOVING, KeyNameError, is_typed, key_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from exlchat.app.commands.action import Action
    from exlchat.config.kinds import KeyTable

PAIRS = {
    "earlier-prompt": ("earlier-prompt", "later-prompt"),
    "scroll-page": ("scroll-page-up", "scroll-page-down"),
    "scroll-ends": ("scroll-first", "scroll-last"),
    "message-ends": ("message-first", "message-last"),
}
"""Actions of two directions, a key each, and the ids of their bindings."""

BINDABLE = {action.id: action for action in ACTIONS if action.keys}
"""Actions whose keys can be chosen, by id."""

_MENDED = {"new-line": ("enter",)}
"""Keys that are another's by habit, but no mistake here."""


@dataclass(frozen=True, slots=True)
class Keymap:
    """The keys in force.

    Args:
        own: keys of the user's own, by action.
        problems: what of the settings cannot be, a line each.
    """

    own: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def keys(self, action_id: str) -> tuple[str, ...]:
        """The keys of an action; the first is the one to show."""
        return self.own.get(action_id) or BY_ID[action_id].keys

    def bindings(self) -> dict[str, str]:
        """Ids of bindings with the keys of the user's own, as Textual's keymap takes them."""
        found: dict[str, str] = {}
        for action_id, keys in self.own.items():
            if action_id in PAIRS:
                found.update(zip(PAIRS[action_id], keys, strict=True))
            else:
                found[action_id] = ",".join(keys)
        return found


def keymap(wanted: KeyTable) -> Keymap:
    own: dict[str, tuple[str, ...]] = {}
    problems = []
    for action_id, names in wanted:
        try:
            own[action_id] = _checked(action_id, names)
        except ValueError as error:
            problems.append(str(error))
    while (clash := _clash(own)) is not None:
        mine, other, key = clash
        del own[mine]
        owner = BY_ID[other]
        problems.append(
            f"keys.{mine}: {key} is a key of {other} ({owner.title}); {_kept(BY_ID[mine])}, "
            f"or give {other} another key first"
        )
    return Keymap(own, tuple(problems))


def with_keys(wanted: KeyTable, action_id: str, names: Sequence[str]) -> tuple[str, ...]:
    """What to write for an action, beside what is wanted for the others.

    Raises:
        ValueError: it cannot be; one line that says why.
    """
    keys = _checked(action_id, tuple(names))
    others = tuple((one, keys_of_it) for one, keys_of_it in wanted if one != action_id)
    for problem in keymap((*others, (action_id, keys))).problems:
        if problem.startswith(f"keys.{action_id}:"):
            raise ValueError(problem)
    return keys


def _checked(action_id: str, names: Sequence[str]) -> tuple[str, ...]:
    action = BINDABLE.get(action_id)
    if action is None:
        raise ValueError(_unknown(action_id))
    keys = []
    for name in names:
        try:
            key = key_name(name)
        except KeyNameError as error:
            raise ValueError(f"keys.{action_id}: {error}; {_kept(action)}") from None
        if key not in (*action.keys, *_MENDED.get(action_id, ())) and (needed := _needed_for(key, action)):
            raise ValueError(f"keys.{action_id}: {key} is needed for {needed}; {_kept(action)}")
        if key not in keys:
            keys.append(key)
    if not keys:
        raise ValueError(f"keys.{action_id}: no key is named; {_kept(action)}")
    if action_id in PAIRS and len(keys) != 2:
        raise ValueError(f"keys.{action_id}: it needs two keys, one for each direction; {_kept(action)}")
    return tuple(keys)


def _needed_for(key: str, action: Action) -> str:
    """What a key is needed for where the action's keys work; empty if for nothing."""
    if key in MOVING:
        return "moving about"
    if action.place in ("everywhere", "composer") and (is_typed(key) or key in EDITING):
        return "typing"
    return ""


def _clash(own: Mapping[str, tuple[str, ...]]) -> tuple[str, str, str] | None:
    """An action whose own keys must go (the last one that was named), who has the key, and the key."""
    for mine in reversed(list(own)):
        for other in BINDABLE.values():
            if other.id == mine or not _meet(BY_ID[mine], other):
                continue
            theirs = own.get(other.id) or other.keys
            # Escape stops from the composer and leaves the sidebar from there.
            shared = set(BY_ID[mine].keys) & set(other.keys)
            for key in own[mine]:
                if key in theirs and key not in shared:
                    return mine, other.id, key
    return None


def _meet(one: Action, other: Action) -> bool:
    return one.place == other.place or "everywhere" in (one.place, other.place)


def _kept(action: Action) -> str:
    return f"{', '.join(action.keys)} {'stays' if len(action.keys) == 1 else 'stay'}"


def _unknown(action_id: str) -> str:
    if action_id in BY_ID:
        return f"keys.{action_id}: it has no key, only {BY_ID[action_id].slash}; a key for it cannot be set"
    nearest = difflib.get_close_matches(action_id, BINDABLE, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(BINDABLE)}"
    return f"keys.{action_id[:60]}: there is no such action; {hint}"
