"""Servers of other kinds, by what each says of itself and takes: found out, used, and refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from exlchat import paths
from exlchat.chat.prompt.ids import PromptMessage, prompt_ids
from exlchat.chat.prompt_format import choose_format, with_thinking
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Finished, TextDelta
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import SamplingSettings
from exlchat.llm.thought_splitter import Thoughts
from exlchat.remote.address import Address, Level, Remote, RemoteError
from exlchat.remote.engine import RemoteEngine, connect
from exlchat.ui.tui.app import ChatApp
from tests.remote.stub import DONE, Route, Stub, delta, listed, serving, streamed, told, usage
from tests.ui.app_harness import say, services, until
from tests.ui.app_harness import told as told_to

CHAT = "POST /v1/chat/completions"
TEXT = "POST /v1/completions"


def engine(stub: Stub, *, level: Level | None = None, template: bool = False, model: str = "") -> RemoteEngine:
    return connect(Remote("stub", Address.parse(stub.url), model=model, level=level, template=template))


def prompt(engine: RemoteEngine, *messages: str, template: str | None = None) -> list[int]:
    form, _ = choose_format(engine.info, template)
    roles = ("user", "assistant") * len(messages)
    return prompt_ids(engine, [PromptMessage(role, text) for role, text in zip(roles, messages, strict=False)], form)


def said(engine: RemoteEngine, ids: list[int], **more: object) -> Finished:
    *_, last = engine.generate(GenerationRequest(ids, **more))  # type: ignore[arg-type]
    assert isinstance(last, Finished)
    return last


OPENAI: Mapping[str, Route] = {
    "GET /v1/models": listed("gpt-x"),
    CHAT: streamed(delta(role="assistant"), delta("Hel"), delta("lo"), delta(reason="stop"), usage(9, 2, 4), DONE),
}


def test_an_unknown_server_gets_messages() -> None:
    with serving(OPENAI) as stub:
        there = engine(stub)
        assert (there.server.kind, there.server.level) == ("openai", "messages")
        messages = ("Hi", 'He said "no"\nand {"role": "system"}', "Why?")
        last = said(there, prompt(there, *messages), sampling=SamplingSettings(temperature=0.5), max_new_tokens=20)
        assert (last.text, last.reason, last.token_ids) == ("Hello", "stop_token", ())
        assert (last.stats.prompt_tokens, last.stats.cached_tokens, last.stats.new_tokens) == (9, 4, 2)
        (body,) = stub.bodies("/v1/chat/completions")
        assert [one["content"] for one in body["messages"]] == list(messages)
        assert [one["role"] for one in body["messages"]] == ["user", "assistant", "user"]
        assert (body["model"], body["temperature"], body["max_tokens"], body["stream"]) == ("gpt-x", 0.5, 20, True)
        # What is off here and no field of theirs is not sent: such servers refuse what they do not know.
        assert not {"min_p", "top_k", "repetition_penalty"} & body.keys()


@pytest.mark.parametrize(
    ("routes", "kind", "level", "context"),
    [
        ({"GET /v1/models": listed("m", owner="vllm", max_model_len=4096)}, "vllm", "messages", 4096),
        (
            {
                "GET /v1/models": listed("m", owner="tabbyAPI"),
                "GET /v1/model": told({"id": "m", "parameters": {"max_seq_len": 2048}}),
            },
            "tabbyapi",
            "messages",
            2048,
        ),
        (
            {
                "GET /v1/models": listed("m", owner="library"),
                "POST /api/show": told({"model_info": {"llama.context_length": 131072}}),
            },
            "ollama",
            "messages",
            131072,
        ),
        ({"GET /v1/models": listed("m")}, "openai", "messages", 8192),
    ],
)
def test_each_kind_is_told_by_what_it_says(routes: Mapping[str, Route], kind: str, level: str, context: int) -> None:
    with serving(routes) as stub:
        there = engine(stub)
        assert (there.server.kind, there.server.level, there.info.max_seq_len) == (kind, level, context)
        assert bool(there.info.notices) == (kind == "openai")


async def test_a_persona_that_wishes_what_a_server_cannot_be_told_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXLCHAT_HOME", str(tmp_path / "home"))
    with serving(OPENAI) as stub:
        chat = ChatApp(services(tmp_path, load=lambda _: engine(stub)))
        personas = paths.folders().personas
        personas.mkdir(parents=True, exist_ok=True)
        (personas / "sage.toml").write_text('name = "Sage"\nsystem = "Ponder."\nthinking = true\n')
        (personas / "bard.toml").write_text('name = "Bard"\nsystem = "Tell it."\n')
        async with chat.run_test(size=(120, 40)) as pilot:
            await until(pilot, lambda: chat.chat_screen.model.info is not None)
            await say(pilot, "/persona sage")
            await until(pilot, lambda: "this server (openai) cannot be told whether to think" in told_to(chat))
            assert chat.session.persona is None
            await say(pilot, "/persona bard")
            await until(pilot, lambda: chat.session.persona is not None)


def test_the_model_is_the_one_that_is_named() -> None:
    with serving({**OPENAI, "GET /v1/models": listed("one", "two")}) as stub:
        assert engine(stub, model="two").info.name == "two"
        first = engine(stub)
        assert first.info.name == "one"
        assert "two" in first.info.notices[0]
        with pytest.raises(RemoteError, match="has no model three; there are one, two"):
            engine(stub, model="three")


_MARKS = {"<|im_start|>": 2_000_000, "<|im_end|>": 2_000_001}


def _ids(text: str) -> list[int]:
    pieces = re.split("(" + "|".join(map(re.escape, _MARKS)) + ")", text)
    return [one for piece in pieces for one in ([_MARKS[piece]] if piece in _MARKS else map(ord, piece))]


VLLM: Mapping[str, Route] = {
    "GET /v1/models": listed("m", owner="vllm", max_model_len=512),
    "POST /tokenize": lambda body: (
        200,
        {},
        iter([json.dumps({"tokens": _ids(body["prompt"])}).encode()]),
    ),
    "POST /detokenize": lambda body: (
        200,
        {},
        iter([json.dumps({"prompt": "".join(map(chr, body["tokens"]))}).encode()]),
    ),
    TEXT: streamed(
        {"choices": [{"index": 0, "text": "Hi", "token_ids": [72, 105], "finish_reason": None}]},
        {"choices": [{"index": 0, "text": "", "token_ids": [], "finish_reason": "length"}]},
        usage(5, 2),
        DONE,
    ),
}


def test_vllm_takes_ids_where_the_prompt_format_is_known() -> None:
    with serving(VLLM) as stub:
        there = engine(stub, template=True)
        assert there.server.level == "ids"
        ids = prompt(there, "x<|im_end|>", template="chatml")
        last = said(there, ids, max_new_tokens=2, min_new_tokens=1)
        assert (last.token_ids, last.text, last.reason) == ((72, 105), "Hi", "max_new_tokens")
        (body,) = stub.bodies("/v1/completions")
        assert body["prompt"] == ids
        assert (body["return_token_ids"], body["add_special_tokens"], body["min_tokens"]) == (True, False, 1)
        # One mark is of the message and stays text.
        assert ids.count(_MARKS["<|im_end|>"]) == 1
        assert [ord(one) for one in "x<|im_end|>"] == ids[ids.index(ord("x")) :][:11]


def test_by_text_a_mark_in_a_message_stays_text() -> None:
    with serving({**VLLM}) as stub:
        there = engine(stub, template=True, level="text")
        said(there, prompt(there, "x<|im_end|>y", template="chatml"), max_new_tokens=2)
        (body,) = stub.bodies("/v1/completions")
        assert body["prompt"].count("<|im_end|>") == 1
        assert "x<\u200c|im_end|>y" in body["prompt"]


def test_thoughts_that_a_server_tells_apart_are_thoughts_here() -> None:
    routes = {
        **OPENAI,
        CHAT: streamed(
            delta(reasoning_content="Let me"),
            delta(reasoning_content=" see."),
            delta("Four."),
            delta(reason="stop"),
            DONE,
        ),
    }
    with serving(routes) as stub:
        there = engine(stub)
        form, _ = choose_format(there.info, None)
        assert form.thinking is not None
        request = GenerationRequest(prompt(there, "2+2?"), thoughts=Thoughts(form.thinking))
        events = list(there.generate(request))
        by_channel = {
            channel: "".join(one.text for one in events if isinstance(one, TextDelta) and one.channel == channel)
            for channel in ("thought", "answer")
        }
        assert by_channel == {"thought": "Let me see.", "answer": "Four."}


def test_whether_to_think_is_told_in_the_servers_way() -> None:
    with serving({**OPENAI, "GET /v1/models": listed("m", owner="vllm", max_model_len=512)}) as stub:
        there = engine(stub)
        form, _ = choose_format(there.info, None)
        ids = prompt_ids(there, [PromptMessage("user", "Hi")], with_thinking(form, False))
        said(there, ids)
        assert stub.bodies("/v1/chat/completions")[0]["chat_template_kwargs"] == {"enable_thinking": False}


def test_what_was_begun_goes_as_the_beginning_of_the_answer_where_that_can_be() -> None:
    with serving({**OPENAI, "GET /v1/models": listed("m", owner="vllm", max_model_len=512)}) as stub:
        there = engine(stub)
        ids, begun = prompt(there, "Name one"), there.encode('{"role": "x"}\nSure')
        said(there, [*ids, *begun], begun=len(begun))
        (body,) = stub.bodies("/v1/chat/completions")
        assert body["messages"][-1] == {"role": "assistant", "content": '{"role": "x"}\nSure'}
        assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    with serving(OPENAI) as stub:
        there = engine(stub)
        with pytest.raises(RequestError, match="cannot go on"):
            there.generate(GenerationRequest([*ids, *begun], begun=len(begun)))


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (GenerationRequest((1,), SamplingSettings(min_p=0.1)), "min_p"),
        (GenerationRequest((1,), SamplingSettings(dry_multiplier=0.8)), "dry_multiplier"),
        (GenerationRequest((1,), banned=("no",)), "bans no texts"),
        (GenerationRequest((1,), constraint=Constraint("regex", "a+")), "regex"),
        (GenerationRequest((1,), min_new_tokens=5), "least length"),
        (GenerationRequest((1,), alternatives=3), "no probabilities"),
    ],
)
def test_what_a_plain_server_cannot_do_is_refused_before_it_is_asked(request_: GenerationRequest, named: str) -> None:
    with serving(OPENAI) as stub:
        there = engine(stub)
        with pytest.raises(RequestError, match=named):
            there.generate(request_)
        assert not stub.bodies("/v1/chat/completions")


def test_another_prompt_format_than_the_servers_is_refused_for_messages() -> None:
    with serving(OPENAI) as stub:
        there = engine(stub)
        with pytest.raises(RequestError, match="prompt format itself"):
            there.generate(GenerationRequest(prompt(there, "Hi", template="chatml")))


@pytest.mark.parametrize("text", ["", "a", "Grüße 日本語 🙂 e\u0301", "  x\n\n\ty  ", "\x00\x07<|x|>", "word " * 50])
def test_pieces_stand_for_their_text_exactly(text: str) -> None:
    with serving(OPENAI) as stub:
        there = engine(stub)
        ids = there.encode(text)
        assert there.decode(ids, special=True) == text
        assert all(0 <= one < there.info.vocab_size for one in ids)
        assert len(ids) <= len(text.encode())
