"""Servers by name: `remotes.toml` in the config folder, read and written. Keys are not in it, only where they are."""

from __future__ import annotations

import contextlib
import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.remote.address import LEVELS, MOST_ADDRESSES, Address, Level, Remote, RemoteError
from exlchat.remote.keys import check_key, check_where, read_key
from exlchat.untrusted.files import NoSuchFileError, UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

if TYPE_CHECKING:
    from pathlib import Path

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}")
_LARGEST = 100_000


@dataclass(frozen=True, slots=True)
class NamedRemote:
    """A server as the file has it.

    Args:
        urls: of one server, or of several that have the same model.
        key: where its key is, as `remote.keys` takes it; "" where it needs none.
        context: tokens, where the server does not say it.
    """

    name: str
    urls: tuple[str, ...]
    model: str = ""
    key: str = ""
    level: Level | None = None
    context: int | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise RemoteError(
                f"{one_line(self.name, 60)!r} is no name of a server; take letters, digits, - and _, at most 40"
            )
        if not 1 <= len(self.urls) <= MOST_ADDRESSES:
            raise RemoteError(f"{self.name} has {len(self.urls)} addresses; there can be 1 to {MOST_ADDRESSES}")
        for url in self.urls:
            Address.parse(url)
        if self.key:
            check_where(self.key)
        if self.level is not None and self.level not in LEVELS:
            raise RemoteError(f"the level of {self.name} is {one_line(str(self.level), 40)}; it is {', '.join(LEVELS)}")
        if self.context is not None and (type(self.context) is not int or self.context < 1):
            raise RemoteError(f"the context of {self.name} must be a whole number, 1 or more")


_TEXTS = ("model", "key", "level")


def file() -> Path:
    return paths.folders().config / "remotes.toml"


def named_remotes() -> dict[str, NamedRemote]:
    """All by name. Raises `RemoteError` for a file that cannot be used."""
    try:
        content = tomllib.loads(read_text(file(), largest=_LARGEST, kind="list of servers"))
    except NoSuchFileError:
        return {}
    except UntrustedFileError as error:
        raise RemoteError(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise RemoteError(f"{file()}: not TOML: {one_line(str(error), 200)}; mend that line") from None
    return {name: _of(name, table) for name, table in content.items()}


def _of(name: str, table: object) -> NamedRemote:
    shown = one_line(name, 40)
    url = table.get("url") if isinstance(table, Mapping) else None
    urls: list[Any] = url if isinstance(url, list) else [url]
    if not isinstance(table, Mapping) or not all(isinstance(one, str) for one in urls):
        raise RemoteError(f'{file()}: [{shown}] needs a url, as url = "http://127.0.0.1:8080", or a list of them')
    if unknown := sorted(set(table) - {"url", "context", *_TEXTS}):
        raise RemoteError(f"{file()}: [{shown}] has an unknown key {one_line(unknown[0], 40)}")
    for key in _TEXTS:
        if not isinstance(table.get(key, ""), str):
            raise RemoteError(f"{file()}: {key} of [{shown}] must be a text")
    rest = {key: value for key, value in table.items() if key != "url"}
    try:
        return NamedRemote(name, tuple(urls), **rest)
    except RemoteError as error:
        raise RemoteError(f"{file()}: {error}") from None


def keep(remote: NamedRemote) -> None:
    """Writes it, in the place of one of that name. Raises `RemoteError`."""
    url = remote.urls[0] if len(remote.urls) == 1 else list(remote.urls)
    values = {"url": url, **{key: getattr(remote, key) for key in (*_TEXTS, "context")}}
    _write(remote.name, {key: value for key, value in values.items() if value})


def keep_key(name: str, key: str) -> Path:
    """Writes the key of a server into a file that its owner alone reads, and says in the list that it is there.

    Raises:
        RemoteError: there is no such server, the key is none, or it cannot be written.
    """
    remote = named(name)
    check_key(key, "what was given")
    target = _key_file(name)
    try:
        # Whoever could read the old file could read the new one.
        target.unlink(missing_ok=True)
        paths.atomic_write(target, f"{key}\n")
    except OSError as error:
        raise RemoteError(f"{target}: cannot be replaced ({one_line(str(error), 100)})") from None
    except paths.FolderError as error:
        raise RemoteError(str(error)) from None
    keep(replace(remote, key=f"file:{target}"))
    return target


def drop(name: str) -> None:
    """Takes it out of the list, and away the key that was written here. Raises `RemoteError` where there is none."""
    named(name)
    _write(name, None)
    with contextlib.suppress(OSError):
        _key_file(name).unlink(missing_ok=True)


def _key_file(name: str) -> Path:
    return paths.folders().config / "remote-keys" / name


def _write(name: str, values: Mapping[str, Any] | None) -> None:
    import tomlkit

    # Raises before anything is overwritten.
    named_remotes()
    try:
        text = read_text(file(), largest=_LARGEST, kind="list of servers") if file().exists() else ""
        document = tomlkit.parse(text)
        document.pop(name, None)
        if values is not None:
            document[name] = dict(values)
        paths.ensure_folder(file().parent)
        paths.atomic_write(file(), tomlkit.dumps(document))
    except (UntrustedFileError, paths.FolderError) as error:
        raise RemoteError(str(error)) from None


def named(name: str) -> NamedRemote:
    """Raises `RemoteError` where there is none."""
    found = named_remotes()
    if name not in found:
        near = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(found) or 'none'}"
        raise RemoteError(
            f"there is no server called {one_line(name, 60)}; {hint}; or give its address: http://HOST:PORT"
        )
    return found[name]


def remote_called(
    wanted: str,
    *,
    model: str | None = None,
    key: str | None = None,
    level: Level | None = None,
    context: int | None = None,
    template: bool = False,
) -> Remote:
    """The server that a name or an address means, with what was typed in the place of what is kept.

    Raises:
        RemoteError: there is none of that name, the address is none, or the key cannot be had.
    """
    known = named_remotes()
    if wanted in known or not any(mark in wanted for mark in "/:."):
        kept = known.get(wanted) or (NamedRemote(wanted, (wanted,)) if wanted == "localhost" else named(wanted))
    else:
        kept = None
    address, *others = [Address.parse(url) for url in (kept.urls if kept else (wanted,))]
    name = kept.name if kept else address.place
    where = key or (kept.key if kept else "")
    return Remote(
        name,
        address,
        model or (kept.model if kept else ""),
        read_key(where, name) if where else "",
        level or (kept.level if kept else None),
        template,
        context or (kept.context if kept else None),
        tuple(others),
    )
