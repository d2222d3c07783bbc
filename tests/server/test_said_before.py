"""A client's second turn begins where its first one ended, though the text of an answer encodes to other ids."""

from __future__ import annotations

from typing import Any

import pytest

from exlchat.api.said import Said, SaidBefore
from exlchat.llm.port import Engine
from tests.server.served import CHAT, Served, serving

QUESTION = {"role": "user", "content": "Say something odd."}


def asked(served: Served, messages: list[dict[str, str]], **wished: Any) -> Any:
    body = {"messages": messages, "max_tokens": 40, "return_token_ids": True, **wished}
    reply = served.ask(CHAT, body)
    assert reply.status == 200, reply.body
    return reply.json


def odd(served: Served, engine: Engine, question: dict[str, str]) -> tuple[Any, str]:
    """A reply whose text is encoded to other ids than it has."""
    for seed in range(50):
        reply = asked(served, [question], temperature=3.0, seed=seed)
        (choice,) = reply["choices"]
        text = choice["message"]["content"]
        again = engine.encode(text)
        if text.strip() and choice["token_ids"] != again and choice["token_ids"][:20] != again[:20]:
            return reply, text
    raise AssertionError("no seed gives a text that is encoded to other ids")


@pytest.mark.parametrize("change", [str, str.strip, lambda text: f"{text}\n"], ids=["as it is", "stripped", "longer"])
def test_the_second_turn_reads_only_what_is_new(guide: Served, guide_engine: Engine, change: Any) -> None:
    question = {"role": "user", "content": f"{QUESTION['content']} {change}"}
    first, text = odd(guide, guide_engine, question)
    usage = first["usage"]
    (choice,) = first["choices"]
    second = asked(
        guide, [question, {"role": "assistant", "content": change(text)}, {"role": "user", "content": "And?"}]
    )
    begins = [*first["prompt_token_ids"], *choice["token_ids"]]
    assert second["prompt_token_ids"][: len(begins)] == begins
    # All but the last token, which nobody has computed anything of yet.
    whole = usage["prompt_tokens"] + usage["completion_tokens"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= whole - 1


def test_without_memory_it_would_be_read_anew(guide: Served, guide_engine: Engine) -> None:
    question = {"role": "user", "content": "Odd things, please."}
    first, text = odd(guide, guide_engine, question)
    with serving(guide_engine) as other:
        told = [question, {"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
        second = asked(other, told)
    begins = [*first["prompt_token_ids"], *first["choices"][0]["token_ids"]]
    assert second["prompt_token_ids"][: len(begins)] != begins


def test_a_reply_to_something_else_is_another_one(guide: Served, guide_engine: Engine) -> None:
    question = {"role": "user", "content": "What is odd?"}
    first, text = odd(guide, guide_engine, question)
    other = {"role": "user", "content": "What is even?"}
    second = asked(guide, [other, {"role": "assistant", "content": text}, {"role": "user", "content": "And?"}])
    found = second["prompt_token_ids"]
    ids = first["choices"][0]["token_ids"]
    assert not any(found[at : at + len(ids)] == ids for at in range(len(found)))


def test_an_answer_that_was_cut_goes_on_by_its_ids(guide: Served, guide_engine: Engine) -> None:
    question = {"role": "user", "content": "Go on, oddly."}
    first, text = odd(guide, guide_engine, question)
    begins = [*first["prompt_token_ids"], *first["choices"][0]["token_ids"]]
    told = [question, {"role": "assistant", "content": text}]
    second = asked(guide, told, heal=False, temperature=3.0, seed=7)
    assert second["prompt_token_ids"] == begins
    more = second["choices"][0]["message"]["content"]
    whole = [question, {"role": "assistant", "content": text + more}, {"role": "user", "content": "And?"}]
    third = asked(guide, whole)
    begins += second["choices"][0]["token_ids"]
    assert third["prompt_token_ids"][: len(begins)] == begins


def test_streamed_answers_are_remembered_too(guide: Served, guide_engine: Engine) -> None:
    question = {"role": "user", "content": "Stream oddly."}
    first, text = odd(guide, guide_engine, question)
    with serving(guide_engine) as other:
        seed = first["exlchat"]["seed"]
        other.ask(CHAT, {"messages": [question], "max_tokens": 40, "temperature": 3.0, "seed": seed, "stream": True})
        told = [question, {"role": "assistant", "content": text}, {"role": "user", "content": "And?"}]
        second = asked(other, told)
    begins = [*first["prompt_token_ids"], *first["choices"][0]["token_ids"]]
    assert second["prompt_token_ids"][: len(begins)] == begins


def test_what_was_asked_for_longest_ago_is_forgotten() -> None:
    said = SaidBefore(most_answers=2)
    for text in ("one", "two", "three"):
        said.remember("m", "before", text, Said(text, (1, 2), None))
        assert said.find("m", "before", "one") is not None or text == "three"
    found = [text for text in ("one", "two", "three") if said.find("m", "before", text) is not None]
    assert found == ["one", "three"]
    few = SaidBefore(most_bytes=5_000)
    for number in range(100):
        few.remember("m", str(number), "x" * 1_000, Said("x" * 1_000, tuple(range(100)), None))
    assert sum(few.find("m", str(number), "x" * 1_000) is not None for number in range(100)) == 2


def test_it_is_of_one_model_and_gives_back_what_was_put_in() -> None:
    said = SaidBefore()
    kept = Said(" a b \ud800", (7, 2**31, 0), None)
    said.remember("m", "q", "a b \ud800", kept)
    assert said.find("m", " q", "a b \ud800\n") == kept
    assert said.find("other", "q", "a b \ud800") is None
    assert said.find("m", "other", "a b \ud800") is None
    said.remember("m", "q", " ", Said(" ", (3,), None))
    assert said.find("m", "q", " ") is None
