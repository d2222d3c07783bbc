"""Clients that leave, and servers that are stopped: what was begun for them ends, and nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import openai
import pytest

from exlchat.llm.events import Event
from exlchat.llm.port import Engine, Failed, Handle
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.server import answering
from tests.patience import PATIENCE
from tests.server.served import CHAT, Served, read_until, serving, until

ENDLESS = {"messages": [{"role": "user", "content": "Go on and on."}]}
LONG_PROMPT = {"messages": [{"role": "user", "content": "all work and no play " * 500}]}


def rests(served: Served, engine: Engine) -> bool:
    """Whether nobody waits, and no page is in use but that of who has just asked."""
    if served.desk.running:
        return False
    served.ask(CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1})
    return engine.cache_report().running == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("body", [ENDLESS, LONG_PROMPT], ids=["answering", "reading"])
def test_an_answer_ends_when_its_client_leaves(
    endless: Served, endless_engine: Engine, body: dict[str, object], stream: bool
) -> None:
    connection = endless.open(CHAT, {**body, "stream": stream})
    until(lambda: endless.desk.running == 1)
    if stream and body is ENDLESS:
        read_until(connection, b'"content": "')
    connection.close()
    until(lambda: rests(endless, endless_engine))


def test_those_who_wait_may_leave_too(endless: Served, endless_engine: Engine) -> None:
    running = [endless.open(CHAT, {**ENDLESS, "stream": True}) for _ in range(8)]
    for connection in running:
        read_until(connection, b'"content": "')
    waiting = [endless.open(CHAT, ENDLESS) for _ in range(4)]
    until(lambda: endless.desk.running == 12)
    for connection in waiting:
        connection.close()
    until(lambda: endless.desk.running == 8)
    # The others go on meanwhile.
    for connection in running:
        read_until(connection, b'"content": "')
        connection.close()
    until(lambda: rests(endless, endless_engine))


def test_one_who_leaves_ends_nobody_elses_answer(endless: Served, endless_engine: Engine) -> None:
    wanted = {**ENDLESS, "max_tokens": 60}
    alone = endless.ask(CHAT, wanted).json["choices"]
    other = endless.open(CHAT, {**ENDLESS, "stream": True})
    read_until(other, b'"content": "')
    found: list[object] = []
    asking = threading.Thread(target=lambda: found.append(endless.ask(CHAT, wanted).json["choices"]))
    asking.start()
    other.close()
    asking.join(PATIENCE)
    assert found == [alone]
    until(lambda: rests(endless, endless_engine))


def test_a_client_that_closes_its_stream(endless: Served, endless_engine: Engine) -> None:
    with openai.OpenAI(base_url=endless.url, api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(model="endless", messages=ENDLESS["messages"], stream=True)
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
    until(lambda: rests(endless, endless_engine))


# Silence and failures


class _Late:
    """An engine whose events come when they are let through."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.let_through = threading.Event()
        self.error: Exception | None = None
        self.fail_first = False

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)

    def submit(self, request: GenerationRequest, sink: Callable[[Event | Failed], None]) -> Handle:
        told = 0

        def late(event: Event | Failed) -> None:
            nonlocal told
            assert self.let_through.wait(PATIENCE)
            told += 1
            if self.error is not None and told > (0 if self.fail_first else 2):
                sink(Failed(self.error))
                self.error = None
            else:
                sink(event)

        return self._engine.submit(request, late)


@pytest.fixture
def late(endless_engine: Engine) -> _Late:
    return _Late(endless_engine)


def test_silence_is_broken_by_comments(late: _Late, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "SILENCE_SECONDS", 0.05)
    with serving(late) as served:  # type: ignore[arg-type]  # it is one but for its types
        connection = served.open(CHAT, {**ENDLESS, "max_tokens": 2, "stream": True})
        head = read_until(connection, b": waiting\n\n")
        assert head.startswith(b"HTTP/1.1 200")
        late.let_through.set()
        read_until(connection, b"[DONE]")
        # A client of the field takes no comment for a word.
        with openai.OpenAI(base_url=served.url, api_key="any", max_retries=0) as client:
            late.let_through.clear()
            threading.Timer(0.3, late.let_through.set).start()
            stream = client.chat.completions.create(model="", messages=ENDLESS["messages"], max_tokens=2, stream=True)
            assert len(list(stream)) >= 2


