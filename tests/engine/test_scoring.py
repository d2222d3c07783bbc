"""How likely tokens were: held against `transformers` in float64, at borders of chunks, with ties, with windows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralForCausalLM

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, RequestError, load
from exlchat.engine.sampling import NotNumbersError
from exlchat.engine.schedule import scoring
from exlchat.engine.schedule.scoring import chances
from exlchat.llm.events import PlaceChances, PrefillProgress, Scored
from exlchat.llm.request import ScoreRequest
from tests.engine.counting import PassedTokens
from tests.random_models import edit_json, save_random_llama

VOCAB = 384
IDS = random.Random(3).choices(range(VOCAB), k=300)
CHUNK = 64


def scored(engine: LocalEngine, ids: list[int], start: int, **wanted: Any) -> tuple[PlaceChances, ...]:
    *progress, last = engine.score(ScoreRequest(ids, start, **wanted))
    assert all(isinstance(one, PrefillProgress) for one in progress)
    assert isinstance(last, Scored)
    return last.places


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


def assert_equal(places: tuple[PlaceChances, ...], logits: torch.Tensor, ids: list[int], start: int) -> None:
    """The places are those of `ids[start:]` and the one behind, by the logits of all positions."""
    wanted = logits.double().log_softmax(-1)
    assert len(places) == len(ids) - start + 1
    for at, place in enumerate(places, start):
        row = wanted[at - 1]
        order = row.sort(descending=True, stable=True).indices.tolist()
        assert [one.token_id for one in place.top] == order[: len(place.top)]
        assert [one.rank for one in place.top] == list(range(1, len(place.top) + 1))
        for one in place.top:
            assert one.log_probability == pytest.approx(float(row[one.token_id]), abs=1e-4)
        if at == len(ids):
            assert place.taken is None
            continue
        assert place.taken is not None
        assert place.taken.token_id == ids[at]
        assert place.taken.log_probability == pytest.approx(float(row[ids[at]]), abs=1e-4)
        assert place.taken.rank == order.index(ids[at]) + 1


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path, vocab_size=VOCAB)
    return path


def open_engine(model_dir: Path, **options: Any) -> LocalEngine:
    return load(model_dir, device="cpu", kv_cache="fp32", prefill_chunk=CHUNK, **options)


@torch.inference_mode()
@pytest.mark.parametrize("start", [1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 200, len(IDS) - 1, len(IDS)])
def test_every_place_is_that_of_transformers(tmp_path: Path, start: int) -> None:
    model = save_random_llama(tmp_path, vocab_size=VOCAB)
    logits = model(torch.tensor([IDS])).logits[0]
    assert_equal(scored(open_engine(tmp_path), IDS, start, top=12), logits, IDS, start)


@torch.inference_mode()
def test_layers_that_see_a_window(tmp_path: Path) -> None:
    save_random_llama(tmp_path, vocab_size=VOCAB)
    # As its own class writes them: "llama" beside this architecture is refused by transformers.
    edit_json(tmp_path / "config.json", architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=40)
    model = MistralForCausalLM.from_pretrained(tmp_path).eval()
    logits = model(torch.tensor([IDS])).logits[0]
    engine = open_engine(tmp_path)
    finish(engine.generate(GenerationRequest(IDS[:210], max_new_tokens=1)))
    assert_equal(scored(engine, IDS, 200), logits, IDS, 200)


def test_few_logits_at_once_change_nothing(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(model_dir)
    wanted = scored(engine, IDS, 100)
    monkeypatch.setattr(scoring, "_MOST_LOGITS", 7 * VOCAB)
    most = []
    transformer = engine._parts.transformer
    head = transformer.logits

    def counted(x: torch.Tensor) -> torch.Tensor:
        most.append(len(x))
        return head(x)

    monkeypatch.setattr(transformer, "logits", counted)
    found = scored(engine, IDS, 100)
    assert sum(most) == len(found), "no place before the first that was asked about has logits"
    assert max(most) == 7
    for one, other in zip(found, wanted, strict=True):
        assert [top.token_id for top in one.top] == [top.token_id for top in other.top]
        assert (one.taken and one.taken.rank) == (other.taken and other.taken.rank)


def test_what_the_cache_holds_is_not_computed_again(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = open_engine(model_dir)
    first = finish(engine.generate(GenerationRequest(IDS, max_new_tokens=20)))
    ids = [*IDS, *first.token_ids]
    passed = PassedTokens(monkeypatch)
    places = scored(engine, ids, len(IDS), owner="talk")
    # The last token of the prompt gives the first place.
    assert passed.count == 1 + len(first.token_ids)
    # What greedy decoding took is the likeliest.
    assert [place.taken.rank for place in places if place.taken] == [1] * len(first.token_ids)
    assert ("talk", 2) in engine.cache_report().owners
    # And the answer that was scored goes on without a token of it being computed twice.
    again = finish(engine.generate(GenerationRequest([*ids, 5], max_new_tokens=1)))
    assert again.stats.cached_tokens == len(ids)


def test_equally_likely_tokens_come_in_order_of_their_ids() -> None:
    generator = torch.Generator().manual_seed(5)
    logits = torch.randint(0, 4, (50, 97), generator=generator).float()
    logits[0] = 1.0
    logits[1, 1:] = -torch.inf
    taken = torch.randint(97, (50,), generator=generator).tolist()
    for row, token, place in zip(logits.tolist(), taken, chances(logits, taken, 10), strict=True):
        order = sorted(range(97), key=lambda one: (-row[one], one))
        assert [one.token_id for one in place.top] == order[:10]
        assert place.taken is not None
        assert place.taken.rank == order.index(token) + 1
    (alone,) = chances(logits[1:2], [5], 200)
    assert len(alone.top) == 97
    assert alone.top[0].log_probability == 0.0
    assert alone.taken is not None
    assert alone.taken.log_probability == -torch.inf


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_no_number_is_refused(wrong: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = wrong
    with pytest.raises(NotNumbersError):
        chances(logits, [1, 2, 3], 3)


def test_damaged_weights_are_told_in_one_line(model_dir: Path) -> None:
    engine = open_engine(model_dir)
    engine._parts.transformer.embedding[IDS[40]] = torch.nan
    with pytest.raises(ModelError, match="not numbers"):
        scored(engine, IDS, 2)


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (ScoreRequest([], 1), "empty"),
        (ScoreRequest(IDS, 0), "start is 0"),
        (ScoreRequest(IDS, len(IDS) + 1), f"from 1 to {len(IDS)}"),
        (ScoreRequest(IDS, 1, top=0), "top is 0"),
        (ScoreRequest([*IDS, VOCAB], 1), f"id {VOCAB}"),
        (ScoreRequest(IDS * 2, 1), "the context holds 512"),
    ],
)
def test_what_cannot_be_scored_is_refused(model_dir: Path, request_: ScoreRequest, line: str) -> None:
    with pytest.raises(RequestError, match=line):
        open_engine(model_dir).score(request_)


def test_it_can_be_given_up_between_chunks(model_dir: Path) -> None:
    engine = open_engine(model_dir)
    events = engine.score(ScoreRequest(IDS, 1))
    next(events)
    next(events)
    events.cancel()
    assert [one for one in events if isinstance(one, Scored)] == []
    left = engine.score(ScoreRequest(IDS, 1))
    next(left)
    assert finish(engine.generate(GenerationRequest(IDS, max_new_tokens=3))).stats.new_tokens == 3
    # One that is left is not ended by another.
    assert isinstance(list(left)[-1], Scored)
