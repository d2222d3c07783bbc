"""Clients that nobody here wrote, each asked for what it can do: a function a feature, which raises where it fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.server.served import Served, until

FEATURES = ("chat", "stream", "usage", "tools", "schema", "logprobs", "errors", "cancel")
Feature = Callable[[Served, Path], None]

QUESTION = "What is EXL2?"
ASKED: Any = [{"role": "user", "content": QUESTION}]
SCHEMA: dict[str, Any] = {
    "title": "Answer",
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}},
    "required": ["size"],
    "additionalProperties": False,
}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TOO_LONG = "many words " * 4000


def _expect_one_less(served: Served) -> None:
    """The server has noticed that its client has left."""
    until(lambda: served.desk.running == 0)


class OpenAI:
    """`openai`."""

    @staticmethod
    def client(served: Served) -> Any:
        import openai

        return openai.OpenAI(base_url=served.url, api_key="any", max_retries=0)

    @classmethod
    def chat(cls, served: Served, _: Path) -> None:
        with cls.client(served) as client:
            reply = client.chat.completions.create(model="guide", messages=ASKED, max_tokens=40)
            assert "EXL2" in reply.choices[0].message.content
            text = client.completions.create(model="guide", prompt="Once", max_tokens=5)
            assert text.choices[0].text

    @classmethod
    def stream(cls, served: Served, _: Path) -> None:
        with cls.client(served) as client:
            stream = client.chat.completions.create(model="guide", messages=ASKED, max_tokens=40, stream=True)
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            assert len(pieces) > 5
            assert "EXL2" in "".join(pieces)

    @classmethod
    def usage(cls, served: Served, _: Path) -> None:
        with cls.client(served) as client:
            counted = {"include_usage": True}
            *_, last = client.chat.completions.create(
                model="guide", messages=ASKED, max_tokens=7, stream=True, stream_options=counted
            )
            assert last.usage.completion_tokens == 7

    @classmethod
    def tools(cls, served: Served, _: Path) -> None:
        with cls.client(served) as client:
            first = client.chat.completions.create(model="guide", messages=ASKED, tools=[TOOL], max_tokens=60)
            message = first.choices[0].message
            (call,) = message.tool_calls
            assert json.loads(call.function.arguments) == {"city": "Köln"}
            told = {"role": "tool", "tool_call_id": call.id, "content": "17 degrees"}
            second = client.chat.completions.create(
                model="guide", messages=[*ASKED, message, told], tools=[TOOL], max_tokens=20
            )
            assert second.choices[0].message.content

    @classmethod
    def schema(cls, served: Served, _: Path) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
        with cls.client(served) as client:
            reply = client.chat.completions.create(model="guide", messages=ASKED, response_format=wanted, max_tokens=60)
            assert json.loads(reply.choices[0].message.content)["size"] in ("small", "large")

    @classmethod
    def logprobs(cls, served: Served, _: Path) -> None:
        with cls.client(served) as client:
            reply = client.chat.completions.create(
                model="guide", messages=ASKED, logprobs=True, top_logprobs=3, max_tokens=5
            )
            places = reply.choices[0].logprobs.content
            assert len(places) == 5
            assert all(len(place.top_logprobs) == 3 and place.logprob <= 0 for place in places)

    @classmethod
    def errors(cls, served: Served, _: Path) -> None:
        import openai
        import pytest

        with cls.client(served) as client:
            with pytest.raises(openai.NotFoundError, match="no model"):
                client.chat.completions.create(model="gpt-4", messages=ASKED)
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="guide", messages=[{"role": "user", "content": TOO_LONG}])
            assert refused.value.code == "context_length_exceeded"

    @classmethod
    def cancel(cls, served: Served, _: Path) -> None:
        with cls.client(served) as client:
            stream = client.chat.completions.create(
                model="guide", messages=ASKED, stream=True, extra_body={"ignore_eos": True}
            )
            next(iter(stream))
            stream.close()
            _expect_one_less(served)


class Llm:
    """`llm`, by its library, which the command is a thin layer over."""

    @staticmethod
    def model(served: Served, folder: Path) -> Any:
        from llm.default_plugins.openai_models import Chat

        del folder
        found = Chat(
            "guide", model_name="guide", api_base=served.url, can_stream=True, supports_schema=True, supports_tools=True
        )
        found.key = "DUMMY_KEY"
        return found

    @classmethod
    def chat(cls, served: Served, folder: Path) -> None:
        assert "EXL2" in cls.model(served, folder).prompt(QUESTION, stream=False, max_tokens=40).text()

    @classmethod
    def stream(cls, served: Served, folder: Path) -> None:
        pieces = list(cls.model(served, folder).prompt(QUESTION, max_tokens=40))
        assert len(pieces) > 5
        assert "EXL2" in "".join(pieces)

    @classmethod
    def usage(cls, served: Served, folder: Path) -> None:
        reply = cls.model(served, folder).prompt(QUESTION, max_tokens=7)
        reply.text()
        assert reply.usage().output == 7

    @classmethod
    def tools(cls, served: Served, folder: Path) -> None:
        asked = []

        def weather(city: str) -> str:
            """The weather of a city"""
            asked.append(city)
            return "17 degrees"

        said = cls.model(served, folder).chain(QUESTION, tools=[weather]).text()
        assert asked == ["Köln"]
        assert said

    @classmethod
    def schema(cls, served: Served, folder: Path) -> None:
        said = cls.model(served, folder).prompt(QUESTION, schema=SCHEMA, max_tokens=60).text()
        assert json.loads(said)["size"] in ("small", "large")

    logprobs = None

    @classmethod
    def errors(cls, served: Served, folder: Path) -> None:
        import openai
        import pytest

        with pytest.raises(openai.BadRequestError, match="context"):
            cls.model(served, folder).prompt(TOO_LONG).text()

    @classmethod
    def cancel(cls, served: Served, folder: Path) -> None:
        reply = iter(cls.model(served, folder).prompt(QUESTION))
        next(reply)
        reply.close()
        _expect_one_less(served)


class LangChain:
    """`langchain-openai`."""

    @staticmethod
    def model(served: Served, **more: Any) -> Any:
        from langchain_openai import ChatOpenAI

        return ChatOpenAI(base_url=served.url, api_key="any", model="guide", max_retries=0, **more)

    @classmethod
    def chat(cls, served: Served, _: Path) -> None:
        assert "EXL2" in cls.model(served, max_tokens=40).invoke(QUESTION).content

    @classmethod
    def stream(cls, served: Served, _: Path) -> None:
        pieces = [chunk.content for chunk in cls.model(served, max_tokens=40).stream(QUESTION)]
        assert len(pieces) > 5
        assert "EXL2" in "".join(pieces)

    @classmethod
    def usage(cls, served: Served, _: Path) -> None:
        whole = cls.model(served, max_tokens=7).invoke(QUESTION)
        assert whole.usage_metadata["output_tokens"] == 7
        *_, last = [
            one for one in cls.model(served, max_tokens=7, stream_usage=True).stream(QUESTION) if one.usage_metadata
        ]
        assert last.usage_metadata["output_tokens"] == 7

    @classmethod
    def tools(cls, served: Served, _: Path) -> None:
        from langchain_core.messages import HumanMessage, ToolMessage

        model = cls.model(served).bind_tools([TOOL])
        first = model.invoke([HumanMessage(QUESTION)])
        (call,) = first.tool_calls
        assert call["args"] == {"city": "Köln"}
        second = model.invoke([HumanMessage(QUESTION), first, ToolMessage("17 degrees", tool_call_id=call["id"])])
        assert second.content
        forced = cls.model(served).bind_tools([TOOL], tool_choice="any").invoke(QUESTION)
        assert forced.tool_calls[0]["name"] == "weather"

    @classmethod
    def schema(cls, served: Served, _: Path) -> None:
        said = cls.model(served).with_structured_output(SCHEMA, method="json_schema", strict=True).invoke(QUESTION)
        assert said["size"] in ("small", "large")

    @classmethod
    def logprobs(cls, served: Served, _: Path) -> None:
        reply = cls.model(served, max_tokens=5).bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
        assert len(reply.response_metadata["logprobs"]["content"]) == 5

    @classmethod
    def errors(cls, served: Served, _: Path) -> None:
        import openai
        import pytest

        with pytest.raises(openai.BadRequestError, match="context"):
            cls.model(served).invoke(TOO_LONG)

    @classmethod
    def cancel(cls, served: Served, _: Path) -> None:
        stream = cls.model(served, extra_body={"ignore_eos": True}).stream(QUESTION)
        next(stream)
        stream.close()
        _expect_one_less(served)


class LiteLlm:
    """`litellm`."""

    @staticmethod
    def ask(served: Served, **more: Any) -> Any:
        import litellm

        litellm.telemetry = False
        asked = {"model": "openai/guide", "messages": ASKED, "api_base": served.url, "api_key": "any"}
        return litellm.completion(**{**asked, "max_retries": 0, **more})

    @classmethod
    def chat(cls, served: Served, _: Path) -> None:
        assert "EXL2" in cls.ask(served, max_tokens=40).choices[0].message.content

    @classmethod
    def stream(cls, served: Served, _: Path) -> None:
        pieces = [chunk.choices[0].delta.content or "" for chunk in cls.ask(served, max_tokens=40, stream=True)]
        assert len(pieces) > 5
        assert "EXL2" in "".join(pieces)

    @classmethod
    def usage(cls, served: Served, _: Path) -> None:
        assert cls.ask(served, max_tokens=7).usage.completion_tokens == 7

    @classmethod
    def tools(cls, served: Served, _: Path) -> None:
        first = cls.ask(served, tools=[TOOL]).choices[0].message
        (call,) = first.tool_calls
        assert json.loads(call.function.arguments) == {"city": "Köln"}
        told = {"role": "tool", "tool_call_id": call.id, "content": "17 degrees"}
        second = cls.ask(
            served, messages=[*ASKED, first.model_dump(exclude_none=True), told], tools=[TOOL], max_tokens=20
        )
        assert second.choices[0].message.content

    @classmethod
    def schema(cls, served: Served, _: Path) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
        said = cls.ask(served, response_format=wanted, max_tokens=60).choices[0].message.content
        assert json.loads(said)["size"] in ("small", "large")

    @classmethod
    def logprobs(cls, served: Served, _: Path) -> None:
        reply = cls.ask(served, logprobs=True, top_logprobs=2, max_tokens=5)
        assert len(reply.choices[0].logprobs.content) == 5

    @classmethod
    def errors(cls, served: Served, _: Path) -> None:
        import litellm
        import pytest

        with pytest.raises(litellm.ContextWindowExceededError):
            cls.ask(served, messages=[{"role": "user", "content": TOO_LONG}])

    @classmethod
    def cancel(cls, served: Served, _: Path) -> None:
        stream = cls.ask(served, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.completion_stream.close()
        _expect_one_less(served)


CLIENTS: Mapping[str, type] = {
    "openai": OpenAI,
    "llm": Llm,
    "langchain-openai": LangChain,
    "litellm": LiteLlm,
}


def feature(client: str, name: str) -> Feature | None:
    """`None` where the client has no such thing."""
    found: Feature | None = getattr(CLIENTS[client], name)
    return found


def wanted() -> dict[str, list[str]]:
    """Of each client, by the name of its package, what is tried."""
    return {client: [one for one in FEATURES if feature(client, one) is not None] for client in CLIENTS}
