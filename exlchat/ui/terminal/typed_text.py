"""Texts given on the command line: as an argument, on standard input, or both."""

from __future__ import annotations

from typing import BinaryIO

_BYTE_ORDER_MARK = "\ufeff"


class PromptInputError(Exception):
    """There is no usable text: one line."""


def read_prompt(argument: str | None, stdin: BinaryIO | None) -> str:
    """The argument, what `stdin` holds, or both with a blank line between them.

    Raises:
        PromptInputError: not UTF-8, or nothing at all.
    """
    parts = []
    if argument:
        parts.append(_checked(argument, "the prompt"))
    if stdin is not None:
        piped = _decoded(stdin).rstrip("\n")
        if piped.strip():
            parts.append(piped)
    if not parts:
        raise PromptInputError("there is no prompt; give it as an argument or on standard input")
    return "\n\n".join(parts)


def read_text(argument: str | None, stdin: BinaryIO | None) -> str:
    """The argument as it is, even an empty one; without it what `stdin` holds, but for one newline at its end.

    That newline is what `echo` and editors put behind a text; the others were meant.

    Raises:
        PromptInputError: not UTF-8, or no argument and nothing on standard input.
    """
    if argument is not None:
        return _checked(argument, "the text")
    piped = "" if stdin is None else _decoded(stdin)
    if not piped:
        # A pipe that broke must not empty a message.
        raise PromptInputError('there is no text on standard input; an empty one is given as an argument: ""')
    return piped.removesuffix("\n")


def _checked(argument: str, what: str) -> str:
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptInputError(f"{what} is not UTF-8 (character {error.start})") from error
    return argument


def _decoded(stdin: BinaryIO) -> str:
    try:
        return stdin.read().decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    except UnicodeDecodeError as error:
        raise PromptInputError(
            f"standard input is not UTF-8 (byte {error.start}); convert it first, for example with iconv"
        ) from error
