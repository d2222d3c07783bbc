"""MathML, as the library makes it of TeX, to one line of Unicode."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Final

from latex2mathml.converter import convert_to_element
from latex2mathml.symbols_parser import SYMBOLS

from exlchat.app.markdown.tex_tokens import ATOM, FRACTION, PRODUCT, SIGNS, SUM, NotPlainError, TexPart, token

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from xml.etree.ElementTree import Element

_SUPER: Final = dict(
    zip(
        "0123456789+-−=()abcdefghijklmnoprstuvwxyzABDEGHIJKLMNOPRTUVW′″‴°",
        "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵀᵁⱽᵂ′″‴°",
        strict=True,
    )
)
_SUB: Final = dict(zip("0123456789+-−=()aehijklmnoprstuvxβγρφχ", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓᵦᵧᵨᵩᵪ", strict=True))
_ACCENTS: Final = {
    "^": "\u0302",
    "~": "\u0303",
    "¯": "\u0304",
    "―": "\u0305",
    "˘": "\u0306",
    "˙": "\u0307",
    "¨": "\u0308",
    "ˇ": "\u030c",
    "→": "\u20d7",
}
_OVER_MANY: Final = frozenset("¯―")
_ROOTS: Final = {"2": "√", "3": "∛", "4": "∜"}
_KNOWN: Final = {
    "mi": {"mathvariant"},
    "mn": {"mathvariant"},
    "mo": {"stretchy", "fence", "form", "minsize", "maxsize", "movablelimits", "mathvariant"},
    "mtext": {"mathvariant"},
    "mstyle": {"displaystyle", "scriptlevel"},
    "mover": {"accent"},
    "menclose": {"notation"},
    "mspace": {"width"},
}
"""Attributes that change nothing which a line could show, by element."""

_NAMES: Final = r"""
    frac dfrac tfrac cfrac sqrt boxed left right big Big bigg Bigg bigl Bigl biggl Biggl bigr Bigr biggr Biggr
    text textrm textit textbf mathrm mathbf mathit mathbb mathcal mathscr mathfrak boldsymbol operatorname mbox
    hat widehat tilde widetilde bar overline vec dot ddot breve check limits nolimits not displaystyle textstyle
    sin cos tan cot sec csc sinh cosh tanh coth arcsin arccos arctan log ln lg exp lim liminf limsup max min sup inf
    arg det dim gcd deg ker hom Pr bmod pmod mod quad qquad
    , ; : ! > { } | % $ # & _
