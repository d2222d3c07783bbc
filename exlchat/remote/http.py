"""JSON over HTTP/1.1, and streams of events that another thread may end. Whatever the server says is untrusted.

The standard library's client: it starts in 10 ms, and its socket is at hand, which is how a read that waits is ended.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from exlchat import __version__
from exlchat.remote.address import Address, RemoteError
from exlchat.untrusted.text import one_line

CONNECT_SECONDS = 5.0
SILENT_SECONDS = 120.0
"""How long a server may say nothing at all, not even a comment."""
LONGEST_WAIT = 30.0
"""The longest `Retry-After` that is waited for, in seconds."""
TRIES = 3
LARGEST_REPLY = 64_000_000
LONGEST_LINE = 4_000_000
"""Bytes of one event, and of what stands before it: comments and other fields."""
_FORGIVEN_SECONDS = 30.0
"""How long a server at which nobody answered is asked last."""
_OVERTIME = 3
"""So many times the longest silence a whole reply may take: one that comes byte by byte is given up."""
_BUSY = (429, 503)
_ABSENT = (404, 405, 501)
_TOLD = 300


class StatusError(RemoteError):
    """The server refused.

    Args:
        status: of HTTP.
        said: its own words, in one line.
        retry_after: seconds, where it asks to be asked again.
    """

    def __init__(self, address: Address, status: int, said: str, retry_after: float | None = None) -> None:
        self.status = status
        self.said = said
        self.retry_after = retry_after
        super().__init__(f"{address.shown}: {_reason(status, said)}")


def _reason(status: int, said: str) -> str:
    if status in (401, 403):
        return f"refuses without the right key ({status}); give it with --remote-key-file or keep it under the remote"
    if 300 <= status < 400:
        return f"sends us elsewhere ({status} to {said or 'nowhere'}), which is not followed; give that address"
    return f"{said or 'no reason given'} ({status})"


class Http:
    """One server.

    Args:
        key: a bearer token, or "".
    """

    def __init__(self, address: Address, key: str = "") -> None:
        self.address = address
        self._key = key
        self._under_way = 0
        self._lock = threading.Lock()
        self._failed: float | None = None

    @property
    def under_way(self) -> int:
        """Streams of ours that it is answering."""
        return self._under_way

    def count(self, more: int) -> None:
        """One more of them, or one less."""
        with self._lock:
            self._under_way += more

    @property
    def failing(self) -> bool:
        """Whether nobody answered there a moment ago."""
        return self._failed is not None and time.monotonic() - self._failed < _FORGIVEN_SECONDS

    def get(self, path: str, *, seconds: float = SILENT_SECONDS) -> dict[str, Any] | None:
        """The object that is there; `None` where nothing is.

        Raises:
            RemoteError: it cannot be had.
        """
        try:
            return self._whole("GET", path, None, seconds)
        except StatusError as error:
            if error.status in _ABSENT:
                return None
            raise

    def post(self, path: str, body: Mapping[str, Any], *, seconds: float = SILENT_SECONDS) -> dict[str, Any]:
        """Raises `RemoteError`, and of it `StatusError` where the server refuses."""
        return self._whole("POST", path, body, seconds)

    def text(self, path: str, *, seconds: float) -> str:
        """What is there, whatever it is. Raises `RemoteError`."""
        return self._read("GET", path, None, seconds).decode("utf-8", "replace")

    def connect(self, seconds: float) -> http.client.HTTPConnection:
        """Raises `RemoteError`."""
        address = self.address
        kind = http.client.HTTPSConnection if address.scheme == "https" else http.client.HTTPConnection
        connection = kind(address.host, address.port, timeout=CONNECT_SECONDS)
        try:
            connection.connect()
        except (OSError, ssl.SSLError) as error:
            self._failed = time.monotonic()
            raise self.failed(error, "nobody answers there") from None
        self._failed = None
        assert connection.sock is not None
        connection.sock.settimeout(seconds)
        return connection

    def ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        """Raises `StatusError` for any answer but 200, else what sockets and the library raise."""
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": f"exlchat/{__version__}"}
        data = None
        if body is not None:
            data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
            headers["Content-Type"] = "application/json"
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        connection.request(method, f"{self.address.path}{path}", data, headers)
        response = connection.getresponse()
        if response.status != 200:
            moved = response.headers.get("Location", "") if 300 <= response.status < 400 else ""
            said = one_line(moved, _TOLD) or _said(response.read(65_536))
            raise StatusError(self.address, response.status, said, _seconds(response.headers.get("Retry-After")))
        return response

    def failed(self, error: Exception, what: str) -> RemoteError:
        if isinstance(error, TimeoutError):
            return RemoteError(f"{self.address.shown}: {what} (it took too long); see that the server runs")
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return RemoteError(f"{self.address.shown}: {what} ({one_line(str(reason), _TOLD).lower()})")

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
        return self.object_of(self._read(method, path, body, seconds))

    def _read(self, method: str, path: str, body: Mapping[str, Any] | None, seconds: float) -> bytes:
        connection = self.connect(seconds)
        there, late = connection.sock, threading.Event()

        def give_up() -> None:
            late.set()
            _shut(there)

        clock = threading.Timer(_OVERTIME * seconds, give_up)
        clock.daemon = True
        clock.start()
        try:
            response = self.ask(connection, method, path, body)
            data = response.read(LARGEST_REPLY + 1)
            if late.is_set():
                raise TimeoutError
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The library raises a ValueError for a chunk of a length that is none.
            wrong = TimeoutError() if late.is_set() else error
            raise self.failed(wrong, "breaks off") from None
        finally:
            clock.cancel()
            connection.close()
        if len(data) > LARGEST_REPLY:
            raise RemoteError(f"{self.address.shown}: answers {path} with more than {LARGEST_REPLY:,} bytes")
        return data

    def object_of(self, data: bytes) -> dict[str, Any]:
        """Raises `RemoteError` for what is no JSON object, or tells of an error."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise RemoteError(f"{self.address.shown}: answers with what is no JSON: {_start(data)}") from None
        if not isinstance(found, dict):
            raise RemoteError(f"{self.address.shown}: answers with JSON that is no object: {_start(data)}")
        # The second form is of older vLLMs and of FastChat.
        if found.get("error") or found.get("object") == "error":
            raise RemoteError(f"{self.address.shown}: {_message(found) or 'fails without a reason'}")
        return found


