"""How likely tokens were, through the CUDA kernels: held against `transformers` on the dequantized weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine import Finished, GenerationRequest, LocalEngine, load
from exlchat.llm.events import PlaceChances, Scored
from exlchat.llm.request import ScoreRequest
from tests.shared_data import DATA, needs_shared

EXL2 = DATA / "tiny-llama-exl2-4.0bpw"
NEAR = 0.05
"""Of log-probabilities: float16 makes some 2e-3 of the logits' spread."""


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(DATA / "tiny-llama-exl2-4.0bpw-expected.safetensors")


@pytest.fixture(scope="module")
def engine(build_cache: Path) -> LocalEngine:
    return load(EXL2, device="cuda", build_cache=build_cache)


def scored(engine: LocalEngine, ids: list[int], start: int) -> tuple[PlaceChances, ...]:
    *_, last = engine.score(ScoreRequest(ids, start))
    assert isinstance(last, Scored)
    return last.places


@needs_shared
@pytest.mark.parametrize("start", [1, 120, 127], ids=["all", "few rows", "two rows"])
def test_chances_are_those_of_transformers(engine: LocalEngine, expected: dict[str, torch.Tensor], start: int) -> None:
    ids = [int(token) for token in expected["input_ids"]]
    wanted = expected["logits_exl2_model"].double().log_softmax(-1)
    places = scored(engine, ids, start)
    assert len(places) == len(ids) - start + 1
    for at, place in enumerate(places, start):
        row = wanted[at - 1]
        for one in place.top:
            assert one.log_probability == pytest.approx(float(row[one.token_id]), abs=NEAR)
        # Neighbours of nearly the same chance may change places.
        assert place.top[0].log_probability >= float(row.max()) - NEAR
        chances = [one.log_probability for one in place.top]
        assert chances == sorted(chances, reverse=True)
        if place.taken is not None:
            assert place.taken.token_id == ids[at]
            assert place.taken.log_probability == pytest.approx(float(row[ids[at]]), abs=NEAR)
            above = int((row > row[ids[at]] + NEAR).sum()) + 1
            below = int((row > row[ids[at]] - NEAR).sum()) + 1
            assert above <= place.taken.rank <= below


@needs_shared
@pytest.mark.parametrize(("kv_cache", "most"), [("fp16", 2 * NEAR), ("q8", 10 * NEAR)])
def test_behind_what_the_captured_step_has_stored(
    build_cache: Path, expected: dict[str, torch.Tensor], kv_cache: str, most: float
) -> None:
    engine = load(EXL2, device="cuda", build_cache=build_cache, kv_cache=kv_cache)
    ids = [int(token) for token in expected["input_ids"]][:32]
    *_, answer = engine.generate(GenerationRequest(ids, max_new_tokens=400))
    assert isinstance(answer, Finished)
    assert answer.stats.decode_path == "run-ahead"
    places = scored(engine, [*ids, *answer.token_ids], len(ids))
    assert len(places) == len(answer.token_ids) + 1
    for place in places[:-1]:
        assert place.taken is not None
        # Greedy decoding has taken the likeliest, as far as the kernels of a step and of a prompt agree.
        assert place.taken.log_probability >= place.top[0].log_probability - most
    again = [*ids, *answer.token_ids, 5]
    *_, other = engine.generate(GenerationRequest(again, max_new_tokens=2))
    assert isinstance(other, Finished)
    assert other.stats.cached_tokens == len(again) - 1
