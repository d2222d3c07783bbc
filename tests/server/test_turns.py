"""Who goes first, and who is told to come again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from exlchat.llm.limits import MOST_ANSWERS
from tests.server.served import CHAT, Served, read_until, until

ENDLESS: dict[str, Any] = {"messages": [{"role": "user", "content": "Go on and on."}]}


@contextlib.contextmanager
def all_rows_taken(served: Served, priority: int) -> Iterator[None]:
    """Inside, as many endless answers run as run side by side."""
    running = [
        served.open(CHAT, {**ENDLESS, "stream": True, "priority": priority, "seed": number})
        for number in range(MOST_ANSWERS)
    ]
    for connection in running:
        read_until(connection, b'"content": "')
    yield
    assert served.desk.running >= MOST_ANSWERS
    for connection in running:
        connection.close()
    until(lambda: served.desk.running == 0)


@pytest.mark.parametrize("there", [1, 2, 10**9])
def test_who_does_not_step_back_goes_before_those_who_do(endless: Served, there: int) -> None:
    with all_rows_taken(endless, there):
        reply = endless.ask(CHAT, {**ENDLESS, "max_tokens": 5})
        assert reply.json["usage"]["completion_tokens"] == 5
        assert reply.headers.get("x-exlchat-ignored") is None


@pytest.mark.parametrize(("there", "comes"), [(0, 1), (1, 2), (1, 1)])
def test_who_steps_back_waits_for_the_others(endless: Served, there: int, comes: int) -> None:
    with all_rows_taken(endless, there):
        waiting = endless.open(CHAT, {**ENDLESS, "max_tokens": 5, "priority": comes})
        until(lambda: endless.desk.waiting == 1)
        # What asks behind it, and goes before all of them, is answered meanwhile.
        if there:
            assert endless.ask(CHAT, {**ENDLESS, "max_tokens": 5}).status == 200
        assert endless.desk.waiting == 1
    read_until(waiting, b'"completion_tokens"')


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("priority", [-1, 1.5, "high", True, [1]])
def test_nobody_goes_before_the_screen(endless: Served, path: str, priority: object) -> None:
    reply = endless.ask(path, {**ENDLESS, "prompt": "Once", "max_tokens": 1, "priority": priority})
    assert (reply.status, reply.json["error"]["param"]) == (400, "priority")
    assert "0 or more" in reply.json["error"]["message"]
