"""A server of our own that answers as others do, or as nobody should: facts of their protocols, on a real socket."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Reply = "tuple[int, Mapping[str, str], Iterator[bytes]]"
Route = Callable[[Body], "tuple[int, Mapping[str, str], Iterator[bytes]]"]


@dataclass
class Stub:
    """What it is asked, and what it says: routes by "METHOD path"."""

    routes: dict[str, Route]
    url: str = ""
    asked: list[tuple[str, Body]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client has left in the middle of a reply."""

    def bodies(self, path: str) -> list[Body]:
        return [body for asked, body in self.asked if asked.endswith(f" {path}")]


@contextlib.contextmanager
def serving(routes: Mapping[str, Route]) -> Iterator[Stub]:
    stub = Stub(dict(routes))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def _answer(self, method: str) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            stub.asked.append((f"{method} {self.path}", body))
            stub.headers.append(dict(self.headers))
            route = stub.routes.get(f"{method} {self.path}")
            status, headers, pieces = route(body) if route else (404, {}, iter([b'{"error": "nothing here"}']))
            self.send_response(status)
            for name, value in {"Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.close_connection = True
            try:
                for piece in pieces:
                    self.wfile.write(piece)
                    self.wfile.flush()
            except OSError:
                stub.gone.set()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()


def told(content: object, status: int = 200, **headers: str) -> Route:
    """The same JSON, whatever is asked."""
    data = json.dumps(content).encode()
    return lambda _: (status, {"Content-Type": "application/json", **headers}, iter([data]))


def streamed(*events: object) -> Route:
    """A stream of events: objects as JSON, bytes as they are."""

    def pieces() -> Iterator[bytes]:
        for event in events:
            yield event if isinstance(event, bytes) else f"data: {json.dumps(event)}\n\n".encode()

    return lambda _: (200, {"Content-Type": "text/event-stream"}, pieces())


DONE = b"data: [DONE]\n\n"


def listed(*names: str, owner: str = "somebody", **more: object) -> Route:
    """Of /v1/models."""
    return told(
        {"object": "list", "data": [{"id": name, "object": "model", "owned_by": owner, **more} for name in names]}
    )


def delta(text: str = "", reason: str | None = None, **more: object) -> Body:
    """A chunk of a chat."""
    return {"choices": [{"index": 0, "delta": {"content": text, **more}, "finish_reason": reason}]}


def usage(prompt: int, new: int, cached: int = 0) -> Body:
    details = {"cached_tokens": cached}
    counted = {"prompt_tokens": prompt, "completion_tokens": new, "prompt_tokens_details": details}
    return {"choices": [], "usage": counted}
