"""One file from the hub, taken up where an earlier try ended, even one of another run of the program."""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path

from exlchat.app.library.hub_requests import HubAnswerError, answer

_TRIES = 5
_PAUSE_SECONDS = 1.0
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class StoppedError(Exception):
    """Another file's transfer has failed, so that this one is not needed now."""


def transfer(url: str, part: Path, size: int, given_up: threading.Event) -> None:
    """Fetches what is missing of a file.

    Args:
        url: of the file on the hub, of one commit.
        part: what is there of it; made if it is not there, and whole afterwards.
        size: in bytes, of which no more are taken.
        given_up: once it is set, nothing more is fetched.

    Raises:
        StoppedError: `given_up` was set.
        HubAnswerError: the hub refuses, or sends something else.
        Exception: of its HTTP client or the disk; `part` then keeps what has come.
    """
    fruitless = 0
    part.touch()
    while (begin := size_on_disk(part)) != size:
        if begin > size:
            part.unlink()
            begin = 0
        try:
            _receive(url, part, begin, size, given_up)
            if size_on_disk(part) == size:
                return
            raise ConnectionError("the connection was cut")
        except Exception as error:
            fruitless = 0 if size_on_disk(part) > begin else fruitless + 1
            if fruitless == _TRIES or not _passes(error):
                raise
        given_up.wait(_PAUSE_SECONDS)


def size_on_disk(path: Path) -> int:
    """In bytes; 0 for what is not there."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _receive(url: str, part: Path, begin: int, size: int, given_up: threading.Event) -> None:
    with answer(url, begin) as response:
        # A server that takes no ranges sends everything.
        resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        left = size - begin if resumed else size
        with part.open("ab" if resumed else "wb") as stream:
            for block in response.iter_bytes():
                left -= len(block)
                if left < 0:
                    part.unlink()
                    raise HubAnswerError(f"the hub sends more than the {size:,} bytes that it says a file has")
                stream.write(block)
                if given_up.is_set():
                    raise StoppedError


def _passes(error: Exception) -> bool:
    """Whether it may be another time."""
    if isinstance(error, HubAnswerError):
        return error.status in _PASSING or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    # The HTTP client is httpx or httpx2, by the version of huggingface_hub.
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith("httpx")
