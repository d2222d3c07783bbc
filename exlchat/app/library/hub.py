"""What the Hugging Face hub has of a model, and what can go wrong with asking it, a line each.

Nothing that it, or whatever says to be it, answers is believed unseen. huggingface_hub gives its address, the user's
token and the connection (proxies, offline mode); redirects are followed here, where it can be seen where they lead, and
answers end where they are too large.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, unquote

from exlchat.app.library.pulled import MAIN, display_name
from exlchat.untrusted.json_reader import JsonError, read_json
from exlchat.untrusted.text import one_line

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
    return f"{_endpoint()}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"


def references_url(repository: str) -> str:
    return f"{_endpoint()}/api/models/{repository}/refs"


def file_url(repository: str, commit: str, name: str) -> str:
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


_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w.][\w./-]*))?", re.ASCII)
_REVISION = re.compile(r"[\w.][\w./-]*", re.ASCII)
_SHA1, _SHA256 = re.compile("[0-9a-f]{40}"), re.compile("[0-9a-f]{64}")
_LONGEST_NAME = 150
"""Bytes of a file's name; most file systems take 255, and while it is fetched its hash stands behind it."""
_MOST_FILES = 2000
"""Of a model; the largest have some two hundred."""
# Nothing that runs when it is read: no pickles, no code.
_KINDS = (".safetensors", ".json", ".txt", ".model", ".jinja")
WEIGHTS = ".safetensors"
"""How the names of files with weights end."""
_CONFIG = "config.json"
_NOT_READ = {
    ".gguf": "GGUF, which exlchat does not read",
    ".bin": "pickles, which can run code when read, so exlchat refuses them",
    ".pth": "pickles, which can run code when read, so exlchat refuses them",
    ".onnx": "ONNX, which exlchat does not read",
}
_REVISIONS_SHOWN = 12
_LOG_IN = "then log in here: hf auth login (or set HF_TOKEN)"


class PullError(Exception):
    """A model that cannot be fetched: one line that names it, what is wrong and how to mend it."""


