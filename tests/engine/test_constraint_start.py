"""A constraint that holds behind a mark alone: before it the answer is free, behind it every token keeps to it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from exlchat.engine import GenerationRequest, LocalEngine, RequestError, load
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import Finished
from exlchat.paths import bundled_model

OBJECT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
SCHEMA = Constraint("json_schema", json.dumps(OBJECT))


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    loaded = load(bundled_model(), device="cpu", kv_cache="fp32", bundled=True)
    yield loaded
    loaded.unload()


def said(engine: LocalEngine, prompt: str, **more: object) -> Finished:
    request = GenerationRequest(engine.encode(prompt), constraint=SCHEMA, max_new_tokens=60, **more)  # type: ignore[arg-type]
    *_, last = engine.generate(request)
    assert isinstance(last, Finished)
    return last


PROMPT = "<|im_start|>user\nHow do I load a model?<|im_end|>\n<|im_start|>assistant\n"


def test_without_its_mark_it_says_nothing(engine: LocalEngine) -> None:
    free = engine.generate(GenerationRequest(engine.encode(PROMPT), max_new_tokens=60))
    *_, last = free
    assert isinstance(last, Finished)
    assert said(engine, PROMPT, constraint_from=("<tool_call>",)).token_ids == last.token_ids


@pytest.mark.parametrize("by_id", [False, True])
def test_behind_its_mark_the_rest_keeps_to_it(engine: LocalEngine, by_id: bool) -> None:
    free = said(engine, PROMPT, constraint_from=("<tool_call>",))
    # What the model says by itself early on is the mark: everything behind is held.
    cut = 4
    mark = free.token_ids[cut] if by_id else engine.decode(free.token_ids[: cut + 1])
    last = said(engine, PROMPT, constraint_from=(mark,))
    assert last.token_ids[: cut + 1] == free.token_ids[: cut + 1]
    assert json.loads(engine.decode(last.token_ids[cut + 1 :]))["n"] in (1, 2)
    assert last.reason == "stop_token"


def test_a_beginning_of_nothing_is_refused(engine: LocalEngine) -> None:
    request = GenerationRequest(engine.encode(PROMPT), constraint_from=("x",))
    with pytest.raises(RequestError, match="constraint_from"):
        engine.generate(request)
