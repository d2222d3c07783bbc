"""The `openai` client against the bundled model: what it reads is what the engine says, and its errors are its own."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from exlchat.chat.prompt_format import choose_format
from exlchat.llm.events import Finished
from exlchat.llm.port import Engine
from exlchat.llm.request import GenerationRequest
from tests.server.served import CHAT, Served, until

QUESTION = [{"role": "user", "content": "What is EXL2?"}]


@pytest.fixture(scope="module")
def client(guide: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guide.url, api_key="any", max_retries=0) as found:
        yield found


def prompt_ids(engine: Engine, messages: list[dict[str, str]]) -> list[int]:
    """By the template alone, without what the server does about replies and special tokens."""
    info = engine.info
    form, _ = choose_format(info, None)
    return engine.encode(form.render(messages, bos_token=info.bos_token, eos_token=info.eos_token))


def said_by(engine: Engine, messages: list[dict[str, str]], most: int) -> Finished:
    request = GenerationRequest(prompt_ids(engine, messages), max_new_tokens=most)
    *_, last = engine.generate(request)
    assert isinstance(last, Finished)
    return last


def test_an_answer_is_the_engines(client: openai.OpenAI, guide_engine: Engine) -> None:
    expected = said_by(guide_engine, QUESTION, 24)
    reply = client.chat.completions.create(model="guide", messages=QUESTION, max_tokens=24)
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.text
    assert choice.finish_reason == "length"
    assert (reply.object, reply.model) == ("chat.completion", "guide")
    assert reply.usage is not None
    asked = len(prompt_ids(guide_engine, QUESTION))
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (asked, 24)
    assert reply.usage.total_tokens == asked + 24


def test_a_stream_is_the_same_in_pieces(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="guide", messages=QUESTION, max_completion_tokens=24)
    chunks = list(
        client.chat.completions.create(
            model="guide", messages=QUESTION, max_tokens=24, stream=True, stream_options={"include_usage": True}
        )
    )
    assert len({(one.id, one.created, one.model, one.system_fingerprint) for one in chunks}) == 1
    first, *middle, ending, counts = chunks
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert "".join(one.choices[0].delta.content or "" for one in middle) == whole.choices[0].message.content
    assert {one.choices[0].finish_reason for one in (first, *middle)} == {None}
    assert ending.choices[0].finish_reason == "length"
    assert ending.choices[0].delta.content is None
    assert counts.choices == []
    assert counts.usage is not None
    assert whole.usage is not None
    assert counts.usage.completion_tokens == whole.usage.completion_tokens == 24
    assert {one.usage for one in chunks[:-1]} == {None}


def test_a_stream_has_no_counts_that_nobody_asked_for(guide: Served) -> None:
    reply = guide.ask(CHAT, {"messages": QUESTION, "max_tokens": 2, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in reply.body.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        assert "usage" not in json.loads(line.removeprefix("data: "))


def test_a_prompt_that_was_read_before_says_so(client: openai.OpenAI) -> None:
    told = [{"role": "user", "content": "Which keys quit the program, and where is that written?"}]
    for expected in (False, True):
        reply = client.chat.completions.create(model="guide", messages=told, max_tokens=1)
        assert reply.usage is not None
        assert reply.usage.prompt_tokens_details is not None
        cached = reply.usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        assert (cached > reply.usage.prompt_tokens // 2) == expected


def test_an_answer_ends_by_itself_and_before_a_stop(client: openai.OpenAI, guide_engine: Engine) -> None:
    expected = said_by(guide_engine, QUESTION, 200)
    assert expected.reason == "stop_token"
    reply = client.chat.completions.create(model="guide", messages=QUESTION, max_tokens=200)
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (expected.text, "stop")
    word = expected.text.split()[5]
    cut = client.chat.completions.create(model="guide", messages=QUESTION, max_tokens=200, stop=[word])
    assert cut.choices[0].message.content == expected.text[: expected.text.index(word)]
    assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_which_token_has_ended_it_is_told_where_the_client_named_it(
    guide: Served, guide_engine: Engine, stream: bool
) -> None:
    ids = said_by(guide_engine, QUESTION, 12).token_ids
    body = {"messages": QUESTION, "max_tokens": 100, "stream": stream, "return_token_ids": True}

    def last(**more: object) -> dict[str, object]:
        reply = guide.ask(CHAT, {**body, **more}).body.decode()
        found = json.loads(reply.split("data: ")[-2] if stream else reply)["choices"][0]
        return {name: found.get(name) for name in ("finish_reason", "stop_reason")}

    # The first place of an id that comes once.
    place = next(number for number, one in enumerate(ids) if number > 3 and ids.index(one) == number)
    assert last(stop_token_ids=[ids[place], 7]) == {"finish_reason": "stop", "stop_reason": ids[place]}
    # The model's own end is nobody's id.
    assert last() == {"finish_reason": "stop", "stop_reason": None}


def test_several_answers_have_seeds_of_their_own(client: openai.OpenAI) -> None:
    def asked(seed: int, n: int) -> list[str | None]:
        reply = client.chat.completions.create(
            model="guide", messages=QUESTION, n=n, seed=seed, temperature=1.5, max_tokens=12
        )
        assert reply.usage is not None
        assert reply.usage.completion_tokens <= 12 * n
        assert [one.index for one in reply.choices] == list(range(n))
        return [one.message.content for one in reply.choices]

    three = asked(5, 3)
    assert len(set(three)) > 1
    assert asked(6, 1) == three[1:2]


def test_streams_of_several_answers_are_told_apart(client: openai.OpenAI) -> None:
    wished = {"model": "guide", "messages": QUESTION, "n": 2, "seed": 5, "temperature": 1.5, "max_tokens": 12}
    whole = client.chat.completions.create(**wished)
    texts, ended = ["", ""], []
    for chunk in client.chat.completions.create(**wished, stream=True):
        for one in chunk.choices:
            texts[one.index] += one.delta.content or ""
            ended += [one.index] if one.finish_reason else []
    assert texts == [one.message.content for one in whole.choices]
    assert sorted(ended) == [0, 1]


def test_an_answer_is_held_to_a_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "bits": {"type": "integer"}},
        "required": ["name", "bits"],
        "additionalProperties": False,
    }
    held = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}
    reply = client.chat.completions.create(model="guide", messages=QUESTION, response_format=held, max_tokens=100)
    found = json.loads(reply.choices[0].message.content or "")
    assert isinstance(found["bits"], int)
    assert set(found) == {"name", "bits"}


def test_an_answer_that_was_begun_goes_on(client: openai.OpenAI, guide_engine: Engine) -> None:
    """Cut between two tokens, so that the rest is what the model would have said."""
    expected = said_by(guide_engine, QUESTION, 60)
    begun = guide_engine.decode(expected.token_ids[:8])
    told = [*QUESTION, {"role": "assistant", "content": begun}]
    reply = client.chat.completions.create(model="guide", messages=told, max_tokens=52, extra_body={"heal": False})
    assert begun + (reply.choices[0].message.content or "") == expected.text


def test_models_are_listed(client: openai.OpenAI, guide_engine: Engine) -> None:
    (model,) = client.models.list()
    assert (model.id, model.object) == ("guide", "model")
    assert client.models.retrieve("guide").model_extra["meta"]["max_context"] == guide_engine.info.max_seq_len


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_there_is_not(client: openai.OpenAI, stream: bool) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4") as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION, stream=stream)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", [3_000, 200_000])
def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_sent(
    client: openai.OpenAI, guide_engine: Engine, stream: bool, words: int
) -> None:
    told = [{"role": "user", "content": "word " * words}]
    with pytest.raises(openai.BadRequestError, match=f"{guide_engine.info.max_seq_len} tokens") as caught:
        client.chat.completions.create(model="guide", messages=told, stream=stream)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 3}, "top_p"),
        ({"n": 9}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"stop": ["x"] * 129}, "stop"),
        ({"seed": -7}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]},
            "messages[0].content",
        ),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    ],
)
def test_a_wrong_field_is_named(guide: Served, wrong: dict[str, object], param: str) -> None:
    reply = guide.ask(CHAT, {"messages": QUESTION, "max_tokens": 1, **wrong})
    assert reply.status == 400
    error = reply.json["error"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert param.split("[", maxsplit=1)[0].split(".", maxsplit=1)[0] in error["message"]
    assert "\n" not in error["message"]


def test_a_schema_that_nothing_can_be_held_to_is_refused(guide: Served) -> None:
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
    reply = guide.ask(CHAT, {"messages": QUESTION, "max_tokens": 1, "response_format": held})
    assert reply.status == 400


def test_fields_of_other_servers_are_named_and_mean_nothing(guide: Served) -> None:
    body = {"messages": QUESTION, "max_tokens": 3}
    plain = guide.ask(CHAT, body)
    reply = guide.ask(CHAT, {**body, "truncate_everything": 7, "zeta\r\nx-evil: 1": 1, "ümlaut": 1})
    assert reply.json["choices"] == plain.json["choices"]
    assert reply.headers["x-exlchat-ignored"] == "truncate_everything, zeta x-evil: 1"
    assert "x-evil" not in reply.headers
    until(lambda: any(one.ignored == ("truncate_everything", "zeta x-evil: 1", "\u00fcmlaut") for one in guide.records))
