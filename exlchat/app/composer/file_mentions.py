"""Files that are named in a message as `@name` or `@"name with spaces"`: their text goes with it to the model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from exlchat import paths
from exlchat.untrusted.files import UntrustedFileError, read_bytes
from exlchat.untrusted.sanitize import normalize_newlines
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LARGEST_BYTES = 2_000_000
_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|([^\s"]\S*))')
_BEGUN = re.compile(r'(?<!\S)@(?:"([^"\n]*)|([^\s"]\S*)?)$')
_AFTER_A_NAME = ".,;:!?)]}'"


class MentionError(Exception):
    """A file that is named and cannot go with the message: one line."""


@dataclass(frozen=True, slots=True)
class BegunMention:
    """The mention that is being typed: where its `@` stands, and the part of the name that is there."""

    at: int
    name: str


def begun_mention(before: str) -> BegunMention | None:
    """The mention that `before`, the text of the line up to the cursor, ends in."""
    found = _BEGUN.search(before)
    return None if found is None else BegunMention(found.start(), found[1] or found[2] or "")


def mention_of(name: str) -> str:
    return f'@"{name}"' if re.search(r"\s", name) or name[-1:] in _AFTER_A_NAME else f"@{name}"


def named_so_far(name: str) -> str:
    """How a name that was chosen is written: a folder is only the beginning of one, behind a file goes a space."""
    if name.endswith("/"):
        return f'@"{name}' if " " in name else f"@{name}"
    return f"{mention_of(name)} "


def described_file(name: str, folder: Path, count: Callable[[str], int | None]) -> str:
    """A file's tokens in words, or why it cannot go with a message; nothing for what is no file."""
    if not is_file(name, folder):
        return ""
    try:
        tokens = count(read_text(name, folder))
    except MentionError as error:
        return str(error).partition(": ")[2]
    return "" if tokens is None else f"{tokens:,} tokens"


def mentioned_files(text: str, folder: Path) -> list[str]:
    """The names in a message that are of files, each once; those that are not are plain text."""
    return list(dict.fromkeys(_names(text, folder)))


def _names(text: str, folder: Path) -> Iterator[str]:
    for quoted, plain in _MENTION.findall(text):
        name = quoted or plain
        while name and not is_file(name, folder):
            name = name[:-1] if not quoted and name[-1] in _AFTER_A_NAME else ""
        if name:
            yield name


def is_file(name: str, folder: Path) -> bool:
    try:
        return path_of(name, folder).is_file()
    except (OSError, ValueError):
        return False


def path_of(name: str, folder: Path) -> Path:
    return folder / paths.expanded(name)


def read_text(name: str, folder: Path) -> str:
    """The text of a named file, with "\\n" at the ends of its lines.

    Raises:
        MentionError: it cannot be read, has more than 2 MB, or is not text in UTF-8.
    """
    try:
        data = read_bytes(path_of(name, folder), largest=LARGEST_BYTES, kind="text for a message")
        text = data.decode("utf-8-sig")
    except UntrustedFileError as error:
        raise MentionError(str(error)) from None
    except UnicodeDecodeError:
        raise MentionError(f"{one_line(name, 120)}: not text in UTF-8, so a model cannot read it") from None
    if "\0" in text:
        raise MentionError(f"{one_line(name, 120)}: not text, so a model cannot read it")
    return normalize_newlines(text)


def with_files(text: str, folder: Path) -> str:
    """A message with the text of each file that it names below it, but for those that stand there already.

    Raises:
        MentionError: one of them cannot be read.
    """
    for name in mentioned_files(text, folder):
        heading = _heading(name)
        if heading not in text:
            text = f"{text}{_below(heading, name, read_text(name, folder))}"
    return text


def without_files(text: str) -> str:
    """A message as it was typed: without what `with_files` has put below it."""
    if not text.endswith("```"):
        return text
    names = [quoted or plain.rstrip(_AFTER_A_NAME) for quoted, plain in _MENTION.findall(text)]
    places = [text.find(_heading(name)) for name in names]
    return text[: min((place for place in places if place > 0), default=len(text))]


def _heading(name: str) -> str:
    return f"\n\n{one_line(name, 500)}:\n\n```"


def _below(heading: str, name: str, content: str) -> str:
    longest = max((len(run) for run in re.findall(r"^\s*(`{3,})", content, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1 - 3)
    ending = Path(name).suffix[1:]
    language = ending if ending.isalnum() else ""
    last = "" if content.endswith("\n") else "\n"
    return f"{heading}{fence}{language}\n{content}{last}```{fence}"
