"""One large file from the hub, taken up where an earlier try ended, even one of another run of the program.

huggingface_hub 2.4 goes on after a cut within one run alone: what a killed program had fetched it begins anew.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from pathlib import Path

_TRIES = 5
_PAUSE_SECONDS = 1.0
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)


class StoppedError(Exception):
    """Another file's transfer has failed, so that this one is not needed now."""


def transfer(url: str, part: Path, size: int | None, given_up: threading.Event) -> None:
    """Fetches what is missing of a file.

    Args:
        url: of the file on the hub, of one commit.
        part: what is there of it; made if it is not there, and whole afterwards.
        size: in bytes; `None` where the hub does not say.
        given_up: once it is set, nothing more is fetched.

    Raises:
        StoppedError: `given_up` was set.
        Exception: of huggingface_hub, its HTTP client or the disk; `part` then keeps what has come.
    """
    fruitless = 0
    while (begin := size_on_disk(part)) != size:
        if size is not None and begin > size:
            part.unlink()
            begin = 0
        try:
            _receive(url, part, begin, given_up)
            if size is None or size_on_disk(part) >= size:
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


def _receive(url: str, part: Path, begin: int, given_up: threading.Event) -> None:
    from huggingface_hub import constants, get_session, hf_raise_for_status
    from huggingface_hub.utils._headers import build_hf_headers

    # Positions are those of the file itself only where nothing is compressed on the way.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
        hf_raise_for_status(response)
        # A server that takes no ranges sends everything.
        resumed = response.status_code == HTTPStatus.PARTIAL_CONTENT
        with part.open("ab" if resumed else "wb") as stream:
            for block in response.iter_bytes():
                stream.write(block)
                if given_up.is_set():
                    raise StoppedError


def _passes(error: Exception) -> bool:
    """Whether it may be another time."""
    from huggingface_hub.errors import HfHubHTTPError

    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        return status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR
    # The HTTP client is httpx or httpx2, by the version of huggingface_hub.
    return isinstance(error, ConnectionError | TimeoutError) or type(error).__module__.startswith("httpx")
