"""What an answer has to be, as people give it: a word for the kind, and a text or the file that holds it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from exlchat import paths
from exlchat.chat.presets.control_values import texts_from, texts_to
from exlchat.llm.constraint import LARGEST, Constraint, ConstraintKind
from exlchat.untrusted.files import UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

WORDS: Mapping[str, ConstraintKind] = {
    "schema": "json_schema",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
}
"""What people call them."""
_WORD_OF = {kind: word for word, kind in WORDS.items()}


def constraint_of(word: str, text: str, *, folder: Path | None = None) -> Constraint:
    """A constraint of one of `WORDS`.

    Args:
        text: of a schema the JSON text, of a grammar the grammar, or the file that holds it; of a regex the pattern; of
            a choice the choices, as a list is typed.
        folder: where files are looked for that are not named by a whole path; the present one unless given.

    Raises:
        ValueError: it cannot be, in one line. Whether a model can be held to it is not asked.
    """
    if word == "choice":
        return choice_of(texts_from(word, text))
    text = text.strip() if word != "regex" else text
    if word in ("schema", "grammar") and _is_file(word, text, folder):
        text = _read(word, _place(text, folder))
    if word == "schema":
        _require_json(text)
    return Constraint(WORDS[word], text)


def choice_of(choices: Iterable[str]) -> Constraint:
    """One of these.

    Raises:
        ValueError: none, or one of several lines.
    """
    choices = list(choices)
    if any(len(one.splitlines()) != 1 for one in choices):
        raise ValueError("a choice is empty or has several lines; give each in one line")
    return Constraint("choice", "\n".join(choices))


def typed_constraint(text: str) -> Constraint:
    """As it is typed: the word, and what belongs to it.

    Raises:
        ValueError: it cannot be, in one line.
    """
    word, _, rest = text.strip().partition(" ")
    if word.lower() not in WORDS:
        raise ValueError(
            f"constraint begins with {one_line(word, 30)!r}; it must be off, or {', '.join(WORDS)} and more"
        )
    rest = rest.strip()
    if word.lower() != "choice" and len(rest) > 1 and rest.startswith('"') and rest.endswith('"'):
        try:
            rest = json.loads(rest)
        except json.JSONDecodeError:
            raise ValueError(f"{word} is no text in quotes; a quote or a backslash in it stands behind one") from None
    return constraint_of(word.lower(), rest)


def constraint_word(constraint: Constraint) -> str:
    return _WORD_OF[constraint.kind]


def constraint_words(constraint: Constraint) -> str:
    """In one line as it is typed; `typed_constraint` gives it back."""
    if constraint.kind == "choice":
        return f"choice {texts_to(constraint.choices)}"
    text = constraint.text
    if constraint.kind == "json_schema":
        return f"schema {_flat(text)}"
    return f"{_WORD_OF[constraint.kind]} {json.dumps(text, ensure_ascii=not text.isprintable())}"


def constraint_text(constraint: Constraint) -> str:
    if constraint.kind == "choice":
        return f"choice {texts_to(constraint.choices)}"
    return f"{_WORD_OF[constraint.kind]} {constraint.text}"


def _flat(text: str) -> str:
    try:
        return json.dumps(json.loads(text), ensure_ascii=False)
    except ValueError:
        return json.dumps(text)


def _is_file(word: str, text: str, folder: Path | None) -> bool:
    """JSON begins with a brace; a grammar has colons, and a file of that name is not there."""
    if not text or "\n" in text or len(text) > 1000:
        return False
    if word == "schema":
        return not text.startswith("{") and text not in ("true", "false")
    try:
        return ":" not in text or _place(text, folder).is_file()
    except (OSError, ValueError):
        return False


def _place(text: str, folder: Path | None) -> Path:
    path = paths.expanded(text)
    return path if folder is None else folder / path


def _read(word: str, path: Path) -> str:
    try:
        return read_text(path, largest=4 * LARGEST, kind=word)
    except UntrustedFileError as error:
        raise ValueError(f"{word}: {error}") from None


def _require_json(text: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the schema is no JSON: {one_line(str(error), 100)}; mend it, or name its file") from None
