"""A server in this process, on a real socket, and what asks it without any client's kindness."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from exlchat.api.voice import Voice
from exlchat.chat.answer_options import AnswerOptions
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.port import Engine
from exlchat.llm.sampling import GREEDY
from exlchat.server.application import application
from exlchat.server.desk import Desk
from exlchat.server.floor import Floor
from exlchat.server.guard import Rules
from exlchat.server.house import House
from exlchat.server.record import Record
from exlchat.server.running import Address, Running, listen
from tests.patience import PATIENCE

GREEDY_VOICE = Voice(sampling=GREEDY, speech=AnswerOptions(stop_repeating=False))
CHAT = "/v1/chat/completions"


@dataclass
class Answered:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running server; `records` is what it has noted of requests that ended."""

    port: int
    desk: Desk
    running: Running
    records: list[Record] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def noted(self, count: int) -> Record:
        """The newest record of a server of one's own, when there are so many: a reply is sent before it is noted."""
        until(lambda: len(self.records) >= count)
        assert len(self.records) == count
        return self.records[-1]

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, *, method: str | None = None
    ) -> Answered:
        """`body` is sent as it is where it is bytes, else as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {} if data is None else {"content-type": "application/json"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method or ("GET" if data is None else "POST"), path, data, {**sent, **(headers or {})})
            reply = connection.getresponse()
            return Answered(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()

    def open(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> socket.socket:
        """A connection on which the request was sent, and nothing was read."""
        data = json.dumps(body).encode()
        found = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        found.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return found


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "what was waited for has not come"
        time.sleep(0.005)


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    found = b""
    while wanted not in found:
        piece = connection.recv(65_536)
        assert piece, f"the server ended behind {found[-300:]!r}"
        found += piece
    return found


@dataclass
class OneModel:
    """A house with one model in it, which is loaded already."""

    name: str
    voice_: Voice

    def models(self) -> list[str]:
        return [self.name]

    def load(self, model: str, on_progress: Callable[[LoadProgress], None]) -> Engine:
        raise ModelError(f"{model}: nothing is loaded here")

    def variants(self) -> list[str]:
        return []

    def voice(self, model: str, variant: str) -> Voice:
        return self.voice_


@contextmanager
def serving(
    engine: Engine,
    *,
    rules: Rules | None = None,
    voice: Voice = GREEDY_VOICE,
    name: str = "guide",
    drain: float = 5.0,
    house: House | None = None,
    unload_after: float | None = None,
    strict_fields: bool = False,
    send_buffer: int | None = None,
) -> Iterator[Served]:
    """A server for an engine, which is the first model of its house; stopped behind it."""
    bound = listen(Address(port=0))
    if send_buffer is not None:
        # Connections have that of the socket that they come through.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    house = house or OneModel(name, voice)
    floor = Floor(engine, house.models()[0], house.load)
    desk = Desk(house, floor, unload_after=unload_after, strict_fields=strict_fields)
    there = threading.Event()
    served = Served(bound.getsockname()[1], desk, None)  # type: ignore[arg-type]  # it is made of what follows
    app = application(desk, rules or Rules(), served.records.append)
    served.running = Running(app, desk, bound, drain=drain, ready=there.set)
    thread = threading.Thread(target=served.running.run)
    thread.start()
    assert there.wait(PATIENCE)
    try:
        yield served
    finally:
        served.running.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()
