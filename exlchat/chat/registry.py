"""Files by name, the user's own before those that come with the program: personas and sampling presets.

The name of a file without its ending is its id, and what is typed for it.
"""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from exlchat import paths
from exlchat.untrusted.text import one_line

_LONGEST_ID = 60
_MOST_NAMED = 300
"""Characters of the list of what there is."""


@dataclass(frozen=True, slots=True)
class RegistryEntry:
    id: str
    path: Path
    shipped: bool


EntryT = TypeVar("EntryT", bound=RegistryEntry)


@dataclass(frozen=True, slots=True)
class Entries(Generic[EntryT]):
    """All of them by id, the user's own first; and a line for each file that cannot be used."""

    entries: tuple[EntryT, ...]
    problems: tuple[str, ...] = ()


class Registry(Generic[EntryT]):
    """The TOML files of one kind.

    Args:
        kind: what one of them is, for people.
        entry: reads one: id, file, whether it comes with the program. Raises `error`.
        error: in one line, also where there is none.
        own, shipped: the two folders; they are asked for when they are needed.
        other_ids: under which other ids what was typed is looked for.
        is_called: whether an entry that has another id is the one that was typed.
    """

    def __init__(
        self,
        kind: str,
        entry: Callable[[str, Path, bool], EntryT],
        error: type[Exception],
        *,
        own: Callable[[], Path],
        shipped: Callable[[], Path],
        other_ids: Callable[[str], Sequence[str]] | None = None,
        is_called: Callable[[EntryT, str], bool] | None = None,
    ) -> None:
        self._kind = kind
        self._entry = entry
        self._error = error
        self._own = own
        self._shipped = shipped
        self._other_ids = other_ids
        self._is_called = is_called

    def all(self, own: Path | None = None, shipped: Path | None = None) -> Entries[EntryT]:
        """What lies in the user's folder, then the shipped ones whose ids are not taken; the folders are the usual."""
        found: dict[str, EntryT] = {}
        problems: list[str] = []
        for folder, is_shipped in self._folders(own, shipped):
            for file in sorted(folder.glob("*.toml")):
                if file.stem in found:
                    continue
                try:
                    found[file.stem] = self._entry(file.stem, file, is_shipped)
                except self._error as error:
                    problems.append(str(error))
        return Entries(tuple(found.values()), tuple(problems))

    def find(self, wanted: str, own: Path | None = None, shipped: Path | None = None) -> EntryT:
        """The one with this id, else the one that is called so; or the one in a `.toml` file.

        Raises:
            Exception: the registry's `error`: there is none, or its file cannot be used.
        """
        if wanted.endswith(".toml"):
            path = paths.expanded(wanted)
            return self._entry(path.stem, path, False)
        for ident in (wanted, *(self._other_ids(wanted) if self._other_ids else ())):
            for folder, is_shipped in self._folders(own, shipped):
                file = folder / f"{ident}.toml"
                # A name with slashes would lead out of the folder.
                if is_id(ident) and file.is_file():
                    return self._entry(ident, file, is_shipped)
        entries = self.all(own, shipped).entries
        called = next((one for one in entries if self._is_called and self._is_called(one, wanted)), None)
        if called is not None:
            return called
        ids = [one.id for one in entries]
        nearest = difflib.get_close_matches(wanted.casefold(), ids, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"there are {one_line(', '.join(ids), _MOST_NAMED)}"
        raise self._error(f"there is no {self._kind} {one_line(wanted, 60)!r}; {hint}")

    def _folders(self, own: Path | None, shipped: Path | None) -> tuple[tuple[Path, bool], ...]:
        return (own or self._own(), False), (shipped or self._shipped(), True)


def is_id(text: str) -> bool:
    """Whether a file can have this name, whatever the system, without leading out of its folder."""
    return (
        bool(text) and len(text) <= _LONGEST_ID and not text.startswith(".") and not re.search(r'[/\\:\0"<>|?*]', text)
    )


def id_for(name: str, otherwise: str) -> str:
    """A file name for what is called `name`: lower-case letters and digits of whatever script, and hyphens.

    Args:
        name: any text.
        otherwise: the file name for a text without letters and digits.
    """
    plain = unicodedata.normalize("NFKC", name).casefold()
    words = re.sub(r"[\W_]+", "-", plain).strip("-")[:_LONGEST_ID].strip("-")
    return words or otherwise
