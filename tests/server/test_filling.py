"""`suffix`: what stands between two texts, by a model that has tokens for that."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer

from exlchat import engine
from exlchat.llm.port import Engine
from tests.random_models import save_random_llama, save_tokenizer
from tests.server.served import Served, serving

PATH = "/v1/completions"
BEFORE, BEHIND = "def add(a, b):\n    return ", "\n\n1, 2, 3"
FAMILIES = {
    "qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "deepseek": ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
}


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def marks(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture(scope="module")
def model(marks: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = tmp_path_factory.mktemp("models") / "filling"
    save_random_llama(path)
    # Fewer than the model has rows for, so that there is room for three more.
    save_tokenizer(path, vocab_size=370)
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    assert tokenizer.add_special_tokens(list(marks)) == 3
    tokenizer.save(str(path / "tokenizer.json"))
    loaded = engine.load(path, device="cpu", kv_cache="fp32", bundled=True)
    yield loaded
    loaded.unload()


@pytest.fixture(scope="module")
def served(model: Engine) -> Iterator[Served]:
    with serving(model, name="filling") as found:
        yield found


def asked(served: Served, prompt: Any, **more: Any) -> Any:
    reply = served.ask(PATH, {"prompt": prompt, "max_tokens": 12, "return_token_ids": True, **more})
    assert reply.status == 200, reply.body
    return reply.json


def test_the_answer_is_that_of_the_prompt_in_the_models_form(
    served: Served, model: Engine, marks: tuple[str, ...]
) -> None:
    first, second, third = (model.encode(mark)[0] for mark in marks)
    ids = [*model.encode("<s>"), first, *model.encode(BEFORE), second, *model.encode(BEHIND), third]
    found = asked(served, BEFORE, suffix=BEHIND)
    assert found["choices"][0]["prompt_token_ids"] == ids
    assert found["choices"][0]["text"] == asked(served, ids)["choices"][0]["text"]
    assert found["usage"]["prompt_tokens"] == len(ids)
    assert asked(served, BEFORE, suffix=BEHIND, add_bos_token=False)["choices"][0]["prompt_token_ids"] == ids[1:]


def test_marks_in_a_file_are_text(served: Served, model: Engine, marks: tuple[str, ...]) -> None:
    found = asked(served, f"x = {marks[2]!r}", suffix=f"{marks[1]}</s>")
    ids = found["choices"][0]["prompt_token_ids"]
    assert [ids.count(model.encode(mark)[0]) for mark in (*marks, "</s>")] == [1, 1, 1, 0]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_answer_ends_where_the_next_file_would_begin(
    served: Served, model: Engine, marks: tuple[str, ...], number: int
) -> None:
    forced = {str(model.encode(marks[number])[0]): 100}
    assert asked(served, BEFORE, suffix=BEHIND, logit_bias=forced)["choices"][0]["finish_reason"] == "stop"
    assert asked(served, BEFORE, logit_bias=forced)["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "a", "suffix": "b", "echo": True}, "echo"),
        ({"prompt": [5], "suffix": "b"}, "suffix"),
        ({"prompt": "a", "suffix": 7}, "suffix"),
        ({"prompt": "a", "suffix": "b" * 1_100_000}, "suffix"),
        ({"prompt": "a", "suffix": "b" * 3_000}, "prompt"),
    ],
)
def test_what_cannot_be_is_refused(served: Served, body: dict[str, Any], param: str) -> None:
    reply = served.ask(PATH, body)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_a_model_without_such_tokens_fills_nothing_in(guide: Served) -> None:
    reply = guide.ask(PATH, {"prompt": BEFORE, "suffix": BEHIND})
    assert reply.status == 400
    assert "no tokens for filling in" in reply.json["error"]["message"]
    assert guide.ask(PATH, {"prompt": BEFORE, "suffix": "", "max_tokens": 1}).status == 200
