"""Keys that prompt_toolkit 3.0 does not know."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.keys import Keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    Meaning = Keys | tuple[Keys | str, ...]

BEGIN_REPORTS: Final = "\x1b[>1u\x1b[>4;1m"
"""Has terminals tell shift+enter from Enter: kitty's protocol, and xterm's for those that do not know that."""
END_REPORTS: Final = "\x1b[<u\x1b[>4m"

_SHIFT, _ALT, _CONTROL = 1, 2, 4
_LOCKS: Final = (0, 64, 128, 192)
"""Caps lock and num lock, which kitty's protocol reports with the modifiers."""
_CURSOR: Final = re.compile(r"\x1b\[(?:1;(?P<modifiers>\d))?(?P<end>[A-DFHPQS])")
_TILDE: Final = re.compile(r"\x1b\[(?P<number>\d+)(?:;(?P<modifiers>\d))?~")
_NAMED: Final[dict[int, Keys]] = {
    9: Keys.ControlI,
    13: Keys.ControlM,
    27: Keys.Escape,
    127: Keys.ControlH,
}
_CONTROLS: Final[dict[str, Keys]] = {
    "@": Keys.ControlAt,
    " ": Keys.ControlAt,
    "\\": Keys.ControlBackslash,
    "]": Keys.ControlSquareClose,
    "^": Keys.ControlCircumflex,
    "_": Keys.ControlUnderscore,
    "/": Keys.ControlUnderscore,
    "[": Keys.Escape,
}


def learn_keys() -> None:
    """Teach prompt_toolkit the sequences of kitty's protocol and of xterm's modifyOtherKeys.

    Its table is the one place where it looks; a sequence that it knows and reads well keeps its meaning.
    """
    learned = dict(_kitty()) | dict(_with_locks())
    # prompt_toolkit takes shift+enter of xterm for Enter, which would send.
    for modifiers in (_SHIFT, _ALT, _SHIFT | _ALT):
        learned[f"\x1b[27;{modifiers + 1};13~"] = (Keys.Escape, Keys.ControlM)
    for sequence, meaning in learned.items():
        ANSI_SEQUENCES[sequence] = meaning  # type: ignore[assignment]  # letters are keys, which its type leaves out


def _kitty() -> Iterator[tuple[str, Meaning]]:
    """`CSI code ; modifiers u`."""
    for code in (*_NAMED, *range(32, 127)):
        for modifiers in range(8):
            meaning = _meaning(code, modifiers)
            if meaning is None:
                continue
            for locks in _LOCKS:
                yield f"\x1b[{code};{1 + modifiers + locks}u", meaning
            if not modifiers:
                yield f"\x1b[{code}u", meaning


def _meaning(code: int, modifiers: int) -> Meaning | None:
    if code == 13 and modifiers & (_SHIFT | _ALT):
        return (Keys.Escape, Keys.ControlM)
    if code == 9 and modifiers == _SHIFT:
        return Keys.BackTab
    key: Keys | str | None = _NAMED.get(code)
    if key is None:
        key = _control(chr(code)) if modifiers & _CONTROL else _shifted(chr(code), modifiers)
    if key is None:
        return None
    if modifiers & _ALT:
        return (Keys.Escape, key)
    # Characters without a modifier come as themselves.
    return key if isinstance(key, Keys) else None


def _control(character: str) -> Keys | None:
    if "a" <= character <= "z":
        return Keys(f"c-{character}")
    return Keys(f"c-{character}") if character.isdigit() else _CONTROLS.get(character)


def _shifted(character: str, modifiers: int) -> str:
    return character.upper() if modifiers & _SHIFT else character


def _with_locks() -> Iterator[tuple[str, Meaning]]:
    """Arrows and the like while a lock is on: what they mean without it."""
    for sequence, meaning in list(ANSI_SEQUENCES.items()):
        found = _CURSOR.fullmatch(sequence) or _TILDE.fullmatch(sequence)
        if found is None:
            continue
        modifiers = int(found["modifiers"] or 1)
        begins = "1" if "end" in found.groupdict() else found["number"]
        ends = found["end"] if "end" in found.groupdict() else "~"
        for locks in _LOCKS[1:]:
            yield f"\x1b[{begins};{modifiers + locks}{ends}", meaning
