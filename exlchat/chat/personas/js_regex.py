r"""JavaScript's regular expressions (ECMA-262, with Annex B where there is no `u`) in the words of Python's `re`.

The two look alike and differ in most of what they mean: `\d`, `\w`, `\b` and `\s` are other characters, `$` is another
place, a reference to a group that took no part is empty. What JavaScript itself refuses and what cannot be said in
Python are two kinds of errors: programs that take a broken pattern for plain text need the difference.
"""

from __future__ import annotations

from collections.abc import Iterable

LONGEST = 2_000
_DEEPEST = 40
_MOST_REPEATS = 2**31
_SYNTAX = frozenset("^$\\.*+?()[]{}|/")
_CONTROL = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}
_BREAKS = r"\n\r\u2028\u2029"
_SPACE = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_ANY = "(?s:.)"
_NEVER = "(?!)"
_EDGE = r"(?a:\b)"
_SETS = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[0-9A-Za-z_]",
    "W": "[^0-9A-Za-z_]",
    "s": f"[{_SPACE}]",
    "S": f"[^{_SPACE}]",
}
_IN_CLASS = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACE}


class BrokenRegexError(Exception):
    """JavaScript refuses the pattern."""


class ForeignRegexError(Exception):
    """JavaScript takes the pattern, and Python has no words for it: what of it, in a few words."""


def python_pattern(source: str, flags: str) -> str:
    """The pattern for `re.compile` that finds something where JavaScript's `/source/flags` does.

    Args:
        source: between the slashes.
        flags: of `gimsuy`. `g` is about the next match and says nothing here; `y` wants the match at the beginning.

    Raises:
        BrokenRegexError: JavaScript refuses it.
        ForeignRegexError: it cannot be said in Python.
    """
    if set(flags) - set("gimsuy") or len(set(flags)) < len(flags):
        raise BrokenRegexError
    if len(source) > LONGEST:
        raise ForeignRegexError(f"more than {LONGEST:,} characters")
    found = _Reader(source, flags).whole()
    if "y" in flags:
        found = rf"\A(?:{found})"
    return f"(?i){found}" if "i" in flags else found