"""
_COMMANDS: Final = frozenset(_NAMES.split()) | {" "}
"""Those that are understood below; a symbol is known by its name."""
_COMMAND: Final = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_WIDE_GAP: Final = re.compile(" {3,}")
_BRACKETED: Final = re.compile(r"\([^()]*\)")
_CALL: Final = re.compile(r"\w+\([^()]*\)")


def line_of(source: str) -> str | None:
    """TeX as a line, None where it has none."""
    if not all(_is_known(command) for command in _COMMAND.findall(source)):
        return None
    try:
        formula = convert_to_element(source)
    except Exception:
        # Its own errors have no common kind, and what it did not expect raises others.
        return None
    try:
        return _WIDE_GAP.sub("  ", _part(formula).text.strip())
    except (NotPlainError, ValueError, RecursionError):
        return None


def _is_known(command: str) -> bool:
    """Whether nothing is lost of a command: the library leaves out some that it knows."""
    return command in SYMBOLS or command[1:] in _COMMANDS


def _part(element: Element) -> TexPart:
    """An element as a part.

    Raises:
        NotPlainError: it has no form within a line.
    """
    reader = _READERS.get(element.tag)
    if reader is None or not set(element.attrib) <= _KNOWN.get(element.tag, {"xmlns", "display"}):
        raise NotPlainError
    return reader(element)


def _group(element: Element) -> TexPart:
    return _row(list(element))


def _fraction(element: Element) -> TexPart:
    over, under = (_part(child) for child in element)
    if not over.text or not under.text:
        raise NotPlainError
    return TexPart(f"{_over(over)}/{_under(under)}", FRACTION)


def _square_root(element: Element) -> TexPart:
    return _root("√", _row(list(element)))


def _box(element: Element) -> TexPart:
    if element.get("notation") != "box":
        raise NotPlainError
    return TexPart(f"[{_row(list(element)).text}]")


def _space(element: Element) -> TexPart:
    width = element.get("width", "0em")
    if width.startswith(("negative", "-")):
        return TexPart("")
    return TexPart("  " if float(width.removesuffix("em")) >= 1 else " ")


def _row(children: Sequence[Element], *, tight: bool = False) -> TexPart:
    """Parts beside each other; `tight` without room around signs."""
    if len(children) == 1 and not (tight and children[0].tag in ("mrow", "mstyle")):
        return _part(children[0])
    if len(children) == 1:
        return _row(list(children[0]), tight=tight)
    parts = [_part(child) for child in children]
    text = ""
    binds = PRODUCT
    depth = 0
    for index, part in enumerate(parts):
        before = parts[index - 1] if index else None
        after = parts[index + 1] if index + 1 < len(parts) else None
        depth += (part.kind == "opens") - (part.kind == "closes")
        if depth == 0:
            binds = min(binds, _binding(part))
        if part.kind == "sign":
            text = _with_sign(text, part.text, before, tight=tight)
        elif part.kind == "comma":
            thousands = after is not None and before is not None and _is_thousand(before.text, after.text)
            text += part.text + ("" if tight or thousands else " ")
        else:
            shown, kind = part.text, part.kind
            if part.binds == FRACTION and (_is_factor(before, "closes") or _is_factor(after, "opens")):
                shown, kind = f"({shown})", "fraction"
            text += _gap(text, before, shown, kind) + shown
    if len(parts) > 1 and all(child.get("mathvariant") == "normal" for child in children):
        return TexPart(text, ATOM, "word")
    return TexPart(text, ATOM if _is_bracketed(text) else binds)


def _binding(part: TexPart) -> int:
    """How tightly a row holds together that has this part in it."""
    if part.kind in ("sign", "comma"):
        return SUM
    return FRACTION if part.text == "/" else min(part.binds, PRODUCT)


def _with_sign(text: str, sign: str, before: TexPart | None, *, tight: bool) -> str:
    if tight:
        return text + sign
    if before is None or (sign in SIGNS and before.kind in ("sign", "comma", "opens")):
        return text + sign + ("" if sign in SIGNS else " ")
    return f"{text.rstrip()} {sign} "


def _gap(text: str, before: TexPart | None, shown: str, kind: str) -> str:
    """The blank between two parts that would read as one."""
    if before is None or not text or text.endswith(" ") or not shown:
        return ""
    first = shown[0]
    is_term = first.isalnum() or first in "√∛∜" or kind in ("open", "fraction")
    apart = before.kind in ("word", "open") and is_term
    if before.kind == "root":
        apart = not text.endswith(")") and (is_term or kind == "opens")
    word = kind in ("word", "open") and text[-1].isalnum() and first.isalnum()
    return " " if apart or word else ""


def _is_factor(part: TexPart | None, bracket: str) -> bool:
    """Whether a fraction beside this part is multiplied by it. `bracket`: the kind of bracket that is a factor here."""
    if part is None or not part.text.strip() or part.kind in ("sign", "comma"):
        return False
    return part.kind == bracket if part.kind in ("opens", "closes") else True


def _is_thousand(before: str, after: str) -> bool:
    return before.isdigit() and after[:3].isdigit() and len(after.partition(".")[0]) == 3


def _is_bracketed(text: str) -> bool:
    """Whether all of it is in one pair of brackets, or the value of a function: (x + 1), f(x)."""
    if _CALL.fullmatch(text):
        return True
    depth = 0
    for index, character in enumerate(text):
        depth += (character in "([") - (character in ")]")
        if depth == 0:
            return index > 0 and index == len(text) - 1
    return False


def _held(part: TexPart, least: int) -> str:
    """A part in brackets, if it binds less tightly than that."""
    return part.text if part.binds >= least else f"({part.text})"


def _over(part: TexPart) -> str:
    has_blank = " " in _BRACKETED.sub("", part.text)
    return _held(part, ATOM if has_blank and part.binds < ATOM else PRODUCT)


def _under(part: TexPart) -> str:
    """Below a fraction's bar; dx and ∂x are read as one."""
    is_differential = len(part.text) in (2, 3) and part.text[0] in "d∂" and part.text[1:].isalnum()
    return part.text if is_differential else _held(part, ATOM)


