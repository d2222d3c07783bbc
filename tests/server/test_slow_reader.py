"""A client that reads slowly has its own answers stand still, and nobody else's; what it gets is what it would have."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from exlchat.llm.port import Engine
from exlchat.server import answering, desk, ticket
from tests.patience import PATIENCE
from tests.server.served import CHAT, Served, read_until, serving, until

WISHED: dict[str, Any] = {"max_tokens": 1_500, "stream": True, "temperature": 1.0, "seed": 3, "ignore_eos": True}


@pytest.fixture
def narrow(endless_engine: Engine) -> Iterator[Served]:
    """A server whose system holds little of what was not read."""
    with serving(endless_engine, name="endless", send_buffer=4_096) as served:
        yield served


def text_of(stream: bytes) -> str:
    # What stands between the lines are lengths of HTTP's pieces.
    lines = [line.removeprefix(b"data: ") for line in stream.split(b"\n") if line.startswith(b"data: {")]
    return "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines)


def slow_connection(served: Served, body: dict[str, Any]) -> socket.socket:
    """One whose reader has next to no room."""
    data = json.dumps(body).encode()
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    found.settimeout(PATIENCE)
    found.connect(("127.0.0.1", served.port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    found.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return found


def resting(served: Served) -> list[ticket.Ticket]:
    return [one for one in served.desk._tickets if one._resting]


def test_a_slow_reader_waits_for_itself_alone(narrow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticket, "MOST_HELD", 32)
    question = {"messages": [{"role": "user", "content": "Go on slowly."}]}
    alone = narrow.ask(CHAT, {**question, **WISHED}).body
    slow = slow_connection(narrow, {**question, **WISHED})
    until(lambda: bool(resting(narrow)))
    (stands,) = resting(narrow)
    held = len(stands._told)
    assert held <= 33
    # The engine has nothing to say to anybody, which is not the same as that it hangs.
    monkeypatch.setattr(desk, "_STILL_SECONDS", 0.0)
    assert narrow.ask("/health").status == 200
    monkeypatch.undo()
    monkeypatch.setattr(ticket, "MOST_HELD", 32)
    # Others are answered meanwhile, and nothing more is made for it.
    for number in range(3):
        other = narrow.ask(CHAT, {"messages": [{"role": "user", "content": f"x {number}"}], "max_tokens": 30})
        assert other.json["usage"]["completion_tokens"] == 30
    assert len(stands._told) == held
    assert text_of(read_until(slow, b"[DONE]")) == text_of(alone)
    slow.close()
    until(lambda: narrow.desk.running == 0)


def test_who_takes_nothing_at_all_is_given_up(narrow: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticket, "MOST_HELD", 16)
    monkeypatch.setattr(answering, "STALLED_SECONDS", 0.3)
    slow = slow_connection(narrow, {"messages": [{"role": "user", "content": "Go on and on."}], **WISHED})
    began = time.monotonic()
    until(lambda: narrow.desk.running == 0)
    assert time.monotonic() - began < PATIENCE
    until(lambda: any("read nothing" in one.trouble for one in narrow.records))
    slow.close()
    assert narrow.ask(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}).status == 200