class _Reader:
    def __init__(self, source: str, flags: str) -> None:
        self._source = source
        self._lines, self._dot_all, self._unicode = ("m" in flags), ("s" in flags), ("u" in flags)
        self._names = _names_of_groups(source)
        self._begun = 0
        self._open: list[int] = []
        self._place = 0
        self._depth = 0
        self._behind = 0

    def whole(self) -> str:
        found = self._alternatives()
        if self._place < len(self._source):
            raise BrokenRegexError
        return "|".join(found)

    def _next(self, wanted: str) -> bool:
        """Whether `wanted` comes next; then it is taken."""
        if not self._source.startswith(wanted, self._place):
            return False
        self._place += len(wanted)
        return True

    def _taken(self) -> str:
        if self._place >= len(self._source):
            raise BrokenRegexError
        self._place += 1
        return self._source[self._place - 1]

    def _alternatives(self) -> list[str]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ForeignRegexError(f"groups more than {_DEEPEST} deep")
        found = [self._sequence()]
        while self._next("|"):
            found.append(self._sequence())
        self._depth -= 1
        return found

    def _sequence(self) -> str:
        pieces = []
        while self._place < len(self._source) and self._source[self._place] not in "|)":
            pieces.append(self._term())
        return "".join(pieces)

    def _term(self) -> str:
        assertion = self._assertion()
        if assertion is not None:
            if self._quantifier() is not None:
                raise BrokenRegexError
            return assertion
        if self._source.startswith(("(?=", "(?!"), self._place):
            atom = self._look(self._source[self._place : self._place + 3])
            times = self._quantifier()
            if times is not None and self._unicode:
                raise BrokenRegexError
        else:
            atom = self._atom()
            times = self._quantifier()
        return atom if times is None else f"(?:{atom}){times}"

    def _assertion(self) -> str | None:
        if self._next("^"):
            return rf"(?:\A|(?<=[{_BREAKS}]))" if self._lines else r"\A"
        if self._next("$"):
            return rf"(?=[{_BREAKS}]|\Z)" if self._lines else r"\Z"
        if self._next(r"\b"):
            return _EDGE
        if self._next(r"\B"):
            # Python's own is not in an empty text.
            return f"(?!{_EDGE})"
        for look in ("(?<=", "(?<!"):
            if self._source.startswith(look, self._place):
                return self._look(look)
        return None

    def _look(self, kind: str) -> str:
        self._place += len(kind)
        behind = "<" in kind
        self._behind += behind
        found = self._alternatives()
        self._behind -= behind
        if not self._next(")"):
            raise BrokenRegexError
        if not behind:
            return f"{kind}{'|'.join(found)})"
        # Python wants one width of all that stands in a look behind; alternatives may differ.
        looks = [f"{kind}{one})" for one in found]
        return "".join(looks) if kind == "(?<!" else f"(?:{'|'.join(looks)})"

    def _quantifier(self) -> str | None:
        times = self._times()
        if times is None:
            return None
        return f"{times}?" if self._next("?") else times

    def _times(self) -> str | None:
        for sign in "*+?":
            if self._next(sign):
                return sign
        end = self._source.find("}", self._place)
        if end < 0 or not self._source.startswith("{", self._place):
            return None
        low, comma, high = self._source[self._place + 1 : end].partition(",")
        if not _is_number(low) or not (high == "" or _is_number(high)):
            return None
        self._place = end + 1
        least = min(int(low), _MOST_REPEATS)
        if not comma:
            return f"{{{least}}}"
        if not high:
            return f"{{{least},}}"
        if int(high) < int(low):
            raise BrokenRegexError
        return f"{{{least},{min(int(high), _MOST_REPEATS)}}}"

    def _atom(self) -> str:
        if self._source.startswith("{", self._place) and self._times() is not None:
            raise BrokenRegexError
        char = self._taken()
        if char == ".":
            return _ANY if self._dot_all else f"[^{_BREAKS}]"
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char in "*+?" or (self._unicode and char in "{}]"):
            raise BrokenRegexError
        return _literal(ord(char))

    def _group(self) -> str:
        number = None
        if self._next("?"):
            if self._next("<"):
                end = self._source.find(">", self._place)
                self._place = end + 1
                number = self._begun + 1
            elif not self._next(":"):
                if self._source[self._place : self._place + 1] in tuple("ims-"):
                    raise ForeignRegexError("flags of a part, as (?i:…)")
                raise BrokenRegexError
        else:
            number = self._begun + 1
        if number is not None:
            self._begun = number
            self._open.append(number)
        found = "|".join(self._alternatives())
        if not self._next(")"):
            raise BrokenRegexError
        if number is not None:
            self._open.remove(number)
        return f"({found})" if number is not None else f"(?:{found})"

    def _escape(self) -> str:
        char = self._taken()
        if char in _SETS:
            return _SETS[char]
        if char == "k" and (self._unicode or any(self._names)):
            name, closed, _ = self._source[self._place + 1 :].partition(">")
            if not self._next("<") or not closed or not name or name not in self._names:
                raise BrokenRegexError
            self._place += len(name) + 1
            return self._reference(self._names.index(name) + 1)
        if char in "123456789":
            return self._numbered(char)
        return _literal(self._character(char))

    def _numbered(self, first: str) -> str:
        """A reference, or what Annex B makes of a number that no group has."""
        start = self._place - 1
        while self._source[self._place : self._place + 1] in tuple("0123456789"):
            self._place += 1
        number = int(self._source[start : self._place])
        if number <= len(self._names):
            return self._reference(number)
        if self._unicode:
            raise BrokenRegexError
        self._place = start + 1
        return _literal(self._octal(first) if first < "8" else ord(first))

    def _reference(self, number: int) -> str:
        if self._behind:
            raise ForeignRegexError("a reference to a group inside a look behind")
        if number > self._begun or number in self._open:
            return "(?:)"
        return rf"(?({number})\{number}|)"

    def _octal(self, first: str) -> int:
        digits = first
        while len(digits) < 3 and self._source[self._place : self._place + 1] in tuple("01234567"):
            if int(digits + self._source[self._place], 8) > 0o377:
                break
            digits += self._taken()
        return int(digits, 8)

    def _character(self, char: str, *, in_class: bool = False) -> int:
        """The character that an escape writes, `char` being what stands behind the backslash."""
        if char in _CONTROL:
            return ord(_CONTROL[char])
        if char == "0" and self._source[self._place : self._place + 1] not in tuple("0123456789"):
            return 0
        if char == "c":
            return self._control()
        if char in "xu":
            code = self._hexadecimal(char)
            if code is not None:
                return code
        if self._unicode:
            if char in "pP":
                raise ForeignRegexError(r"\p{…}")
            if char not in _SYNTAX and not (in_class and char == "-"):
                raise BrokenRegexError
        elif char in "01234567":
            return self._octal(char)
        return ord(char)

    def _control(self) -> int:
        letter = self._source[self._place : self._place + 1]
        if letter.isascii() and letter.isalpha():
            self._place += 1
            return ord(letter) % 32
        if self._unicode:
            raise BrokenRegexError
        # A backslash, and then a c of its own.
        self._place -= 1
        return ord("\\")

    def _hexadecimal(self, char: str) -> int | None:
        r"""Of `\xHH`, `\uHHHH`, two of these that are one character, and `\u{…}`; `None`: it is the letter itself."""
        if char == "u" and self._unicode and self._next("{"):
            digits, brace, _ = self._source[self._place :].partition("}")
            if not brace or not _is_number(digits, 16) or int(digits, 16) > 0x10FFFF:
                raise BrokenRegexError
            self._place += len(digits) + 1
            return int(digits, 16)
        code = self._digits(2 if char == "x" else 4)
        if code is None or not 0xD800 <= code < 0xE000:
            return code
        if code < 0xDC00 and self._next("\\u"):
            low = self._digits(4)
            if low is not None and 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        raise ForeignRegexError("halves of characters")

    def _digits(self, count: int) -> int | None:
        digits = self._source[self._place : self._place + count]
        if len(digits) < count or not _is_number(digits, 16):
            return None
        self._place += count
        return int(digits, 16)

    def _class(self) -> str:
        negated = self._next("^")
        pieces: list[str] = []
        others: list[str] = []
        while not self._next("]"):
            low = self._member()
            if self._source.startswith("-", self._place) and not self._source.startswith("-]", self._place):
                self._place += 1
                high = self._member()
                if isinstance(low, int) and isinstance(high, int):
                    if high < low:
                        raise BrokenRegexError
                    pieces.append(f"{_literal(low)}-{_literal(high)}")
                    continue
                if self._unicode:
                    raise BrokenRegexError
                members: list[int | str] = [low, ord("-"), high]
            else:
                members = [low]
            for one in members:
                if isinstance(one, int):
                    pieces.append(_literal(one))
                elif one in _IN_CLASS:
                    pieces.append(_IN_CLASS[one])
                else:
                    others.append(_SETS[one])
        return _class_of(pieces, others, negated=negated)

    def _member(self) -> int | str:
        char = self._taken()
        if char != "\\":
            return ord(char)
        char = self._taken()
        if char in _SETS:
            return char
        if char == "b":
            return ord("\b")
        return self._character(char, in_class=True)


