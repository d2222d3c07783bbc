"""`/v1/completions` with the `openai` client against the bundled model: text, prompts as ids, probabilities, echo."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from exlchat.chat.prompt.ids import most_characters
from exlchat.llm.port import Engine
from tests.server.served import Served

PATH = "/v1/completions"
PROMPT = "EXL2 is a file format for"


@pytest.fixture(scope="module")
def client(guide: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=guide.url, api_key="any", max_retries=0) as found:
        yield found


def log_softmax(engine: Engine, ids: list[int]) -> list[list[float]]:
    """Of each place, computed in one pass without a cache."""
    logits = engine.logits(ids)  # type: ignore[attr-defined]  # of a model that lies here
    found: list[list[float]] = logits.double().log_softmax(-1).tolist()
    return found


def prompt_ids(engine: Engine, text: str) -> list[int]:
    return engine.encode(engine.info.bos_token) + engine.encode(text)


def greedy(engine: Engine, text: str, most: int) -> list[int]:
    """By the logits alone."""
    ids = prompt_ids(engine, text)
    made: list[int] = []
    for _ in range(most):
        row = log_softmax(engine, ids + made)[-1]
        made.append(row.index(max(row)))
    return made


def test_the_likeliest_tokens_come(client: openai.OpenAI, guide_engine: Engine) -> None:
    reply = client.completions.create(model="guide", prompt=PROMPT, max_tokens=6)
    assert reply.object == "text_completion"
    assert reply.choices[0].text == guide_engine.decode(greedy(guide_engine, PROMPT, 6))
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(prompt_ids(guide_engine, PROMPT))
    streamed = client.completions.create(model="guide", prompt=PROMPT, max_tokens=6, stream=True)
    assert "".join(one.choices[0].text for one in streamed) == reply.choices[0].text


def test_sixteen_tokens_come_where_nothing_is_said(client: openai.OpenAI) -> None:
    reply = client.completions.create(model="guide", prompt=PROMPT, extra_body={"ignore_eos": True})
    assert reply.usage is not None
    assert reply.usage.completion_tokens == 16


def test_prompts_may_be_texts_and_ids_and_many(client: openai.OpenAI, guide_engine: Engine) -> None:
    texts = [PROMPT, "The key that quits", "A persona is"]
    alone = [client.completions.create(model="guide", prompt=one, max_tokens=5).choices[0].text for one in texts]
    wished: dict[str, Any] = {"model": "guide", "max_tokens": 5, "n": 2}
    for prompts in (texts, [prompt_ids(guide_engine, one) for one in texts]):
        reply = client.completions.create(prompt=prompts, **wished)
        assert [one.index for one in reply.choices] == list(range(6))
        assert [one.text for one in reply.choices] == [text for text in alone for _ in range(2)]
    assert client.completions.create(prompt=prompt_ids(guide_engine, PROMPT), **wished).choices[0].text == alone[0]


def test_probabilities_are_those_of_the_model(client: openai.OpenAI, guide_engine: Engine) -> None:
    reply = client.completions.create(model="guide", prompt=PROMPT, max_tokens=5, logprobs=3, temperature=2.0, seed=4)
    told = reply.choices[0].logprobs
    assert told is not None
    assert told.tokens is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert "".join(told.tokens) == reply.choices[0].text
    ids = prompt_ids(guide_engine, PROMPT)
    made = [guide_engine.encode(token)[0] for token in told.tokens]
    rows = log_softmax(guide_engine, ids + made)[len(ids) - 1 : -1]
    for row, token, chance, top in zip(rows, made, told.token_logprobs, told.top_logprobs, strict=True):
        assert chance == pytest.approx(row[token], abs=1e-3)
        assert top is not None
        assert sorted(top.values(), reverse=True)[:3] == pytest.approx(sorted(row, reverse=True)[:3], abs=1e-3)
        assert 3 <= len(top) <= 4
    assert told.text_offset == [len("".join(told.tokens[:number])) for number in range(5)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_ids", [False, True])
def test_an_echo_tells_how_likely_the_prompt_was(
    guide: Served, guide_engine: Engine, as_ids: bool, stream: bool
) -> None:
    """As lm-eval asks."""
    ids = prompt_ids(guide_engine, PROMPT)
    body = {
        "model": "guide",
        "prompt": [ids] if as_ids else PROMPT,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 1,
        "echo": True,
        "seed": 1234,
        "stream": stream,
    }
    reply = guide.ask(PATH, body)
    if stream:
        lines = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n\n")][:-2]
        choices = [json.loads(line)["choices"][0] for line in lines]
        text = "".join(one["text"] for one in choices)
        told = {
            name: [value for one in choices for value in (one["logprobs"] or {}).get(name, [])]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
    else:
        (choice,) = reply.json["choices"]
        text, told = choice["text"], choice["logprobs"]
    made = greedy(guide_engine, PROMPT, 1)
    shown = guide_engine.decode(ids, special=True) if as_ids else PROMPT
    assert text == shown + guide_engine.decode(made)
    assert len(told["tokens"]) == len(ids) + 1
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    rows = log_softmax(guide_engine, ids)
    expected = [row[token] for row, token in zip(rows, [*ids[1:], *made], strict=True)]
    assert told["token_logprobs"][1:] == pytest.approx(expected, abs=1e-3)
    for row, top in zip(rows, told["top_logprobs"][1:], strict=True):
        assert max(top.values()) == pytest.approx(max(row), abs=1e-3)
    places = list(zip(told["text_offset"], told["tokens"], strict=True))
    assert all(text[at:].startswith(token) for at, token in places[1:])


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_without_probabilities(guide: Served, guide_engine: Engine, stream: bool) -> None:
    reply = guide.ask(PATH, {"prompt": PROMPT, "max_tokens": 3, "echo": True, "stream": stream})
    if stream:
        lines = [line.removeprefix(b"data: ") for line in reply.body.split(b"\n\n")][:-2]
        text = "".join(json.loads(line)["choices"][0]["text"] for line in lines)
    else:
        text = reply.json["choices"][0]["text"]
    assert text == PROMPT + guide_engine.decode(greedy(guide_engine, PROMPT, 3))


def test_a_prompt_may_be_scored_alone(guide: Served, guide_engine: Engine) -> None:
    ids = prompt_ids(guide_engine, PROMPT)
    reply = guide.ask(PATH, {"prompt": ids, "max_tokens": 0, "logprobs": 0, "echo": True}).json
    assert len(reply["choices"][0]["logprobs"]["tokens"]) == len(ids)
    assert reply["usage"]["completion_tokens"] == 0
    assert reply["choices"][0]["finish_reason"] == "length"


def test_ids_come_back(guide: Served, guide_engine: Engine) -> None:
    body = {"prompt": PROMPT, "max_tokens": 6, "return_token_ids": True}
    (choice,) = guide.ask(PATH, body).json["choices"]
    assert choice["prompt_token_ids"] == prompt_ids(guide_engine, PROMPT)
    assert choice["token_ids"] == greedy(guide_engine, PROMPT, 6)
    lines = guide.ask(PATH, {**body, "stream": True}).body.split(b"\n\n")[:-2]
    chunks = [json.loads(line.removeprefix(b"data: "))["choices"][0] for line in lines]
    assert chunks[0]["prompt_token_ids"] == choice["prompt_token_ids"]
    assert [token for one in chunks for token in one.get("token_ids", [])] == choice["token_ids"]


def test_chat_has_probabilities_of_its_own_form(client: openai.OpenAI, guide_engine: Engine) -> None:
    wished: dict[str, Any] = {
        "model": "guide",
        "messages": [{"role": "user", "content": "What is EXL2?"}],
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 4,
    }
    reply = client.chat.completions.create(**wished)
    told = reply.choices[0].logprobs
    assert told is not None
    assert told.content is not None
    assert b"".join(bytes(one.bytes or ()) for one in told.content).decode() == reply.choices[0].message.content
    for one in told.content:
        assert len(one.top_logprobs) == 4
        assert one.logprob == one.top_logprobs[0].logprob
        assert sum(math.exp(each.logprob) for each in one.top_logprobs) <= 1.0001
    streamed = [
        one
        for chunk in client.chat.completions.create(**wished, stream=True)
        for choice in chunk.choices
        if choice.logprobs is not None
        for one in choice.logprobs.content or ()
    ]
    assert streamed == told.content


def test_part_of_a_character_is_told_by_its_bytes(client: openai.OpenAI) -> None:
    held = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": "\u6f22\u5b57"}}}
    reply = client.chat.completions.create(
        model="guide",
        messages=[{"role": "user", "content": "x"}],
        response_format=held,  # type: ignore[arg-type]
        logprobs=True,
    )
    assert json.loads(reply.choices[0].message.content or "") == "\u6f22\u5b57"
    told = reply.choices[0].logprobs
    assert told is not None
    tokens = told.content or []
    assert b"".join(bytes(one.bytes or ()) for one in tokens).decode() == reply.choices[0].message.content
    assert any(one.token.startswith("bytes:\\x") for one in tokens)


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1, "x"]]}, "prompt"),
        ({"prompt": [99_999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["x"] * 129}, "prompt"),
        ({"logprobs": 21}, "logprobs"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 4}, "best_of"),
    ],
)
def test_a_wrong_field_is_named(guide: Served, wrong: dict[str, object], param: str) -> None:
    reply = guide.ask(PATH, {"prompt": "x", "max_tokens": 1, **wrong})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_a_prompt_that_does_not_fit(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="guide", prompt="word " * 3_000)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")


def test_prompts_that_fit_each_need_not_fit_together(guide: Served, guide_engine: Engine) -> None:
    """As lm-eval sends them, a hundred and more at once."""
    text, context = "keyboard shortcut " * 450, guide_engine.info.max_seq_len
    tokens = len(guide_engine.encode(text)) + 1
    assert tokens < context
    # All of them are more than a context could hold, and so more than one text may be.
    assert 128 * len(text) > most_characters(context)
    reply = guide.ask(PATH, {"prompt": [text] * 128, "max_tokens": 1})
    assert reply.status == 200, reply.body
    assert reply.json["usage"]["prompt_tokens"] == 128 * tokens