@pytest.mark.parametrize("first", [True, False], ids=["before the head", "behind it"])
def test_an_engine_that_fails_is_told_of_once(late: _Late, first: bool) -> None:
    late.let_through.set()
    late.fail_first, late.error = first, RuntimeError("broken\nin two lines")
    asked = {"model": "", "messages": ENDLESS["messages"], "max_tokens": 20, "stream": True}
    with serving(late) as served, openai.OpenAI(base_url=served.url, api_key="any") as client:  # type: ignore[arg-type]
        with pytest.raises(openai.APIError, match="broken in two lines") as caught:
            list(client.chat.completions.create(**asked))
        assert isinstance(caught.value, openai.InternalServerError) == first
        # It was not sent again, though the client may try twice more.
        served.noted(1)
        assert len(list(client.chat.completions.create(**asked))) > 2


def test_what_the_engine_refuses_is_the_clients_mistake(late: _Late) -> None:
    late.let_through.set()
    late.fail_first, late.error = True, RequestError("it cannot be")
    with serving(late) as served:  # type: ignore[arg-type]
        reply = served.ask(CHAT, {**ENDLESS, "max_tokens": 3})
        assert (reply.status, reply.json["error"]["message"]) == (400, "it cannot be")


# Stopping


def test_a_server_that_is_stopped_lets_answers_end(endless_engine: Engine) -> None:
    with serving(endless_engine, drain=PATIENCE) as served:
        connection = served.open(CHAT, {**ENDLESS, "max_tokens": 150, "stream": True})
        read_until(connection, b'"content": "')
        kept = served.open("/v1/models", {})
        served.running.stop()
        until(lambda: served.desk.stopping)
        assert b'"finish_reason": "length"' in read_until(connection, b"[DONE]")
        kept.close()


def test_answers_that_take_too_long_are_ended_and_told_why(endless_engine: Engine) -> None:
    with serving(endless_engine, drain=0.0) as served:
        connection = served.open(CHAT, {**ENDLESS, "stream": True})
        read_until(connection, b'"content": "')
        served.running.stop()
        assert b"being stopped" in read_until(connection, b'"error"')
    assert served.desk.running == 0


def test_nothing_new_is_begun_while_a_server_is_being_stopped(endless_engine: Engine) -> None:
    with serving(endless_engine, drain=PATIENCE) as served:
        connection = served.open(CHAT, {**ENDLESS, "stream": True})
        read_until(connection, b'"content": "')
        served.running.stop()
        until(lambda: served.desk.stopping)
        reply = served.ask(CHAT, ENDLESS)
        assert (reply.status, reply.headers["retry-after"]) == (503, "10")
        assert served.ask("/health").status == 503
        assert served.ask("/health/live").status == 200
        connection.close()


def test_the_command_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    environment = {**os.environ, "EXLCHAT_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "exlchat", "serve", "guide", "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as program:
        assert program.stderr is not None
        line = next(line for line in program.stderr if "answers at" in line)
        url = line.split()[-1]
        with openai.OpenAI(base_url=url, api_key="any") as client:
            stream = client.chat.completions.create(
                model="guide", messages=[{"role": "user", "content": "What is EXL2?"}], max_tokens=30, stream=True
            )
            next(iter(stream))
            began = time.monotonic()
            program.send_signal(signal.SIGTERM)
            assert [one.choices[0].finish_reason for one in stream][-1] in ("stop", "length")
        assert program.wait(PATIENCE) == 128 + signal.SIGTERM
        assert time.monotonic() - began < PATIENCE / 2
        said = program.stderr.read()
    assert "EXL2" not in said
    assert "200" in said


def test_others_need_a_key(tmp_path: Path) -> None:
    environment = {**os.environ, "EXLCHAT_HOME": str(tmp_path)}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "exlchat", "serve", *arguments]
        return subprocess.run(command, capture_output=True, env=environment, text=True, timeout=120, check=False)

    refused = run("guide", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1
    assert "--add-key" in refused.stderr
    assert refused.stderr.count("\n") == 1
    made = run("--add-key", "laptop")
    assert (made.returncode, made.stdout.startswith("exl-")) == (0, True)
    assert run("--list-keys").stdout == "laptop\n"
    assert json.loads((tmp_path / "config" / "serve-keys.json").read_text())["keys"][0]["name"] == "laptop"
    assert run("--remove-key", "laptop").returncode == 0
    assert run("--remove-key", "laptop").returncode == 1