@dataclass(frozen=True, slots=True)
class HubName:
    repository: str
    revision: str = MAIN

    def __str__(self) -> str:
        return display_name(self.repository, self.revision)


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file: `size` in bytes; `digest` is SHA-256 (64 hexadecimal digits), or what git calls a small file (40)."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class HubModel:
    """The files to be fetched, all of one commit."""

    name: HubName
    commit: str
    files: tuple[HubFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def parse_name(text: str) -> HubName:
    """`org/name` or `org/name@revision`. Raises `PullError` for anything else."""
    found = _NAME.fullmatch(text)
    if found is None or ".." in text or "--" in found[1]:
        raise PullError(f"{text[:200]}: no name on Hugging Face; it looks like org/name or org/name@branch")
    return HubName(found[1], found[2] or MAIN)


def look_up(name: HubName, include: Sequence[str] = ()) -> HubModel:
    """Asks the hub what a revision holds.

    Args:
        name: of the model.
        include: patterns, of which a file's name has to match one; no patterns match every name.

    Raises:
        PullError: it is not there, not for this user, not a model that exlchat reads, or the hub cannot be reached.
    """
    with said_in_one_line(name):
        told = json_answer(revision_url(name.repository, name.revision))
        commit, siblings = _listing(told)
        there = [str(one["rfilename"]) for one in siblings]
        files = [_file_of(one) for one in siblings if _wanted(one["rfilename"], include)]
        files = files if include else _once(files)
        if len(files) > _MOST_FILES or len({file.name for file in files}) < len(files):
            raise HubAnswerError(f"the hub names {len(files)} files for it, some perhaps twice; that is no model")
    if not any(file.name.endswith(WEIGHTS) for file in files):
        raise PullError(_without_weights(name, include, there))
    if not include and _CONFIG not in there:
        raise PullError(f"{name}: {_without_config(there)}")
    return HubModel(name, commit, tuple(files))


def _listing(told: Any) -> tuple[str, list[dict[str, Any]]]:
    """The commit, and an object for each file, with a name in each."""
    commit = told.get("sha") if isinstance(told, dict) else None
    siblings = told.get("siblings") if isinstance(told, dict) else None
    if not isinstance(commit, str) or not _SHA1.fullmatch(commit):
        raise HubAnswerError(f"the hub names no commit ({one_line(repr(commit), 60)}); it is not asked further")
    if not isinstance(siblings, list) or not all(
        isinstance(one, dict) and isinstance(one.get("rfilename"), str) for one in siblings
    ):
        raise HubAnswerError("the hub does not list its files; try again later")
    return commit, siblings


def _file_of(told: dict[str, Any]) -> HubFile:
    """What is said of a file. Hashes become names of files here, and sizes are what is fetched at most."""
    name, size, large = told["rfilename"], told.get("size"), told.get("lfs")
    digest = large.get("sha256") if isinstance(large, dict) else told.get("blobId")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise HubAnswerError(f"the hub gives {name} the size {one_line(repr(size), 60)}; nothing is fetched")
    if not isinstance(digest, str) or not (_SHA1 if large is None else _SHA256).fullmatch(digest):
        raise HubAnswerError(f"the hub gives {name} the hash {one_line(repr(digest), 60)}; nothing is fetched")
    return HubFile(name, size, digest)


class _Told(logging.Handler):
    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


def tell_warnings(say: Callable[[str], None]) -> None:
    """Has `say` tell what huggingface_hub writes to standard error by itself: the hub's own words are among it."""
    # Which makes the handler that goes.
    from huggingface_hub.utils import logging as hub_logging

    hub_logging.get_logger().handlers[:] = [_Told(say)]


@contextlib.contextmanager
def said_in_one_line(name: HubName) -> Iterator[None]:
    """Turns what the hub, the network and the disk do into `PullError`."""
    try:
        yield
    except HubAnswerError as error:
        raise PullError(f"{name}: {_hub_line(name, error)}") from error
    except Exception as error:
        line = _network_line(error) or _disk_line(error)
        if line is None:
            raise
        raise PullError(f"{name}: {line}") from error


def _hub_line(name: HubName, error: HubAnswerError) -> str:
    match error.code:
        case "GatedRepo":
            page = f"https://huggingface.co/{name.repository}"
            return f"only for those who accepted its terms: do that at {page}, {_LOG_IN}"
        case "RepoNotFound":
            return f"there is no such model on the hub, or it is private; mend the name, or if it is yours, {_LOG_IN}"
        case "RevisionNotFound":
            return f"has no revision {name.revision}{_others(name)}"
        case "EntryNotFound":
            file = one_line(unquote(error.url.partition("?")[0].rpartition("/")[2]), 100)
            return f"the hub names {file} but does not have it; try again later, or another revision"
    return _status_line(error.status) or str(error)


def _status_line(status: int) -> str | None:
    if status == HTTPStatus.UNAUTHORIZED:
        return "the hub does not take the token that is used here; log in anew: hf auth login (or mend HF_TOKEN)"
    if status == HTTPStatus.FORBIDDEN:
        return "the hub refuses it (403); see that the token used here may read it: hf auth login (or set HF_TOKEN)"
    return None


def _network_line(error: Exception) -> str | None:
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set, so nothing is asked of the hub; unset it"
    # The HTTP client is httpx or httpx2, by the version of huggingface_hub.
    away = isinstance(error, ConnectionError | TimeoutError)
    if not away and not type(error).__module__.startswith("httpx"):
        return None
    return "the hub cannot be reached; see to the network, then the same command goes on"


def _disk_line(error: Exception) -> str | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full; make room, then the same command goes on"
    reason = (error.strerror or str(error) or type(error).__name__).splitlines()[0].lower()
    return f"cannot be written ({reason}); mend that, then the same command goes on"


def _wanted(file: str, include: Sequence[str]) -> bool:
    """Files of the repository's own folder alone: what lies deeper are other models and copies."""
    if "/" in file or "\\" in file or file.startswith(".") or not file.endswith(_KINDS):
        return False
    if not file.isprintable() or len(file.encode()) > _LONGEST_NAME:
        return False
    return not include or any(fnmatch.fnmatchcase(file, pattern) for pattern in include)


def _once(files: Sequence[HubFile]) -> list[HubFile]:
    """Without Mistral's own copy of the weights beside the one that exlchat reads, which are as many bytes again."""
    rest = [file for file in files if not file.name.startswith("consolidated")]
    return rest if any(file.name.endswith(WEIGHTS) for file in rest) else list(files)


def _without_config(there: Sequence[str]) -> str:
    if "adapter_config.json" in there:
        return "this is an adapter (LoRA), not a model; pull its base model, or one with the adapter merged into it"
    if "model_index.json" in there:
        return "this is a diffusion model, which makes pictures; exlchat runs language models"
    return (
        "no config.json is there, so it is no model that exlchat reads; look for it as EXL2, GPTQ, AWQ or safetensors"
    )


def _without_weights(name: HubName, include: Sequence[str], there: Sequence[str]) -> str:
    if include:
        return f"{name}: none of its *.safetensors matches {' or '.join(include)}; give another --include"
    others = _others(name)
    if others:
        return f"{name}: no *.safetensors file is there{others}"
    kinds = (kind for ending, kind in _NOT_READ.items() if any(file.endswith(ending) for file in there))
    only = f", only {kind}" if (kind := next(kinds, None)) else ""
    return f"{name}: no *.safetensors file is there{only}; look for the model as EXL2, GPTQ, AWQ or safetensors"


def _others(name: HubName) -> str:
    """The branches and tags, where sizes of EXL2 models often are; empty where there is only this one."""
    try:
        told = json_answer(references_url(name.repository))
        listed = [one["name"] for kind in ("branches", "tags") for one in told[kind]]
        names = [one for one in listed if _REVISION.fullmatch(one) and one != name.revision]
    except Exception:
        # Said on the way to another error, which matters more.
        return ""
    if not names:
        return ""
    some = ", ".join(names[:_REVISIONS_SHOWN]) + (", ..." if len(names) > _REVISIONS_SHOWN else "")
    return f"; there are {some}: exlchat pull {name.repository}@{names[-1]}"
