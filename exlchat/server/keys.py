"""Keys of clients: a file for its owner alone that holds names and hashes, never a key."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exlchat import paths
from exlchat.llm.request import Rank
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file
from exlchat.untrusted.text import one_line, storable

RANKS = ("api", "bulk", "idle")
"""What a client may be given, by its words: nobody goes before the screen."""
_LARGEST_FILE = 10**6
_LONGEST_NAME = 60
_PREFIX = "exl-"


class KeysError(Exception):
    """The file of keys cannot be used; one line that names it and how to mend it."""


@dataclass(frozen=True, slots=True)
class Key:
    """Of one client.

    Args:
        rank: its requests go no sooner than those of this one.
        answers: so many of it at a time; `None` has the bound of the server alone.
    """

    name: str
    sha256: str
    rank: Rank = Rank.API
    answers: int | None = None

    def __str__(self) -> str:
        rank = "" if self.rank is Rank.API else f", rank {self.rank.name.lower()}"
        return f"{self.name}{rank}{'' if self.answers is None else f', at most {self.answers} answers at a time'}"


class Keys:
    """Those in a file, which is read again when it has changed.

    Args:
        path: of the file; there may be none yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._keys: tuple[Key, ...] = ()
        self._seen: tuple[int, int] | None = None

    def all(self) -> tuple[Key, ...]:
        """Raises `KeysError`."""
        seen = self._stamp()
        if seen is None or seen != self._seen:
            self._keys, self._seen = self._read(), seen
        return self._keys

    def find(self, key: str) -> Key | None:
        """Whose it is; `None` where it is nobody's. Raises `KeysError`."""
        given = _hash(key)
        found: Key | None = None
        # All are compared, whichever it is: how long that takes tells nothing.
        for one in self.all():
            if hmac.compare_digest(one.sha256, given):
                found = one
        return found

    def add(self, name: str, *, rank: Rank = Rank.API, answers: int | None = None) -> str:
        """Makes a key, which is told this once. Raises `KeysError`: there is one of this name, or it is no name."""
        name = one_line(storable(name), _LONGEST_NAME)
        if not name:
            raise KeysError("the name of the key is empty; give one, as laptop")
        if any(one.name == name for one in self.all()):
            raise KeysError(f"there is a key {name} already; remove it first, or take another name")
        key = _PREFIX + secrets.token_urlsafe(32)
        self._write((*self.all(), Key(name, _hash(key), rank, answers)))
        return key

    def remove(self, name: str) -> None:
        """Raises `KeysError`: there is none of this name."""
        left = tuple(one for one in self.all() if one.name != name)
        if len(left) == len(self.all()):
            raise KeysError(f"there is no key {one_line(name, _LONGEST_NAME)}; exlchat serve --list-keys names them")
        self._write(left)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size

    def _read(self) -> tuple[Key, ...]:
        try:
            value = read_json_file(self._path, largest=_LARGEST_FILE, kind="file of keys")
        except NoSuchFileError:
            return ()
        except UntrustedFileError as error:
            raise KeysError(str(error)) from None
        entries = value.get("keys") if isinstance(value, dict) else None
        if not isinstance(entries, list) or not all(_is_key(one) for one in entries):
            raise KeysError(
                f"{self._path}: not a file of keys; move it away, and make keys with exlchat serve --add-key"
            )
        return tuple(_key(one) for one in entries)

    def _write(self, keys: tuple[Key, ...]) -> None:
        text = json.dumps({"keys": [_as_json(one) for one in keys]}, indent=2)
        try:
            paths.atomic_write(self._path, text + "\n")
        except paths.FolderError as error:
            raise KeysError(str(error)) from None


def _is_key(value: Any) -> bool:
    if not (isinstance(value, dict) and all(isinstance(value.get(name), str) for name in ("name", "sha256"))):
        return False
    answers = value.get("answers")
    limited = answers is None or (isinstance(answers, int) and not isinstance(answers, bool) and answers > 0)
    return limited and value.get("rank", RANKS[0]) in RANKS


def _key(value: dict[str, Any]) -> Key:
    return Key(value["name"], value["sha256"], Rank[value.get("rank", RANKS[0]).upper()], value.get("answers"))


def _as_json(key: Key) -> dict[str, Any]:
    told: dict[str, Any] = {"name": key.name, "sha256": key.sha256}
    if key.rank is not Rank.API:
        told["rank"] = key.rank.name.lower()
    return told if key.answers is None else {**told, "answers": key.answers}


def _hash(key: str) -> str:
    # A key is 256 random bits, so that nothing slower is needed.
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
