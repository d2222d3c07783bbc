"""Drafting: guesses change how fast an answer comes, and nothing else."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.engine import Finished, GenerationRequest, LocalEngine, RequestError, SamplingSettings, TextDelta, load
from exlchat.engine.draft.drafting import MOST_ROWS, DraftLength
from exlchat.engine.draft.ngram_drafter import NgramDrafter
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.paths import bundled_model
from tests.endless_model import save_llama_without_end
from tests.engine.retired import retired
from tests.random_models import save_random_llama

PROMPT = list(range(10, 40))
SETTINGS = (SamplingSettings(temperature=0.0), SamplingSettings(0.8, top_k=50), SamplingSettings(1.5, min_p=0.02))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LocalEngine:
    path = save_llama_without_end(tmp_path_factory.mktemp("model"))
    return load(path, device="cpu", kv_cache="fp32")


class Oracle:
    """Guesses what an answer says, and lies every `lie`th time."""

    def __init__(self, ids: Sequence[int], lie: int = 0) -> None:
        self.ids, self.lie, self.asked = list(ids), lie, 0

    def guess(self, context: Sequence[int], most: int) -> list[int]:
        self.asked += 1
        following = self.ids[len(context) : len(context) + most]
        if self.lie and self.asked % self.lie == 0 and following:
            following[len(following) // 2] = (following[len(following) // 2] + 1) % 384
        return following


def with_draft(engine: LocalEngine, drafter: object) -> Scheduler:
    parts = engine._parts
    return Scheduler(parts.transformer, parts.tokenizer, parts.cache, (), 8, draft_model=drafter)  # type: ignore[arg-type]


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("lie", [0, 1, 2, 3])
@pytest.mark.sweep(5)
def test_guesses_right_or_wrong_change_no_token(engine: LocalEngine, sampling: SamplingSettings, lie: int) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=300, seed=5)))
    drafted = with_draft(engine, Oracle([*PROMPT, *plain.token_ids], lie))
    last = finish(drafted.generate(GenerationRequest(PROMPT, sampling, max_new_tokens=300, seed=5, draft="model")))
    assert last.token_ids == plain.token_ids
    assert last.text == plain.text
    stats = last.stats
    assert stats.drafted > 0
    if lie == 0:
        assert stats.accepted > stats.drafted - MOST_ROWS  # the last check may reach beyond the end
    else:
        assert stats.accepted < stats.drafted
    # The cache holds what was said, and no guess.
    cached = retired(engine._parts.cache).ids
    assert cached == [*PROMPT, *plain.token_ids[:-1]][: len(cached)]


def test_what_the_conversation_says_again_is_guessed() -> None:
    guide = load(bundled_model(), device="cpu")
    prompt = guide.encode("How do I open a model? ") * 3
    # It would end at once, and says the same over and over instead.
    request = GenerationRequest(prompt, max_new_tokens=400, min_new_tokens=400)
    plain = finish(guide.generate(request))
    last = finish(guide.generate(dataclasses.replace(request, draft="ngram")))
    assert last.token_ids == plain.token_ids
    assert last.stats.accepted > 100
    assert not set(last.token_ids) & set(guide.info.stop_ids)


@pytest.mark.parametrize("after", [3, 10])
def test_an_answer_ends_within_a_check_as_without_one(engine: LocalEngine, after: int) -> None:
    plain = finish(engine.generate(GenerationRequest(PROMPT, max_new_tokens=60)))
    oracle = Oracle([*PROMPT, *plain.token_ids])
    stop = plain.token_ids[after]
    request = GenerationRequest(PROMPT, max_new_tokens=60, stop=[stop], draft="model")
    ended = finish(with_draft(engine, oracle).generate(request))
    assert ended.token_ids == plain.token_ids[: plain.token_ids.index(stop)]
    # Half an answer, given up by its reader: the next one begins from what was said.
    generator = with_draft(engine, oracle)
    events = generator.generate(GenerationRequest(PROMPT, max_new_tokens=60, draft="model"))
    said = 0
    while said < after:
        said += isinstance(next(events), TextDelta)
    events.close()  # type: ignore[attr-defined]
    cached = retired(engine._parts.cache).ids
    assert cached == [*PROMPT, *plain.token_ids][: len(cached)]
    assert len(cached) <= len(PROMPT) + after


def test_a_context_that_is_full_is_not_overrun(tmp_path: Path) -> None:
    save_random_llama(tmp_path)
    small = load(tmp_path, device="cpu", kv_cache="fp32", max_seq_len=50)
    plain = finish(small.generate(GenerationRequest(PROMPT, stop=(), seed=0)))
    last = finish(
        with_draft(small, Oracle([*PROMPT, *plain.token_ids])).generate(GenerationRequest(PROMPT, draft="model"))
    )
    assert (last.token_ids, last.reason) == (plain.token_ids, plain.reason)


def test_without_a_draft_model_one_cannot_be_asked(engine: LocalEngine) -> None:
    with pytest.raises(RequestError, match="there is no draft model; load one with --draft"):
        engine.generate(GenerationRequest(PROMPT, draft="model"))


@given(st.lists(st.integers(0, 3), max_size=60), st.lists(st.integers(0, 59), max_size=6))
def test_a_guess_is_what_stood_behind_the_same_run_last(ids: list[int], cuts: list[int]) -> None:
    drafter = NgramDrafter()
    context: list[int] = []
    for at, token in enumerate(ids):
        context.append(token)
        if at in cuts:
            del context[len(context) // 2 :]
        guess = drafter.guess(context, 4)
        places = [
            end
            for length in (5, 3)
            for end in range(len(context) - 1, length - 1, -1)
            if len(context) > length and context[end - length : end] == context[-length:]
        ]
        assert guess == (context[places[0] : places[0] + 4] if places else [])


def test_what_a_plain_step_takes_is_measured_first_and_now_and_then() -> None:
    length = DraftLength(row_cost=0.05)
    length.took(0, 9.0)  # prepares things
    assert length.best == 0
    length.took(0, 4.0)
    for guesses in (1, 2, 3) * 2:
        length.took(guesses, 2.5)
    for _ in range(50):
        length.saw(3, 2)
    checks = 0
    while length.best:
        length.took(3, 2.5)
        checks += 1
    assert 50 < checks < 200
    # A plain step was thought to take four times as long: passes of 2.5 s for two tokens paid.
    for _ in range(8):
        length.took(0, 1.0)
    assert length.best == 0


def test_as_many_guesses_as_pay() -> None:
    length = DraftLength(row_cost=0.05)
    for _ in range(2):
        length.took(0, 1.0)
    for _ in range(50):
        length.saw(4, 4)
    assert length.best == MOST_ROWS - 1
    for _ in range(50):
        length.saw(4, 0)
    tried = [length.best for _ in range(2000)]
    assert max(tried) <= 2
    assert 2 < sum(one > 0 for one in tried) < 8
    assert sum(one > 0 for one in tried[:100]) == 1
    # Guesses that are right, but take half as long as the token itself.
    dear = DraftLength(row_cost=0.05)
    for _ in range(2):
        dear.took(0, 1.0)
    for _ in range(50):
        dear.saw(3, 2)
        dear.guessed(3, 3 * 0.9)
    assert dear.best == 0
    # Right as often as can be, but a pass takes as long as the tokens it gives.
    slow = DraftLength(row_cost=1.5)
    for _ in range(2):
        slow.took(0, 1.0)
    for _ in range(50):
        slow.saw(4, random.Random(1).choice([2, 3]))
    assert slow.best == 0
