"""Several answers in one pass of a token of each: the same as one by one, and faster."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from exlchat.engine import Finished, GenerationRequest, LocalEngine, SamplingSettings, load
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import OneOfSeveral, PrefillProgress
from exlchat.llm.sampling import GREEDY
from tests.gpu.test_answers import EXL2, FULL, finish, prompts
from tests.shared_data import needs_shared

pytestmark = [needs_shared, pytest.mark.timeout(600)]
USUAL = SamplingSettings(0.8, top_k=50, top_p=0.95)


@pytest.fixture(scope="module", params=["fp16", "q4"])
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    return load(EXL2, device="cuda", max_seq_len=2048, cache_tokens=256 * 80, kv_cache=request.param)


def ends(events: Iterator[PrefillProgress | OneOfSeveral], count: int) -> list[Finished]:
    found = {
        one.index: one.event for one in events if isinstance(one, OneOfSeveral) and isinstance(one.event, Finished)
    }
    return [found[index] for index in range(count)]


@pytest.mark.parametrize("count", range(1, 9))
def test_greedy_answers_are_all_the_one(engine: LocalEngine, count: int) -> None:
    """Bit by bit: each row of a pass comes to what a step alone does. The prompt ends in the middle of a page."""
    for prompt in prompts(engine, 3, 611):
        request = GenerationRequest(prompt, GREEDY, max_new_tokens=200, min_new_tokens=200)
        wanted = finish(engine.generate(request))
        found = ends(engine.generate_several(request, [None] * count), count)
        assert [one.token_ids for one in found] == [wanted.token_ids] * count


@pytest.mark.parametrize(
    "sampling", [USUAL, FULL, SamplingSettings(0.9, mirostat_tau=4.0)], ids=["usual", "full", "mu"]
)
def test_each_is_what_it_would_be_alone(engine: LocalEngine, sampling: SamplingSettings) -> None:
    """With its seed. The host draws where the device cannot, in other sums: one in thousands may differ."""
    seeds = list(range(8))
    same = total = 0
    for prompt in prompts(engine, 4, 400):
        request = GenerationRequest(prompt, sampling, max_new_tokens=80, min_new_tokens=80)
        found = ends(engine.generate_several(request, seeds), 8)
        for seed, one in zip(seeds, found, strict=True):
            wanted = finish(engine.generate(dataclasses.replace(request, seed=seed, draft="off")))
            same += one.token_ids == wanted.token_ids
            total += 1
        assert len({one.token_ids for one in found}) == 8
    assert same >= total - 2


@pytest.mark.parametrize(
    "change",
    [
        {"banned": ["self", "the"]},
        {"constraint": Constraint("regex", "[a-z ]{20,40}[.]"), "min_new_tokens": 0},
        {"stop": ["\n\n"], "min_new_tokens": 0},
        {"alternatives": 2},
    ],
    ids=["banned", "constraint", "stop", "chances"],
)
def test_whatever_holds_for_one_holds_for_each(engine: LocalEngine, change: dict[str, object]) -> None:
    seeds = [3, 4, 5, 6]
    same = 0
    for prompt in prompts(engine, 3, 300):
        request = GenerationRequest(prompt, USUAL, max_new_tokens=80, min_new_tokens=80)
        request = dataclasses.replace(request, **change)  # type: ignore[arg-type]
        found = ends(engine.generate_several(request, seeds), 4)
        alone = [finish(engine.generate(dataclasses.replace(request, seed=seed, draft="off"))) for seed in seeds]
        same += sum(one.token_ids == other.token_ids for one, other in zip(found, alone, strict=True))
        assert all(one.text == engine.decode(one.token_ids) or one.reason == "stop_string" for one in found)
    assert same >= 11


def test_a_single_answer_afterwards_is_what_it_was(engine: LocalEngine) -> None:
    (prompt,) = prompts(engine, 1, 500)
    request = GenerationRequest(prompt, GREEDY, max_new_tokens=100, min_new_tokens=100)
    before = finish(engine.generate(request))
    ends(engine.generate_several(dataclasses.replace(request, sampling=USUAL), [1, 2, 3]), 3)
    assert finish(engine.generate(request)).token_ids == before.token_ids


@pytest.mark.parametrize("change", [{}, {"alternatives": 1}], ids=["drawn by the device", "by the host"])
def test_eight_take_as_many_passes_as_one(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, change: dict[str, int]
) -> None:
    passes: list[int] = []

    def counted(whole: object, name: str) -> None:
        work = getattr(whole, name)
        monkeypatch.setattr(whole, name, lambda *given: (passes.append(1), work(*given))[1])

    generator = engine._parts.scheduler
    assert generator._ahead is not None
    assert generator._together is not None
    counted(generator._ahead.step, "launch")
    counted(generator._together._graphs, "feed_each")
    (prompt,) = prompts(engine, 1, 500)
    request = GenerationRequest(prompt, USUAL, max_new_tokens=100, min_new_tokens=100)
    found = ends(engine.generate_several(dataclasses.replace(request, **change), range(8)), 8)
    assert [len(one.token_ids) for one in found] == [100] * 8
    # Some may have their first token, and run ahead as far as passes may be under way, before the others have theirs.
    assert 99 <= len(passes) <= 103
    assert {one.stats.decode_path for one in found} == {"synchronous" if change else "run-ahead"}
