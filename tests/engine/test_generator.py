"""The generator on a random model: events, stops, cancel, reuse of the cache, limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from exlchat.engine import (
    Finished,
    GenerationRequest,
    LocalEngine,
    PrefillProgress,
    RequestError,
    SamplingSettings,
    TextDelta,
    load,
)
from exlchat.engine.layers.transformer import Transformer
from tests.random_models import edit_json, save_random_llama

PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path)
    edit_json(path / "generation_config.json", eos_token_id=None)
    edit_json(path / "config.json", eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path


@pytest.fixture
def engine(model_dir: Path) -> LocalEngine:
    return load(model_dir, device="cpu", kv_cache="fp32", prefill_chunk=8)


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


def test_events_come_in_order_and_add_up(engine: LocalEngine) -> None:
    events = list(engine.generate(GenerationRequest(PROMPT, max_new_tokens=20)))
    last = events[-1]
    assert isinstance(last, Finished)
    progress = [event for event in events if isinstance(event, PrefillProgress)]
    deltas = [event for event in events if isinstance(event, TextDelta)]
    assert events == [*progress, *deltas, last]
    assert [event.done for event in progress] == [0, 8, 16, 24, 30]
    assert "".join(event.text for event in deltas) == last.text == engine.decode(last.token_ids)
    assert sum((event.token_ids for event in deltas), ()) == last.token_ids
    assert last.reason == "max_new_tokens"
    stats = last.stats
    assert (stats.prompt_tokens, stats.cached_tokens, stats.new_tokens) == (30, 0, 20)
    assert 0 < stats.prefill_seconds <= stats.time_to_first_token
    assert stats.decode_seconds > 0


@pytest.mark.parametrize("where", ["generation_config.json", "config.json", "tokenizer_config.json"])
def test_a_stop_id_from_any_file_ends_the_answer(
    where: str, model_dir: Path, engine: LocalEngine, tmp_path: Path
) -> None:
    whole = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=12)))
    stop_id = whole.token_ids[7]
    end = whole.token_ids.index(stop_id)
    for file in model_dir.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    if where == "tokenizer_config.json":
        token = engine._parts.tokenizer._fast.id_to_token(stop_id)
        edit_json(tmp_path / where, eos_token={"content": token})
    else:
        edit_json(tmp_path / where, eos_token_id=[383, stop_id])
    last = finish(load(tmp_path, device="cpu", kv_cache="fp32").generate(GenerationRequest(PROMPT, max_new_tokens=12)))
    assert last.reason == "stop_token"
    assert last.token_ids == whole.token_ids[:end]


def test_a_stop_that_the_model_has_no_embedding_for_never_comes(engine: LocalEngine) -> None:
    """Tokenizers may have more tokens than the model; a least length bars each that there is."""
    request = GenerationRequest(PROMPT, stop=[384, 9999, -1], min_new_tokens=5, max_new_tokens=8)
    assert len(finish(engine.generate(request)).token_ids) == 8


def test_stops_of_the_request(engine: LocalEngine) -> None:
    whole = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=30)))
    stop_id = whole.token_ids[5]
    by_id = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=30, stop=[stop_id])))
    assert (by_id.reason, by_id.token_ids) == ("stop_token", whole.token_ids[: whole.token_ids.index(stop_id)])
    stop = whole.text[6:9]
    by_text = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=30, stop=["never there", stop])))
    assert (by_text.reason, by_text.text) == ("stop_string", whole.text[: whole.text.index(stop)])


def test_the_seed_decides_the_draws_and_is_reported(engine: LocalEngine) -> None:
    sampling = SamplingSettings(temperature=1.5)
    first = finish(engine.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=20)))
    again = finish(engine.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=20, seed=first.stats.seed)))
    other = finish(engine.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=20)))
    assert again.token_ids == first.token_ids
    assert other.token_ids != first.token_ids


def test_what_is_in_the_cache_is_not_computed_again(engine: LocalEngine) -> None:
    first = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=10)))
    longer = [*PROMPT, *first.token_ids, 50, 51, 52]
    events = list(engine.generate(GenerationRequest(longer, max_new_tokens=5)))
    # The last generated token was never fed; everything before it was.
    assert events[0] == PrefillProgress(done=39, total=43, cached=39)
    second = finish(iter(events))
    assert second.stats.cached_tokens == 39
    fresh = load(engine.info.path, device="cpu", kv_cache="fp32", prefill_chunk=64)
    assert finish(fresh.generate(GenerationRequest(longer, max_new_tokens=5))).token_ids == second.token_ids


def test_another_branch_keeps_the_common_beginning(engine: LocalEngine) -> None:
    finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=3)))
    branch = finish(engine.generate(GenerationRequest([*PROMPT[:12], 90, 91], max_new_tokens=3)))
    assert branch.stats.cached_tokens == 12
    same = finish(engine.generate(GenerationRequest([*PROMPT[:12], 90, 91], max_new_tokens=3)))
    assert same.stats.cached_tokens == 14
    assert same.token_ids == branch.token_ids


def test_cancel_from_another_thread_is_felt_within_one_token(engine: LocalEngine) -> None:
    events = engine.generate(GenerationRequest(PROMPT))
    deltas = 0
    for event in events:
        deltas += isinstance(event, TextDelta)
        if deltas == 4:
            thread = threading.Thread(target=events.cancel)
            thread.start()
            thread.join()
            break
    rest = list(events)
    last = rest[-1]
    assert isinstance(last, Finished)
    assert last.reason == "cancelled"
    assert last.stats.new_tokens == 4


def test_cancel_between_request_and_first_event_counts(engine: LocalEngine) -> None:
    events = engine.generate(GenerationRequest(PROMPT))
    events.cancel()
    last = finish(events)
    assert (last.reason, last.token_ids) == ("cancelled", ())


def test_closing_the_iterator_leaves_the_engine_usable(engine: LocalEngine) -> None:
    reference = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=6)))
    events = engine.generate(GenerationRequest([*PROMPT[:20], 7], max_new_tokens=50))
    for event in events:
        if isinstance(event, TextDelta):
            break
    events.close()  # type: ignore[attr-defined]
    assert finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=6))).token_ids == reference.token_ids


def test_an_unfinished_iterator_and_a_newer_answer_do_not_spoil_each_other(engine: LocalEngine) -> None:
    reference = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=6)))
    alone = finish(engine.generate(GenerationRequest([5, 6, 7], max_new_tokens=50)))
    old = engine.generate(GenerationRequest([5, 6, 7], max_new_tokens=50))
    next(old)
    newer = engine.generate(GenerationRequest(PROMPT, max_new_tokens=6))
    next(newer)
    assert finish(newer).token_ids == reference.token_ids
    assert finish(old).token_ids == alone.token_ids


def test_an_iterator_that_was_never_begun_cannot_either(engine: LocalEngine) -> None:
    reference = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=12)))
    other = GenerationRequest(list(range(50, 60)), max_new_tokens=12)
    alone = finish(engine.generate(other))
    old = engine.generate(other)
    newer = engine.generate(GenerationRequest(PROMPT, max_new_tokens=12))
    for _ in range(4):
        next(newer)
    assert next(old) == PrefillProgress(done=10, total=10, cached=10)
    assert finish(newer).token_ids == reference.token_ids
    assert finish(old).token_ids == alone.token_ids


def test_the_context_ends_the_answer(model_dir: Path) -> None:
    engine = load(model_dir, device="cpu", max_seq_len=40)
    last = finish(engine.generate(GenerationRequest(PROMPT)))
    assert (last.reason, last.stats.new_tokens) == ("context_full", 10)


def test_no_new_tokens_only_fills_the_cache(engine: LocalEngine) -> None:
    last = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=0)))
    assert (last.reason, last.token_ids, last.stats.time_to_first_token) == ("max_new_tokens", (), 0.0)
    assert finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=1))).stats.cached_tokens == 30


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (GenerationRequest([]), "prompt is empty"),
        (GenerationRequest([3] * 600), "600 tokens"),
        (GenerationRequest([3, 384]), "id 384"),
        (GenerationRequest([3, -1]), "id -1"),
        (GenerationRequest([3], max_new_tokens=-1), "max_new_tokens"),
    ],
)
def test_requests_that_cannot_be_carried_out(engine: LocalEngine, request_: GenerationRequest, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        engine.generate(request_)


def test_the_same_prompt_again_computes_nothing(monkeypatch: pytest.MonkeyPatch, engine: LocalEngine) -> None:
    request = GenerationRequest(PROMPT, SamplingSettings(temperature=1.0), max_new_tokens=12, seed=5)
    first = finish(engine.generate(request))
    again = list(engine.generate(request))
    assert [event.done for event in again if isinstance(event, PrefillProgress)] == [len(PROMPT)]
    assert finish(iter(again)).token_ids == first.token_ids

    def never(*_arguments: object, **_options: object) -> torch.Tensor:
        raise AssertionError("the decoder was asked")

    monkeypatch.setattr(Transformer, "forward", never)
    only_one = GenerationRequest(PROMPT, max_new_tokens=1)
    assert finish(engine.generate(only_one)).stats.cached_tokens == len(PROMPT)
    with pytest.raises(AssertionError, match="was asked"):
        finish(engine.generate(GenerationRequest(PROMPT[:-1], max_new_tokens=1)))
