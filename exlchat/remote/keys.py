"""Where the key of a server is kept: the environment, a file that only its owner reads, or the system's keyring."""

from __future__ import annotations

import os
import stat

from exlchat.paths import expanded
from exlchat.remote.address import RemoteError
from exlchat.untrusted.files import UntrustedFileError, read_text
from exlchat.untrusted.text import one_line

HOW = "env:NAME, file:PATH or keyring"
_LARGEST = 10_000
_SERVICE = "exlchat"


def check_where(where: str) -> str:
    """Itself. Raises `RemoteError` for what is no place of a key; a key that was typed in its place is not shown."""
    kind, _, rest = where.partition(":")
    if not ((kind in ("env", "file") and rest) or where == "keyring"):
        raise RemoteError(f"the place of a key must be {HOW}; the key itself is not typed, where others would see it")
    return where


def read_key(where: str, name: str) -> str:
    """The key of the server `name`. Raises `RemoteError` in one line that does not show it."""
    kind, _, rest = check_where(where).partition(":")
    found = {"env": _from_environment, "file": _from_file}.get(kind, _from_keyring)(rest or name)
    key = found.strip()
    check_key(key, one_line(where, 200))
    return key


def check_key(key: str, what: str) -> None:
    """Raises `RemoteError`, in a line that does not show it, for what cannot be one; `what` names where it is from."""
    if not key or not key.isascii() or any(not character.isprintable() for character in key):
        raise RemoteError(f"{what}: holds no key, which is a line of plain letters and digits")


def _from_environment(variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        raise RemoteError(f"the environment has no {one_line(variable, 60)}, which should hold the key; set it")
    return found


def _from_file(path: str) -> str:
    file = expanded(path)
    try:
        mode = file.stat().st_mode
        if stat.S_ISREG(mode) and mode & 0o077:
            raise RemoteError(f"{one_line(path, 200)}: others can read this key; chmod 600 {one_line(path, 200)}")
        return read_text(file, largest=_LARGEST, kind="key")
    except UntrustedFileError as error:
        raise RemoteError(str(error)) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise RemoteError(f"{one_line(path, 200)}: cannot be read ({one_line(str(error), 100)})") from None


def _from_keyring(name: str) -> str:
    try:
        import keyring
    except ImportError:
        raise RemoteError("there is no keyring here; pip install keyring, or keep the key in file:PATH") from None
    try:
        found = keyring.get_password(_SERVICE, name)
    except Exception as error:
        # Its backends raise what they like.
        raise RemoteError(f"the keyring gives nothing ({one_line(str(error), 100)}); use file:PATH") from None
    if not found:
        shown = one_line(name, 60)
        raise RemoteError(f"the keyring has no key for {shown}: keyring set {_SERVICE} {shown}")
    return str(found)