class EventStream:
    """The JSON objects of a stream of server-sent events; of a plain JSON reply the one.

    Busy servers are asked again as long as nothing has come. Read by one thread; `cancel` is for any.

    Args:
        choose: the servers that can be asked, the best one first: those behind it are for when nobody answers there,
            or it is busy.
    """

    def __init__(self, choose: Callable[[], Sequence[Http]], path: str, body: Mapping[str, Any]) -> None:
        self._choose = choose
        self._path = path
        self._body = body
        self._ended = threading.Event()
        self._socket: socket.socket | None = None
        self.place = ""
        """The server that answers, once that is known."""

    @property
    def cancelled(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> None:
        """Ends it at once, from any thread; what waits for the server wakes up."""
        self._ended.set()
        if self._socket is not None:
            _shut(self._socket)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Raises `RemoteError`; ends without a word when it was cancelled."""
        servers = deque(self._choose())
        tries = max(TRIES, len(servers))
        for attempt in range(tries):
            wait = 0.0
            try:
                yield from self._events(servers)
                return
            except StatusError as error:
                wait = 1.0 + attempt if error.retry_after is None else error.retry_after
                if error.status not in _BUSY or attempt == tries - 1 or wait > LONGEST_WAIT:
                    raise
            except RemoteError:
                # What was cut by ending it is no lie.
                if self._ended.is_set():
                    return
                raise
            servers.rotate(-1)
            # Another one may have time at once.
            if self._ended.wait(wait if attempt + 1 >= len(servers) else 0.0):
                return

    def _events(self, servers: Sequence[Http]) -> Iterator[dict[str, Any]]:
        if self._ended.is_set():
            return
        server, connection = _first_there(servers)
        self.place = server.address.shown
        # Kept here: the library forgets it once the reply has begun.
        self._socket = connection.sock
        server.count(1)
        try:
            if self._ended.is_set():
                return
            response = server.ask(connection, "POST", self._path, self._body)
            if "json" in response.headers.get("Content-Type", ""):
                yield server.object_of(response.read(LARGEST_REPLY))
                return
            for data in _fields(response, server.address):
                if data.strip() == b"[DONE]":
                    return
                yield server.object_of(data)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
            # Closing a reply that is being read makes the library raise what it likes.
            if self._ended.is_set():
                return
            if isinstance(error, AttributeError):
                raise
            what = f"has said nothing for {SILENT_SECONDS:g} s" if isinstance(error, TimeoutError) else "breaks off"
            raise server.failed(error, what) from None
        finally:
            server.count(-1)
            self._socket = None
            connection.close()


def _shut(there: socket.socket) -> None:
    """Wakes whoever reads from it."""
    # The other side may have been faster.
    with contextlib.suppress(OSError):
        there.shutdown(socket.SHUT_RDWR)


def _first_there(servers: Sequence[Http]) -> tuple[Http, http.client.HTTPConnection]:
    """Raises `RemoteError` where nobody answers at any of them: of the last."""
    *others, last = servers
    for server in others:
        try:
            return server, server.connect(SILENT_SECONDS)
        except RemoteError:
            continue
    return last, last.connect(SILENT_SECONDS)


def _fields(response: http.client.HTTPResponse, address: Address) -> Iterator[bytes]:
    """What stands behind `data:` of each event; comments and other fields are passed over."""
    data: list[bytes] = []
    size = 0
    while line := response.readline(LONGEST_LINE + 1):
        size += len(line)
        if size > LONGEST_LINE:
            raise RemoteError(f"{address.shown}: sends more than {LONGEST_LINE:,} bytes without an event that ends")
        if not line.endswith(b"\n"):
            # It was cut, and whoever reads on is told that it breaks off.
            return
        line = line.rstrip(b"\r\n")
        if not line and data:
            yield b"\n".join(data)
            data, size = [], 0
        elif line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif line and not line.startswith((b":", b"event:", b"id:", b"retry:")):
            raise RemoteError(f"{address.shown}: sends no stream of events: {_start(line)}")
    if data:
        yield b"\n".join(data)


def _said(data: bytes) -> str:
    """What a refusal says, in one line."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return _start(data)
    return _message(found) if isinstance(found, dict) else _start(data)


def _message(found: Mapping[str, Any]) -> str:
    error = found.get("error", found)
    for one in (error, found):
        if isinstance(one, dict):
            for name in ("message", "detail", "error", "type"):
                if isinstance(one.get(name), str):
                    return one_line(one[name], _TOLD)
        elif isinstance(one, str):
            return one_line(one, _TOLD)
    return one_line(json.dumps(found.get("detail", found), ensure_ascii=False), _TOLD)


def _start(data: bytes) -> str:
    return one_line(data[:200].decode("utf-8", "replace"), 80)


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
