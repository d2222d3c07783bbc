"""Which keys do what in the line mode: those of the registry and of `[keys]`, as prompt_toolkit knows them.

A default key that editing a line needs stays with that; a key of the user's own wins over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prompt_toolkit.keys import ALL_KEYS

from exlchat.app.commands.actions import ACTIONS, BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from exlchat.app.commands.action import Action
    from exlchat.app.keys.keymap import Keymap

TYPING: Final = ("send", "new-line", "earlier-prompt", "stop")
"""Actions of the registry that belong to typing; their keys are those in force."""
LINE_KEYS: Final = (
    ("ctrl+c", "Stop the answer, or clear the line; twice in a row quits."),
    ("ctrl+d", "Quit, on an empty line."),
    ("ctrl+r", "Find what was typed before by a part of it."),
    ("right", "Take the dimmed suggestion."),
    ("tab", "Complete a command, or what follows it."),
    ("ctrl+x ctrl+e", "Write the message in $EDITOR."),
)
EDITING: Final = {
    "ctrl+b": "goes back a character",
    "ctrl+f": "goes forward a character",
    "ctrl+n": "goes down, or to what was typed later",
    "ctrl+p": "goes up, or to what was typed before",
    "ctrl+up": "goes to what was typed before",
    "ctrl+down": "goes to what was typed later",
    "ctrl+r": "finds what was typed before",
    "ctrl+s": "finds what was typed later",
    "ctrl+y": "puts in what was cut last",
    "ctrl+t": "swaps two characters",
    "ctrl+l": "clears the screen",
    "ctrl+g": "leaves a search or a selection",
    "alt+b": "goes back a word",
    "alt+f": "goes forward a word",
    "alt+d": "cuts the word behind",
    "alt+c": "makes the word begin with a capital",
    "alt+l": "makes the word small letters",
    "alt+u": "makes the word capitals",
    "alt+t": "swaps two words",
    "alt+w": "copies what is selected",
    "alt+y": "puts in what was cut before",
    "alt+.": "puts in the last word of what was typed before",
    "alt+<": "goes to what was typed first",
    "alt+>": "comes back to what is typed",
    "alt+left": "goes back a word",
    "alt+right": "goes forward a word",
    "pageup": "goes to what was typed before",
    "pagedown": "goes to what was typed later",
    "ctrl+home": "goes to the beginning",
    "ctrl+end": "goes to the end",
}
"""Keys of prompt_toolkit's emacs editing that an action may have as well; a test holds them against it."""
_NAMES: Final = {"enter": "c-m", "tab": "c-i", "backspace": "c-h", "space": " "}


@dataclass(frozen=True, slots=True)
class LineKey:
    """A key of an action: its name for people, and what prompt_toolkit is sent; `None` where it cannot tell it."""

    action: Action
    name: str
    sequence: tuple[str, ...] | None


def sequence_of(name: str) -> tuple[str, ...] | None:
    """A key as `key_names` calls it in prompt_toolkit's words; `None` for one that it cannot tell from others."""
    head, base = (name[:-2], "+") if name.endswith("++") else (name.rpartition("+")[0], name.rpartition("+")[2])
    held = [one for one in head.split("+") if one] if name != "+" else []
    if name == "shift+enter":
        # `keys.learn_keys` takes it for alt+enter.
        return ("escape", "c-m")
    if "alt" not in held:
        return _without_alt(held, base)
    rest = _without_alt([one for one in held if one != "alt"], base)
    return None if rest is None else ("escape", *rest)


def _without_alt(held: list[str], base: str) -> tuple[str] | None:
    if len(base) == 1 and held in ([], ["shift"]):
        return (base.upper() if held else base,)
    name = "+".join([*held, base])
    key = _NAMES.get(name) or "-".join([*({"ctrl": "c", "shift": "s"}[one] for one in held), base])
    return (key,) if key in ALL_KEYS or key == " " else None


def line_keys(keys: Keymap, known: Callable[[str], bool]) -> Iterator[LineKey]:
    """The keys that are to be bound, or would be if prompt_toolkit could tell them.

    Args:
        keys: those in force in the app.
        known: whether an action can be done in lines.
    """
    for action in ACTIONS:
        own = action.id in keys.own
        if action.place not in ("everywhere", "composer") or not (action.id in TYPING or known(action.id)):
            continue
        for name in keys.keys(action.id):
            if own or action.id in TYPING or name not in EDITING:
                yield LineKey(action, name, sequence_of(name))


def keys_in_words(keys: Keymap, known: Callable[[str], bool]) -> list[tuple[str, str]]:
    holding = list(line_keys(keys, known))
    rows = [(_names(holding, action_id), BY_ID[action_id].in_lines) for action_id in TYPING]
    bound = {one.name for one in holding if one.sequence is not None}
    rows += [(name, what) for name, what in LINE_KEYS if name not in bound]
    for action in ACTIONS:
        if action.place == "everywhere" and action.id not in TYPING and (names := _names(holding, action.id)):
            lost = [name for name in names.split(", ") if name in EDITING]
            without = "".join(f" Without it, {name} {EDITING[name]}." for name in lost)
            rows.append((names, f"{action.in_lines or action.help}{without}"))
    rows += [
        (one.name, f"{BY_ID[one.action.id].title} has this key in the app; here it cannot be told from others.")
        for one in holding
        if one.sequence is None
    ]
    edit = ", ".join(sorted(_editing(known, keys) - bound))
    if edit:
        rows.append((edit, "Edit the line here; [keys] in settings.toml gives their actions other keys, or these."))
    return [row for row in rows if row[0]]


def own_problems(keys: Keymap, known: Callable[[str], bool]) -> list[str]:
    """A line for each key of the user's own that cannot be told here."""
    return [
        f"keys.{one.action.id}: {one.name} cannot be told from other keys in the line mode; it holds in the app"
        for one in line_keys(keys, known)
        if one.sequence is None and one.action.id in keys.own
    ]


def _names(holding: Iterable[LineKey], action_id: str) -> str:
    return ", ".join(one.name for one in holding if one.action.id == action_id and one.sequence is not None)


def _editing(known: Callable[[str], bool], keys: Keymap) -> set[str]:
    """Default keys of actions that stay with editing the line."""
    return {
        name
        for action in ACTIONS
        if action.place == "everywhere" and known(action.id) and action.id not in keys.own
        for name in action.keys
        if name in EDITING
    }
