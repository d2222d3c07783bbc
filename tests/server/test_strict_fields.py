"""Fields that mean nothing here: named and left out, or a mistake where the server is strict."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from exlchat.llm.port import Engine
from tests.patience import PATIENCE
from tests.server.served import CHAT, Served, serving

ASKED: Any = [{"role": "user", "content": "What is EXL2?"}]
BODIES = [
    (CHAT, {"messages": ASKED, "max_tokens": 1}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 1}),
    ("/tokenize", {"content": "Once"}),
    ("/detokenize", {"tokens": [1]}),
    ("/v1/token/encode", {"text": "Once"}),
    ("/apply-template", {"messages": ASKED}),
]
WITHIN = {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": False}}


@pytest.fixture(scope="module")
def strict(guide_engine: Engine) -> Iterator[Served]:
    with serving(guide_engine, strict_fields=True) as found:
        yield found


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_they_are_named_and_left_out(guide: Served, path: str, body: dict[str, Any]) -> None:
    reply = guide.ask(path, {**body, "zeta": 1, "be_clever": True, "nothing": None})
    assert reply.status == 200, reply.body
    assert reply.headers["x-exlchat-ignored"] == "be_clever, zeta"
    assert "x-exlchat-ignored" not in guide.ask(path, body).headers


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_they_are_a_mistake_where_that_is_wanted(strict: Served, path: str, body: dict[str, Any]) -> None:
    assert strict.ask(path, {**body, "nothing": None}).status == 200
    reply = strict.ask(path, {**body, "zeta": 1, "be_clever": True})
    error = reply.json["error"]
    assert (reply.status, error["type"], error["param"]) == (400, "invalid_request_error", "be_clever")
    assert error["message"].startswith("be_clever, zeta mean nothing here; ")
    assert "--strict-fields" in error["message"]


def test_also_within_objects_that_are_read(guide: Served, strict: Served) -> None:
    body = {"messages": ASKED, "max_tokens": 1, **WITHIN}
    assert guide.ask(CHAT, body).headers["x-exlchat-ignored"] == "stream_options.include_obfuscation"
    reply = strict.ask(CHAT, body)
    assert (reply.status, reply.json["error"]["param"]) == (400, "stream_options.include_obfuscation")


def test_a_schema_may_say_what_it_likes(strict: Served) -> None:
    """Nor is anything of messages and tools looked at, which clients send back as they got them."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "additionalProperties": False,
        "$comment": "x",
    }
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "description": "b", "strict": True, "schema": schema}}
    said = {"role": "assistant", "content": "Hi", "refusal": None, "annotations": [], "reasoning_content": "x"}
    asked = [ASKED[0], said, ASKED[0]]
    body = {"messages": asked, "response_format": wanted, "max_tokens": 20, "chat_template_kwargs": {"any": 1}}
    assert strict.ask(CHAT, body).status == 200


def test_the_command_can_be_strict(tmp_path: Path) -> None:
    environment = {**os.environ, "EXLCHAT_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "exlchat", "serve", "guide", "--port", "0", "--device", "cpu", "--strict-fields"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, text=True) as program:
        assert program.stderr is not None
        url = next(line for line in program.stderr if "answers at" in line).split()[-1]
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
            create = client.chat.completions.create
            assert create(model="guide", messages=ASKED, max_tokens=1).usage is not None
            with pytest.raises(openai.BadRequestError, match="store means nothing here"):
                create(model="guide", messages=ASKED, max_tokens=1, store=True)
        program.send_signal(signal.SIGTERM)
        assert program.wait(PATIENCE) == 128 + signal.SIGTERM