def _class_of(pieces: Iterable[str], others: list[str], *, negated: bool) -> str:
    inside = "".join(pieces)
    if not others:
        if not inside:
            return _ANY if negated else _NEVER
        return f"[^{inside}]" if negated else f"[{inside}]"
    either = "|".join([f"[{inside}]", *others] if inside else others)
    return f"(?:(?!{either}){_ANY})" if negated else f"(?:{either})"


def _literal(code: int) -> str:
    char = chr(code)
    return char if char.isalnum() and char.isascii() else f"\\U{code:08x}"


def _is_number(digits: str, base: int = 10) -> bool:
    return digits.isascii() and digits.isalnum() and all(int(one, 36) < base for one in digits)


def _names_of_groups(source: str) -> list[str]:
    """A name for each group that is kept, "" for one without, in their order."""
    names: list[str] = []
    place, in_class = 0, False
    while place < len(source):
        char = source[place]
        if char == "\\":
            place += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "(" and not source.startswith("(?", place):
            names.append("")
        elif source.startswith("(?<", place) and not source.startswith(("(?<=", "(?<!"), place):
            name, closed, _ = source[place + 3 :].partition(">")
            if not closed or not name.replace("$", "_").isidentifier() or name in names:
                raise BrokenRegexError
            names.append(name)
        place += 1
    return names