def _root(sign: str, under: TexPart) -> TexPart:
    if not under.text:
        raise NotPlainError
    held = _held(under, ATOM)
    return TexPart(f"{sign}{held}", ATOM, "root")


def _any_root(element: Element) -> TexPart:
    under, index = element
    number = _row([index], tight=True).text
    sign = _ROOTS.get(number) or _raised(number, _SUPER)
    if sign is None:
        raise NotPlainError
    return _root(sign if number in _ROOTS else f"{sign}√", _part(under))


def _raised(text: str, table: dict[str, str]) -> str | None:
    return "".join(table[character] for character in text) if all(character in table for character in text) else None


def _scripts(element: Element) -> TexPart:
    tag, children = element.tag, list(element)
    if len(children) != (3 if tag in ("msubsup", "munderover") else 2):
        raise NotPlainError
    base = _part(children[0])
    is_limit = tag in ("munder", "munderover")
    if is_limit and base.kind not in ("open", "word"):
        raise NotPlainError
    scripts = [_row([child], tight=True).text for child in children[1:]]
    below = scripts[0] if tag != "msup" else ""
    above = scripts[-1] if tag in ("msup", "msubsup", "munderover") else ""
    text = f"({base.text})" if _is_compound(base, below, above) else base.text
    shown = [_script(below, "_", _SUB), _script(above.replace("∘", "°"), "^", _SUPER)]
    last = shown[1] or shown[0]
    is_open = base.kind in ("open", "word") or (last[:1] in ("^", "_") and not last.endswith(")"))
    return TexPart("".join([text, *shown]), ATOM, "open" if is_open else "")


def _is_compound(base: TexPart, below: str, above: str) -> bool:
    """Whether a script beside a part would be read as that of its end, or as more of a script that it has."""
    if base.kind == "word" or not base.text:
        return False
    last = base.text[-1]
    more = (above and last in _SUPER.values()) or (below and last in _SUB.values())
    return base.binds < ATOM or base.kind == "root" or bool(more) or "^" in base.text or "_" in base.text


def _script(text: str, mark: str, table: dict[str, str]) -> str:
    """Small letters where Unicode has them all, else behind ^ or _."""
    if not text:
        return ""
    small = _raised(text, table)
    if small is not None:
        return small
    return f"{mark}{text}" if len(text) == 1 or (text.isascii() and text.isalnum()) else f"{mark}({text})"


def _accent(element: Element) -> TexPart:
    base, over = element
    sign = html.unescape(over.text or "") if over.tag == "mo" else ""
    mark = _ACCENTS.get(sign)
    part = _part(base)
    many = len(part.text) > 1
    if mark is None or not part.text.isalnum() or (many and sign not in _OVER_MANY):
        raise NotPlainError
    return TexPart("".join(character + ("\u0305" if many else mark) for character in part.text))


_READERS: Final[dict[str, Callable[[Element], TexPart]]] = {
    **dict.fromkeys(("math", "mrow", "mstyle"), _group),
    **dict.fromkeys(("mi", "mn", "mo", "mtext"), token),
    **dict.fromkeys(("msub", "munder", "msup", "msubsup", "munderover"), _scripts),
    "mspace": _space,
    "mfrac": _fraction,
    "msqrt": _square_root,
    "mroot": _any_root,
    "mover": _accent,
    "menclose": _box,
}
