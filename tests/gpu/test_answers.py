"""Drafts, constraints, bans and samplers on the device: the answers are those of plain steps, and of the host."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from exlchat.engine import Finished, GenerationRequest, LocalEngine, SamplingSettings, load
from exlchat.engine.draft.drafting import DraftLength
from exlchat.llm.constraint import Constraint
from exlchat.llm.sampling import GREEDY
from tests.shared_data import DATA, needs_shared

pytestmark = [needs_shared, pytest.mark.timeout(600)]
EXL2 = DATA / "tiny-llama-exl2-4.0bpw"
FLOAT = DATA / "tiny-llama"
HOUSE = Path(__file__).resolve().parents[2] / "exlchat" / "engine"
FULL = SamplingSettings(
    temperature=0.9,
    top_k=200,
    top_p=0.95,
    min_p=0.01,
    typical_p=0.98,
    tfs=0.99,
    top_a=0.01,
    xtc_probability=0.3,
    repetition_penalty=1.1,
    frequency_penalty=0.05,
    presence_penalty=0.05,
    penalty_range=512,
    dry_multiplier=0.8,
    smoothing_factor=0.2,
    epsilon_cutoff=1e-4,
)


class Always(DraftLength):
    """Checks as many guesses, whether that pays for so small a model or not."""

    @property
    def best(self) -> int:
        return 5


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    draft = load(FLOAT if FLOAT.is_dir() else EXL2, device="cuda", max_seq_len=4096)
    engine = load(EXL2, device="cuda", max_seq_len=4096, draft=draft)
    drafters = engine._parts.scheduler._sources._drafters
    drafters.update({name: (drafter, Always(0.05)) for name, (drafter, _) in drafters.items()})
    return engine


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


def prompts(engine: LocalEngine, count: int, tokens: int = 700) -> list[list[int]]:
    """Beginnings of our own files, which the model's training text is like."""
    files = sorted(HOUSE.rglob("*.py"))[:count]
    return [engine.encode(file.read_text("utf-8"))[:tokens] for file in files]


@pytest.mark.parametrize("draft", ["ngram", "model", "auto"])
def test_ten_thousand_greedy_tokens_are_the_same_with_drafts(engine: LocalEngine, draft: str) -> None:
    total = accepted = 0
    for prompt in prompts(engine, 20):
        request = GenerationRequest(prompt, max_new_tokens=520, min_new_tokens=520)
        plain = finish(engine.generate(request))
        last = finish(engine.generate(dataclasses.replace(request, draft=draft)))  # type: ignore[arg-type]
        assert last.token_ids == plain.token_ids
        assert plain.stats.decode_path == "run-ahead"
        total += len(last.token_ids)
        accepted += last.stats.accepted
    assert total >= 10_000
    assert accepted > 1000


@pytest.mark.parametrize("draft", ["ngram", "model"])
@pytest.mark.parametrize("sampling", [SamplingSettings(0.8, top_k=50, top_p=0.95), FULL], ids=["usual", "full"])
def test_drawn_tokens_are_the_same_with_drafts(engine: LocalEngine, sampling: SamplingSettings, draft: str) -> None:
    """For the same seed; the device draws plain tokens in other sums than the host, so one in thousands may differ."""
    same = drafted = 0
    found = prompts(engine, 12, 400)
    for seed, prompt in enumerate(found):
        request = GenerationRequest(prompt, sampling, max_new_tokens=150, min_new_tokens=150, seed=seed)
        plain = finish(engine.generate(request))
        last = finish(engine.generate(dataclasses.replace(request, draft=draft)))  # type: ignore[arg-type]
        same += last.token_ids == plain.token_ids
        drafted += last.stats.drafted
    assert same >= len(found) - 2
    assert drafted > 0


