"""Requests to the Hugging Face hub, or to whatever says to be it: nothing that it answers is believed unseen.

huggingface_hub gives its address, the user's token and the connection (proxies, offline mode); redirects are followed
here, where it can be seen where they lead, and answers end where they are too large.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from exlchat.untrusted.json_reader import JsonError, read_json

LARGEST_LISTING = 32_000_000
"""Bytes of an answer in JSON; those about the largest repositories have one million."""

_MOST_REDIRECTS = 8
_AGAIN = "try again later, or see that HF_ENDPOINT is right"


class HubAnswerError(Exception):
    """The hub refuses, or what it answers makes no sense.

    Args:
        clause: what it does, behind the name of a model.
        status: of HTTP, where it refuses; else 0.
        code: its own word for that, as `RepoNotFound`; untrusted.
        url: what was asked for.
    """

    def __init__(self, clause: str, *, status: int = 0, code: str = "", url: str = "") -> None:
        super().__init__(clause)
        self.status, self.code, self.url = status, code, url


def revision_url(repository: str, revision: str) -> str:
    """Where the hub tells what a revision holds, with sizes and hashes."""
    return f"{_endpoint()}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"


def references_url(repository: str) -> str:
    """Where it lists branches and tags."""
    return f"{_endpoint()}/api/models/{repository}/refs"


def file_url(repository: str, commit: str, name: str) -> str:
    """Where a file of a commit lies."""
    return f"{_endpoint()}/{repository}/resolve/{commit}/{quote(name, safe='')}"


def json_answer(url: str) -> Any:
    """The value of JSON at an address.

    Raises:
        HubAnswerError: refused, too large, or no JSON.
        Exception: of the HTTP client: it cannot be reached.
    """
    data = bytearray()
    with answer(url) as response:
        for block in response.iter_bytes():
            data += block
            if len(data) > LARGEST_LISTING:
                raise HubAnswerError(f"the hub answers with more than {LARGEST_LISTING // 10**6} MB; {_AGAIN}")
    try:
        return read_json(bytes(data), most=LARGEST_LISTING)
    except JsonError:
        raise HubAnswerError(f"the hub answers what is no JSON; {_AGAIN}") from None


@contextmanager
def answer(url: str, begin: int = 0) -> Iterator[Any]:
    """The response to a GET, its body not yet read.

    Args:
        url: of the hub.
        begin: bytes of the file that are not wanted; a server that takes no ranges sends them all the same, with 200.

    Raises:
        HubAnswerError: refused, or it sends another part than was asked for.
        Exception: of the HTTP client: it cannot be reached.
    """
    from huggingface_hub import constants, get_session
    from huggingface_hub.utils._headers import build_hf_headers

    # Positions are those of the file itself only where nothing is compressed on the way.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    client = get_session()
    request = client.build_request("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    for _ in range(_MOST_REDIRECTS):
        response = client.send(request, stream=True, follow_redirects=False)
        try:
            if response.next_request is None:
                _check(response, begin)
                yield response
                return
            _check_redirect(str(request.url.scheme), str(response.next_request.url.scheme))
            request = response.next_request
        finally:
            response.close()
    raise HubAnswerError(f"the hub leads on and on ({_MOST_REDIRECTS} redirects); {_AGAIN}")


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _check_redirect(here: str, there: str) -> None:
    """Never from a connection that is encrypted to one that is not."""
    if there not in ("https", here):
        raise HubAnswerError(f"the hub leads from {here} to {there[:20]}, which is not followed; {_AGAIN}")


def _check(response: Any, begin: int) -> None:
    status, headers = response.status_code, response.headers
    part = status == HTTPStatus.PARTIAL_CONTENT
    if part and not (begin and headers.get("Content-Range", "").startswith(f"bytes {begin}-")):
        raise HubAnswerError(f"the hub sends another part of a file than was asked for; {_AGAIN}")
    if part or status == HTTPStatus.OK:
        return
    code = headers.get("X-Error-Code", "")
    if status == HTTPStatus.UNAUTHORIZED and not code and "Authorization" not in response.request.headers:
        # Without a token nobody is told what there is.
        code = "RepoNotFound"
    clause = f"the hub answers {status}; try again later, the same command goes on"
    raise HubAnswerError(clause, status=status, code=code, url=str(response.url))
