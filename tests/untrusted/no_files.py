"""What can lie in a file's place and is none, or is far too large: made under a name that is free."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

HUGE = 3 * 10**9


def fifo(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    # A name relative to the folder, because those of sockets are short.
    here = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(here)


def folder(path: Path) -> None:
    path.mkdir()


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


NOT_PLAIN: dict[str, Callable[[Path], None]] = {
    "fifo": fifo,
    "endless": endless,
    "socket": unix_socket,
    "folder": folder,
}
