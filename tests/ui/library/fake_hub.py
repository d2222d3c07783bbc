"""A hub on this machine: as much of the Hugging Face hub's HTTP interface as fetching a model takes."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_LFS = (".safetensors", ".bin", ".gguf")


@dataclass
class FakeHub:
    """Repositories by name, revisions by name, files by name; and what was asked of it."""

    repositories: dict[str, dict[str, dict[str, bytes]]]
    url: str = ""
    gated: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    """Files of which other bytes are served than the metadata says."""
    break_after: dict[str, int] = field(default_factory=dict)
    """Files of which the connection is cut after so many bytes, once."""
    held: dict[str, threading.Event] = field(default_factory=dict)
    """Files that come when the test lets them, behind their first `stall_after` bytes."""
    stall_after: int = 0
    gated_files: set[str] = field(default_factory=set)
    """Repositories that anybody may look up and not everybody fetch, as on the hub; `gated` ones are wholly shut."""
    lost: set[str] = field(default_factory=set)
    """Files that are named and not there."""
    takes_ranges: bool = True
    pushes: int = 0
    """Each makes other commits of the same names."""
    warning: bytes = b""
    """What the hub has its client tell, as it does before it takes something away."""
    status: int = 200
    file_status: int = 200
    told: Callable[[Any], Any] = lambda listing: listing
    """What is told of a revision is made of what should be."""
    odd: Callable[[BaseHTTPRequestHandler, str], bool] = lambda handler, path: False
    """Answers for itself, and whether it has."""
    sent: int = 0
    """Bytes of bodies of files."""
    fetched: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)

    def commit(self, revision: str) -> str:
        return hashlib.sha1(f"{revision}{self.pushes or ''}".encode()).hexdigest()

    def files(self, repository: str, revision: str) -> dict[str, bytes] | None:
        for name, files in self.repositories[repository].items():
            if revision in (name, self.commit(name)):
                return files
        return None


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        if self.hub.odd(self, path):
            return
        if self.hub.status != 200:
            self._send(self.hub.status, b"{}", body=body)
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|refs)(?:/(.+))?", path):
            self._api(found[1], found[2], found[3] or "main", body=body)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3], body=body)
        else:
            self._send(404, b"{}", body=body)

    def _denied(self, repository: str, revision: str) -> str | None:
        if repository not in self.hub.repositories:
            return "RepoNotFound"
        if repository in self.hub.gated:
            return "GatedRepo"
        return "RevisionNotFound" if self.hub.files(repository, revision) is None else None

    def _api(self, repository: str, what: str, revision: str, *, body: bool) -> None:
        if (code := self._denied(repository, revision)) is not None:
            self._send(403 if code == "GatedRepo" else 404, b"{}", {"X-Error-Code": code}, body=body)
            return
        files = self.hub.files(repository, revision) or {}
        name = next(one for one in self.hub.repositories[repository] if revision in (one, self.hub.commit(one)))
        content: Any
        if what == "refs":
            branches = [
                {"name": one, "ref": f"refs/heads/{one}", "targetCommit": self.hub.commit(one)}
                for one in self.hub.repositories[repository]
            ]
            content = {"branches": branches, "converts": [], "tags": []}
        else:
            siblings = [{"rfilename": file, **_metadata(data, file)} for file, data in files.items()]
            content = self.hub.told({"id": repository, "sha": self.hub.commit(name), "siblings": siblings})
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"}, body=body)

    def _file(self, repository: str, revision: str, file: str, *, body: bool) -> None:
        files = self.hub.files(repository, revision) or {}
        if repository in self.hub.gated_files:
            # As the hub answers who has no token, and who has one without the right to it.
            status = 403 if "Authorization" in self.headers else 401
            self._send(status, b"{}", {"X-Error-Code": "GatedRepo"}, body=body)
            return
        if self.hub.file_status != 200 and body:
            self._send(self.hub.file_status, b"{}", body=body)
            return
        if file not in files or file in self.hub.lost:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)
            return
        data = files[file]
        headers = {
            "X-Repo-Commit": revision,
            "ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        if body:
            self.hub.fetched.append(file)
        if file in self.hub.damaged:
            data = bytes(255 - byte for byte in data)
        status, begin = 200, 0
        if body and self.hub.takes_ranges and (asked := self.headers.get("Range")):
            self.hub.ranges.append(asked)
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
            status = 206
        cut = self.hub.break_after.pop(file, None) if body else None
        held = self.hub.held.get(file) if body else None
        self._send(status, data[begin:], headers, body=body, cut=cut, held=held)

    def _send(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        *,
        body: bool,
        cut: int | None = None,
        held: threading.Event | None = None,
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.hub.warning:
            self.send_header("X-HF-Warning", self.hub.warning.decode("latin-1"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if held is not None:
            begin, data = data[: self.hub.stall_after], data[self.hub.stall_after :]
            self._write(begin)
            held.wait(30)
        if body:
            self._write(data if cut is None else data[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def _write(self, data: bytes) -> None:
        try:
            self.wfile.write(data)
            self.wfile.flush()
            self.hub.sent += len(data)
        except OSError:
            # The program at the other end has gone.
            self.close_connection = True


def _metadata(data: bytes, file: str) -> dict[str, Any]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    known: dict[str, Any] = {"size": len(data), "blobId": blob}
    if file.endswith(_LFS):
        known["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        known["lfs"]["oid"] = known["lfs"]["sha256"]
    return known