def test_drawn_tokens_have_the_same_distribution_with_drafts(engine: LocalEngine) -> None:
    """Two samples of the third token behind a prompt, over other seeds."""
    prompt = prompts(engine, 1, 300)[0]
    sampling = SamplingSettings(1.0, top_k=12)

    def sample(seeds: range, draft: str) -> Counter[int]:
        request = GenerationRequest(prompt, sampling, max_new_tokens=4, min_new_tokens=4, draft=draft)  # type: ignore[arg-type]
        return Counter(finish(engine.generate(dataclasses.replace(request, seed=seed))).token_ids[2] for seed in seeds)

    plain, drafted = sample(range(600), "off"), sample(range(10_000, 10_600), "model")
    tokens = [token for token in plain | drafted if plain[token] + drafted[token] >= 20]
    statistic = sum((plain[one] - drafted[one]) ** 2 / (plain[one] + drafted[one]) for one in tokens)
    # The 99.9 % point of chi-square is below 2.5 n + 12 for all n from 1 on.
    assert statistic < 2.5 * len(tokens) + 12


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingSettings(0.8, top_k=50), FULL, SamplingSettings(0.9, mirostat_tau=4.0)],
    ids=["greedy", "usual", "full", "mirostat"],
)
def test_the_device_draws_as_the_host(engine: LocalEngine, sampling: SamplingSettings) -> None:
    same = 0
    found = prompts(engine, 8, 300)
    for seed, prompt in enumerate(found):
        request = GenerationRequest(prompt, sampling, max_new_tokens=60, min_new_tokens=60, seed=seed)
        on_device = finish(engine.generate(request))
        assert on_device.stats.decode_path == "run-ahead"
        # Where chances are asked for the host draws, from the logits of the same kernels.
        on_host = finish(engine.generate(dataclasses.replace(request, alternatives=1)))
        assert on_host.stats.decode_path == "synchronous"
        common = next(
            (place for place, (a, b) in enumerate(zip(on_device.token_ids, on_host.token_ids, strict=True)) if a != b),
            60,
        )
        same += common == 60
    # The device adds up in another order: where a share is on the edge of a step, one may keep what the other drops.
    assert same >= len(found) - 2


def test_a_grammar_holds_on_the_device(engine: LocalEngine) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "count": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["name", "count"],
        "additionalProperties": False,
    }
    for sampling in (GREEDY, SamplingSettings(1.2), FULL):
        for seed, prompt in enumerate(prompts(engine, 6, 200)):
            request = GenerationRequest(
                prompt,
                sampling,
                seed=seed,
                max_new_tokens=200,
                constraint=Constraint("json_schema", json.dumps(schema)),
            )
            last = finish(engine.generate(request))
            assert last.reason == "stop_token"
            found = json.loads(last.text)
            assert set(found) == {"name", "count"}
            assert len(found["name"]) <= 12
            assert 0 <= found["count"] <= 99


@pytest.mark.parametrize("draft", ["off", "ngram", "model"])
def test_banned_strings_never_come(engine: LocalEngine, draft: str) -> None:
    banned = ["self", "return", " = "]
    rewound = 0
    for seed, prompt in enumerate(prompts(engine, 8, 300)):
        for sampling in (GREEDY, SamplingSettings(0.8), FULL):
            request = GenerationRequest(
                prompt,
                sampling,
                seed=seed,
                max_new_tokens=120,
                min_new_tokens=120,
                banned=banned,
                draft=draft,  # type: ignore[arg-type]
            )
            last = finish(engine.generate(request))
            assert not any(ban in last.text.lower() for ban in banned)
            assert len(last.token_ids) == 120
            rewound += last.stats.rewound
    assert rewound > 20


def test_no_stop_token_before_the_least_on_the_device(engine: LocalEngine) -> None:
    prompt = prompts(engine, 1, 300)[0]
    plain = finish(engine.generate(GenerationRequest(prompt, max_new_tokens=40, min_new_tokens=40)))
    stop = plain.token_ids[5]
    last = finish(engine.generate(GenerationRequest(prompt, max_new_tokens=80, min_new_tokens=20, stop=[stop])))
    assert stop not in last.token_ids
    assert len(last.token_ids) >= 20
    assert last.stats.decode_path == "run-ahead"


def test_a_ban_and_a_bias_of_tokens_hold_on_the_device(engine: LocalEngine) -> None:
    prompt = prompts(engine, 1, 300)[0]
    plain = finish(engine.generate(GenerationRequest(prompt, max_new_tokens=60, min_new_tokens=60)))
    common = [token for token, _ in Counter(plain.token_ids).most_common(3)]
    sampling = SamplingSettings(temperature=0.0, banned_tokens=tuple(common))
    last = finish(engine.generate(GenerationRequest(prompt, sampling, max_new_tokens=60, min_new_tokens=60)))
    assert not set(common) & set(last.token_ids)
    sampling = SamplingSettings(temperature=0.0, logit_bias=((common[0], 1000.0),))
    last = finish(engine.generate(GenerationRequest(prompt, sampling, max_new_tokens=10, min_new_tokens=10)))
    assert set(last.token_ids) == {common[0]}
