"""Requests as programs send them that are not at hand here, by their own documentation and source."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exlchat.llm.limits import MOST_ANSWERS
from exlchat.llm.port import Engine
from exlchat.server.guard import Rules
from tests.api.test_sampling_fields import SILLYTAVERN
from tests.server.served import CHAT, Served, read_until, serving, until

COMPLETIONS = "/v1/completions"
QUESTION = [{"role": "user", "content": "What is EXL2?"}]
ENDLESS: dict[str, Any] = {"model": "endless", "messages": QUESTION, "stream": True}


def chunks(body: bytes) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in body.decode().split("\n\n") if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


# SillyTavern, text completion of the type TabbyAPI

KEYS = {"x-api-key": "any", "Authorization": "Bearer any"}


def test_sillytavern_connects(guide: Served, guide_engine: Engine) -> None:
    listed = guide.ask("/v1/model/list", headers={**KEYS, "content-type": "application/json"})
    assert [one["id"] for one in listed.json["data"]] == ["guide"]
    assert guide.ask("/v1/model", headers=KEYS).json["id"] == "guide"
    counted = guide.ask("/v1/token/encode", {"text": "Once upon a time"}, KEYS).json
    assert counted["length"] == len(counted["tokens"]) == len(guide_engine.encode("Once upon a time")) + 1


def test_sillytavern_gets_swipes_with_probabilities(guide: Served) -> None:
    body = {**SILLYTAVERN, "model": "guide", "max_new_tokens": 12, "max_tokens": 12, "n": 2, "logprobs": 10}
    found = chunks(guide.ask(COMPLETIONS, body, KEYS).body)
    texts = {index: "".join(one["choices"][0]["text"] for one in found if _of(one, index)) for index in (0, 1)}
    assert all(texts.values())
    places = [one["choices"][0]["logprobs"] for one in found if one["choices"] and one["choices"][0]["logprobs"]]
    assert all(len(one["top_logprobs"][0]) >= 10 and one["tokens"] for one in places)
    assert {one["choices"][0]["finish_reason"] for one in found} <= {None, "stop", "length"}


def _of(chunk: Any, index: int) -> bool:
    return bool(chunk["choices"]) and chunk["choices"][0]["index"] == index


def test_sillytavern_stops_at_every_name_of_a_group(guide: Served) -> None:
    """It sends a text for each that may speak, and all of them twice."""
    names = [f"\nName{number}:" for number in range(60)]
    body = {**SILLYTAVERN, "model": "guide", "max_tokens": 2, "stop": names, "stopping_strings": names}
    assert guide.ask(COMPLETIONS, body, KEYS).status == 200


def test_sillytavern_ends_an_answer_by_closing_its_socket(endless: Served) -> None:
    body = {**SILLYTAVERN, "model": "endless", "max_tokens": 4000, "max_new_tokens": 4000, "banned_strings": []}
    connection = endless.open(COMPLETIONS, body)
    read_until(connection, b'"text": "')
    connection.close()
    until(lambda: endless.desk.running == 0)


# Open WebUI


def test_open_webui_sees_models_and_gets_a_title_while_answers_run(endless: Served) -> None:
    running = [endless.open(CHAT, {**ENDLESS, "n": 1, "seed": number}) for number in range(MOST_ANSWERS - 1)]
    for connection in running:
        read_until(connection, b'"content": "')
    told = {"X-OpenWebUI-User-Name": "me", "X-OpenWebUI-Chat-Id": "1", "Authorization": "Bearer any"}
    assert endless.ask("/v1/models", headers=told).json["data"][0]["id"] == "endless"
    title = {"model": "endless", "messages": QUESTION, "stream": False, "max_completion_tokens": 10}
    assert endless.ask(CHAT, title, told).json["usage"]["completion_tokens"] == 10
    until(lambda: endless.desk.running == len(running))
    for connection in running:
        connection.close()
    until(lambda: endless.desk.running == 0)


def test_open_webui_in_a_container_needs_the_name_of_this_machine(guide: Served, guide_engine: Engine) -> None:
    named = {"Host": "host.docker.internal:8765"}
    refused = guide.ask("/v1/models", headers=named)
    assert refused.status == 403
    assert "--host-name host.docker.internal" in refused.json["error"]["message"]
    with serving(guide_engine, rules=Rules(hosts=("host.docker.internal",))) as served:
        assert served.ask("/v1/models", headers=named).status == 200


def test_open_webui_sends_pictures_as_parts_which_are_refused(guide: Served) -> None:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png,"}}]
    reply = guide.ask(CHAT, {"model": "guide", "messages": [{"role": "user", "content": parts}]})
    assert (reply.status, reply.json["error"]["param"]) == (400, "messages[0].content")


# continue.dev

_STOPS = [f"<|fim_{number}|>" for number in range(12)]
FILL_IN = {
    "model": "endless",
    "prompt": "<fim_prefix>def add(a, b):\n    return <fim_suffix>\n\nprint(add(1, 2))<fim_middle>",
    "max_tokens": 4000,
    "temperature": 0.01,
    "stop": [*_STOPS, "\n\n", "\r\n\r\n", "/src/", "#- coding: utf-8", "```", "\nfunction", "\nclass"],
    "stream": True,
}


def test_continue_gives_up_most_of_what_it_asks(endless: Served) -> None:
    """One request for each key that is pressed, of which the last one is read to its end."""
    headers = {"api-key": "any", "Authorization": "Bearer any"}
    for _ in range(30):
        connection = endless.open(COMPLETIONS, FILL_IN)
        until(lambda: endless.desk.running > 0)
        connection.close()
    last = endless.ask(COMPLETIONS, {**FILL_IN, "max_tokens": 8}, headers)
    assert last.status == 200
    assert chunks(last.body)[-1]["choices"][0]["finish_reason"] == "length"
    until(lambda: endless.desk.running == 0)


@pytest.mark.parametrize(
    ("path", "body", "status", "about"),
    [
        (COMPLETIONS, {"prompt": "def add(", "suffix": "\n"}, 400, "suffix"),
        ("/v1/fim/completions", {"prompt": "def add(", "suffix": "\n"}, 404, "no such path"),
        ("/v1/embeddings", {"input": ["x"]}, 501, "embeddings"),
    ],
)
def test_continue_is_told_what_there_is_not(
    guide: Served, path: str, body: dict[str, Any], status: int, about: str
) -> None:
    reply = guide.ask(path, {"model": "guide", **body})
    assert reply.status == status
    assert about in reply.json["error"]["message"]
