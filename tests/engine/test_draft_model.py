"""A smaller model guesses: the answer is the same, whatever it guesses, and its vocabulary has to be the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, SamplingSettings, load
from tests.endless_model import save_llama_without_end
from tests.random_models import save_random_llama

PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama_without_end(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> LocalEngine:
    return load(folder, device="cpu", kv_cache="fp32")


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("sampling", [SamplingSettings(temperature=0.0), SamplingSettings(1.2)])
def test_answers_are_those_without_it(folder: Path, plain: LocalEngine, sampling: SamplingSettings) -> None:
    drafted = load(folder, device="cpu", kv_cache="fp32", draft=load(folder, device="cpu", kv_cache="fp32"))
    wanted = finish(plain.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=60, seed=2)))
    got = finish(drafted.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=60, seed=2, draft="model")))
    assert got.token_ids == wanted.token_ids
    assert got.stats.drafted > 0
    if sampling.greedy:
        # The same model guesses what it will say.
        assert got.stats.accepted >= got.stats.drafted - 7
    # Another conversation, a shorter one, and the first again.
    for prompt in (list(range(100, 180)), PROMPT[:5], [*PROMPT, *wanted.token_ids[:20]]):
        one = finish(plain.generate(GenerationRequest(prompt, sampling, max_new_tokens=20, seed=9)))
        other = finish(drafted.generate(GenerationRequest(prompt, sampling, max_new_tokens=20, seed=9, draft="model")))
        assert one.token_ids == other.token_ids


def test_a_context_that_is_too_long_for_it_is_not_guessed_for(folder: Path, plain: LocalEngine) -> None:
    small = load(folder, device="cpu", kv_cache="fp32", max_seq_len=40)
    drafted = load(folder, device="cpu", kv_cache="fp32", draft=small)
    wanted = finish(plain.generate(GenerationRequest(PROMPT, max_new_tokens=40)))
    got = finish(drafted.generate(GenerationRequest(PROMPT, max_new_tokens=40, draft="model")))
    assert got.token_ids == wanted.token_ids


def test_another_vocabulary_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    save_random_llama(tmp_path)

    def renamed(content: dict[str, object]) -> None:
        vocab = content["model"]["vocab"]  # type: ignore[index]
        first, second = sorted(vocab, key=vocab.get)[5:7]
        vocab[first], vocab[second] = vocab[second], vocab[first]

    import json

    file = tmp_path / "tokenizer.json"
    content = json.loads(file.read_text("utf-8"))
    renamed(content)
    file.write_text(json.dumps(content), "utf-8")
    other = load(tmp_path, device="cpu", kv_cache="fp32")
    with pytest.raises(ModelError, match=r"cannot draft for .*: token 5 is .* here, and it has it as 6") as caught:
        load(folder, device="cpu", kv_cache="fp32", draft=other)
    assert "\n" not in str(caught.value)


def test_it_is_unloaded_with_the_model_it_helps(folder: Path) -> None:
    draft = load(folder, device="cpu", kv_cache="fp32")
    drafted = load(folder, device="cpu", kv_cache="fp32", draft=draft)
    drafted.unload()
    with pytest.raises(AttributeError):
        draft.encode("x")
