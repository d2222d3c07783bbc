"""Names of keys: which there are, which of them terminals can send, and which are needed where text is typed."""

from __future__ import annotations

_MODIFIERS = ("alt", "ctrl", "shift")
_OTHER_NAMES = {
    "esc": "escape",
    "return": "enter",
    "del": "delete",
    "ins": "insert",
    "pgup": "pageup",
    "pgdn": "pagedown",
    "bs": "backspace",
    "control": "ctrl",
    "option": "alt",
}
_SPECIAL = "escape enter tab backspace delete insert home end pageup pagedown up down left right space"
_NAMED = frozenset(_SPECIAL.split()) | {f"f{number}" for number in range(1, 25)}
_SAME_AS = {"ctrl+i": "tab", "ctrl+m": "enter", "ctrl+h": "backspace", "ctrl+[": "escape"}

MOVING = frozenset({"up", "down", "home", "end", "enter", "tab", "shift+tab", "escape", "pageup", "pagedown"})
"""Keys that every list and every field needs."""

_EDITING = """left right ctrl+left ctrl+right shift+left shift+right shift+up shift+down shift+home shift+end
ctrl+shift+left ctrl+shift+right ctrl+a ctrl+e backspace delete ctrl+d ctrl+w ctrl+backspace alt+backspace alt+delete
ctrl+x ctrl+c ctrl+v ctrl+u ctrl+k ctrl+shift+k ctrl+z ctrl+shift+z"""
EDITING = frozenset(_EDITING.split())
"""Keys of the text area in which messages are typed; a test holds them against it."""


class KeyNameError(ValueError):
    """Text that names no key, or a key that terminals cannot send: the middle of a line."""


def key_name(text: str) -> str:
    """The one name of a key: "Ctrl+Shift+T" -> "ctrl+shift+t".

    Raises:
        KeyNameError: there is no such key, or no terminal sends it.
    """
    shown = f"{text[:40]!r}"
    base, modifiers = _parts(text.strip())
    base = base if len(base) == 1 else base.lower()
    base = _OTHER_NAMES.get(base, base)
    if "alt" in modifiers and len(base) == 1 and base.isupper():
        modifiers.append("shift")
    if "ctrl" in modifiers or "alt" in modifiers:
        base = base.lower()
    if not (base in _NAMED or (len(base) == 1 and base.isprintable() and not base.isspace())):
        raise KeyNameError(f"{shown} is no key; keys are named like ctrl+t, alt+x, f5 or pageup")
    if unknown := [one for one in modifiers if one not in _MODIFIERS]:
        raise KeyNameError(
            f"{shown} has {unknown[0][:20]!r}, which terminals do not send; there are ctrl, alt and shift"
        )
    name = "+".join([*sorted(set(modifiers)), base])
    if name in _SAME_AS:
        raise KeyNameError(f"{name} cannot be told from {_SAME_AS[name]} in terminals")
    if len(base) == 1 and "ctrl" in modifiers and not (base.isascii() and base.isalpha()):
        raise KeyNameError(f"{name} is not sent by most terminals; with ctrl there are letters")
    if len(base) == 1 and modifiers == ["shift"]:
        raise KeyNameError(f"{name} is what shift makes of that key; name that character alone")
    return name


def is_typed(key: str) -> bool:
    return len(key) == 1 or key in ("space", "shift+space")


def _parts(text: str) -> tuple[str, list[str]]:
    """The key itself, which may be a plus, and what is held with it."""
    if text in ("+", "") or text.endswith("++"):
        head, base = text[:-2], text[-1:]
    else:
        head, _, base = text.rpartition("+")
    held = [part.strip().lower() for part in head.split("+") if part.strip()]
    return base.strip(), [_OTHER_NAMES.get(one, one) for one in held]
