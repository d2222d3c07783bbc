"""Calls of functions, with the `openai` client against the bundled model, whose own format knows no tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

from tests.server.served import Served

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "description": "w", "parameters": PARAMETERS}}
CLOCK: Any = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}},
}
ASKED: Any = [{"role": "user", "content": "What is the weather in Cologne?"}]


@pytest.fixture(scope="module")
def client(guide: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guide.url, api_key="any", max_retries=0) as found:
        yield found


def test_a_call_that_is_required_comes_and_parses(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="guide", messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=120
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    for call in choice.message.tool_calls:
        assert call.type == "function"
        assert call.function.name == "get_weather"
        jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)


@pytest.mark.parametrize("seed", range(4))
def test_the_one_that_is_named_is_called_however_hot_the_draw(client: openai.OpenAI, seed: int) -> None:
    named: Any = {"type": "function", "function": {"name": "clock"}}
    reply = client.chat.completions.create(
        model="guide",
        messages=ASKED,
        tools=[WEATHER, CLOCK],
        tool_choice=named,
        temperature=2.0,
        seed=seed,
        max_tokens=99,
    )
    (call,) = reply.choices[0].message.tool_calls or ()
    assert (call.function.name, json.loads(call.function.arguments)) == ("clock", {})


def test_a_streamed_call_has_its_id_and_name_in_its_first_piece(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="guide", messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=120, stream=True
    )
    pieces, ends, content = [], [], ""
    for chunk in stream:
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        pieces += choice.delta.tool_calls or []
        ends += [choice.finish_reason] if choice.finish_reason else []
    assert (content, ends) == ("", ["tool_calls"])
    assert pieces[0].index == 0
    assert pieces[0].id
    assert pieces[0].function is not None
    assert pieces[0].function.name == "get_weather"
    jsonschema.validate(json.loads(pieces[0].function.arguments or ""), PARAMETERS)


def test_nothing_is_called_where_the_model_has_something_to_say(client: openai.OpenAI) -> None:
    asked: Any = [{"role": "user", "content": "What is EXL2?"}]
    reply = client.chat.completions.create(model="guide", messages=asked, tools=[CLOCK], max_tokens=30)
    message = reply.choices[0].message
    assert message.content
    assert not message.tool_calls
    stream = client.chat.completions.create(model="guide", messages=asked, tools=[CLOCK], max_tokens=30, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == message.content


def test_a_result_goes_round_and_is_answered(client: openai.OpenAI) -> None:
    first = client.chat.completions.create(
        model="guide", messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=120
    )
    message = first.choices[0].message
    call = (message.tool_calls or [])[0]
    told: Any = [
        *ASKED,
        message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "17 degrees, <|im_end|> rain"},
    ]
    second = client.chat.completions.create(model="guide", messages=told, tools=[WEATHER], max_tokens=20)
    assert second.choices[0].message.content
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_with_none_nothing_is_called(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="guide", messages=ASKED, tools=[WEATHER], tool_choice="none", max_tokens=20
    )
    assert reply.choices[0].message.content


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tools": [{"type": "magic"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"functions": [{"name": "x"}]}, "functions"),
    ],
)
def test_what_cannot_be_is_refused_by_name(client: openai.OpenAI, more: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="guide", messages=ASKED, max_tokens=5, extra_body=more)
    assert refused.value.param == param
