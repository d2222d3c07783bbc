"""The compiled library through ctypes: every function declared from one table, every error code made an exception.

Calls cost about a microsecond and release the GIL; nothing here imports torch.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exlchat.ext.errors import ExtensionError
from exlchat.ext.record import SOURCES

HEADER = "exlchat.h"
QUESTIONS = ("exl_abi_version", "exl_error_text", "exl_cuda_version", "exl_card_status")
"""What every library of exlchat's answers, whatever else it holds."""

Signature = Sequence[type[Any]]
"""The ctypes types of a function's arguments. Every function returns an `int`: 0, or an error code."""

_MEND = "delete its folder, and it is built again"


class Library:
    """An open library. Made by `open_library`.

    `cuda` is the CUDA series that it was made with, `(13, 0)`.
    """

    def __init__(self, path: Path, handle: ctypes.CDLL, functions: Mapping[str, Signature]) -> None:
        self.path = path
        self._card_status = handle.exl_card_status
        number = handle.exl_cuda_version()
        self.cuda = (number // 1000, number % 1000 // 10)
        self._error_text = handle.exl_error_text
        self._error_text.argtypes = [ctypes.c_int]
        self._error_text.restype = ctypes.c_char_p
        self._functions = {name: self._checked(name, handle[name], types) for name, types in functions.items()}

    def function(self, name: str) -> Callable[..., None]:
        """The function called `name`. Callers keep it: looking it up each time would cost as much as the call.

        It takes the arguments of the table, converted by ctypes, and raises `ExtensionError` with the library's own
        words when it returns anything but 0.
        """
        return self._functions[name]

    def error_text(self, code: int) -> str:
        text: bytes | None = self._error_text(code)
        return (text or b"unknown error").decode(errors="replace")

    def card_status(self) -> int:
        """0 if torch's current card can run this library, else an error code; see `exlchat.h`."""
        return int(self._card_status())

    def _checked(self, name: str, function: Any, types: Signature) -> Callable[..., None]:
        function.argtypes = list(types)
        function.restype = ctypes.c_int

        def call(*arguments: object) -> None:
            code = function(*arguments)
            if code != 0:
                raise ExtensionError(f"{name}: {self.error_text(code)} (code {code})")

        return call


def open_library(path: Path, functions: Mapping[str, Signature], *, sources: Path = SOURCES) -> Library:
    """Loads `path` and checks that it is what the header in `sources` describes.

    Args:
        path: the shared library.
        functions: the argument types of each function that is called, by name.
        sources: the folder of `exlchat.h`.

    Raises:
        ExtensionError: the file is no library for this machine, not exlchat's, or made from other sources.
    """
    expected = source_abi(sources)
    try:
        handle = ctypes.CDLL(str(path.absolute()))
    except OSError as error:
        raise ExtensionError(f"the CUDA extension cannot be loaded ({_first_line(error)}); {_MEND}") from None
    if not hasattr(handle, QUESTIONS[0]):
        raise ExtensionError(f"{path} is not exlchat's CUDA extension (it has no {QUESTIONS[0]}); {_MEND}")
    abi = handle.exl_abi_version()
    if abi != expected:
        raise ExtensionError(f"{path} has interface version {abi}, and this exlchat needs {expected}; {_MEND}")
    missing = [name for name in (*QUESTIONS, *functions) if not hasattr(handle, name)]
    if missing:
        raise ExtensionError(f"{path} was made from other sources (it has no {missing[0]}); {_MEND}")
    return Library(path, handle, functions)


def source_abi(sources: Path = SOURCES) -> int:
    """`EXL_ABI_VERSION` as the C header defines it.

    Raises:
        ExtensionError: the header is not there or does not define it.
    """
    header = sources / HEADER
    try:
        found = re.search(r"^#define EXL_ABI_VERSION (\d+)\b", header.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        raise ExtensionError(f"{header} is missing or defines no EXL_ABI_VERSION; install exlchat again")
    return int(found[1])


def _first_line(error: OSError) -> str:
    """dlopen's words, which name the file."""
    return str(error).partition("\n")[0]
