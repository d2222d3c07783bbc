"""The leaves of a formula: letters, numbers, signs and brackets, and what each is to those beside it."""

from __future__ import annotations

import html
import unicodedata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

SUM, FRACTION, PRODUCT, ATOM = range(4)
"""How tightly a part holds together."""

_LARGE: Final = frozenset("∑∏∐∫∬∭∮⋃⋂⋁⋀⨁⨂⨀")
_UNSPACED: Final = _LARGE | frozenset("∂∇√∛∜∞∀∃∄¬/|‖⋯⋮⋱∅∆⊤⊥⌊⌋⌈⌉⟨⟩∠°′″‴")
_SPACED: Final = frozenset("*·∗∘⋆⊕⊗:")
SIGNS: Final = frozenset("+-−±∓")
"""What may be the sign of a number."""
_VARIANTS: Final = {
    "bold": "BOLD",
    "double-struck": "DOUBLE-STRUCK",
    "script": "SCRIPT",
    "fraktur": "FRAKTUR",
    "normal": "",
    "italic": "",
}


class NotPlainError(Exception):
    """Something has no form within a line."""


@dataclass(frozen=True, slots=True)
class TexPart:
    """A part of the line.

    `binds` says how tightly it holds together, from `SUM` to `ATOM`. `kind`: "sign" has room on both sides, "comma"
    behind it, "opens" and "closes" are brackets, "word" stays apart from letters; behind "open" a letter stays apart,
    behind "root" a bracket too.
    """

    text: str
    binds: int = ATOM
    kind: str = ""


def token(element: Element) -> TexPart:
    """A leaf as a part.

    Raises:
        NotPlainError: it is an unknown command or has a look that says something.
    """
    text = html.unescape(element.text or "").replace("\u00a0", " ")
    if element.tag == "mtext":
        if any(mark in text for mark in "\\${}"):
            raise NotPlainError
        return TexPart(text, PRODUCT if " " in text else ATOM, "word" if len(text.strip()) > 1 else "")
    text = "".join(_letter(character, element.get("mathvariant", "normal")) for character in text)
    if "\\" in text or (text in "{}" and element.tag == "mi"):
        raise NotPlainError
    return TexPart(text, ATOM, _kind(text, element.get("form", "")))


def _kind(text: str, form: str) -> str:
    if len(text) != 1:
        return "word" if text.isalpha() else ""
    category = unicodedata.category(text)
    is_sign = category == "Sm" or "\u2190" <= text <= "\u21ff"
    kinds = {
        "opens": category == "Ps" or form == "prefix" or text == "⟨",
        "closes": category == "Pe" or form == "postfix" or text == "⟩",
        "comma": text in ",;",
        "open": text in _LARGE,
        "sign": text in _SPACED or (is_sign and text not in _UNSPACED),
    }
    return next((kind for kind, holds in kinds.items() if holds), "")


def _letter(character: str, variant: str) -> str:
    """A letter or digit of another alphabet, where that is more than a matter of looks."""
    name = _VARIANTS.get(variant)
    if name is None:
        raise NotPlainError
    if not name or not character.isascii() or not character.isalnum():
        return character
    kind = "DIGIT" if character.isdigit() else "CAPITAL" if character.isupper() else "SMALL"
    what = f"{kind} {unicodedata.name(character).rsplit(' ', 1)[-1]}"
    for prefix in (f"MATHEMATICAL {name}", name, f"BLACK-LETTER {kind}"):
        try:
            return unicodedata.lookup(f"{prefix} {what}")
        except KeyError:
            continue
    raise NotPlainError
