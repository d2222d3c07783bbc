"""Passes of more answers than a step takes rows: near to steps alone, and nobody's business what others ask for."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, SamplingSettings, load
from exlchat.engine.decode.wide import MOST_ROWS
from exlchat.engine.kv.sequence import KVSequence
from exlchat.ext.job import Job
from exlchat.ext.library import Library
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import TextDelta
from exlchat.llm.port import Failed
from exlchat.llm.sampling import GREEDY
from tests.ext.many_draw_cases import Rows, check_alike
from tests.gpu.test_answers import EXL2, FULL, prompts
from tests.shared_data import needs_shared

pytestmark = pytest.mark.timeout(600)
USUAL = SamplingSettings(0.8, top_k=50, top_p=0.95)


@pytest.fixture(scope="module", params=["fp16", "q4"])
def engine(request: pytest.FixtureRequest) -> LocalEngine:
    return load(EXL2, device="cuda", max_seq_len=2048, cache_tokens=256 * 200, kv_cache=request.param)


@pytest.fixture
def apart(engine: LocalEngine) -> Iterator[list[KVSequence]]:
    """Sequences of unlike lengths, without the last token of each."""
    runner, choice = engine._parts.scheduler.runner, random.Random(1)
    made = []
    for length in [300, 1, 1100, 256, 255, 257, 700, 40, 512, *(17 + 29 * row for row in range(31))]:
        sequence = KVSequence(engine._parts.cache)
        runner.last_logits(sequence, choice.choices(range(engine.info.vocab_size), k=length))
        made.append(sequence)
    yield made
    for sequence in made:
        sequence.close()


@needs_shared
@torch.inference_mode()
@pytest.mark.parametrize("count", [9, 12, 17, 33, 40])
def test_logits_are_near_those_of_single_steps(engine: LocalEngine, apart: list[KVSequence], count: int) -> None:
    graphs, rows = engine._parts.scheduler.runner.step, apart[:count]
    assert graphs is not None
    ids = [row % 90 + 5 for row in range(count)]
    alone = torch.stack([graphs.forward(one, token, len(one)).clone() for one, token in zip(rows, ids, strict=True)])
    for _ in range(3):  # one by one, captured, and what was captured
        found = graphs.feed_each(ids, rows)
        assert float((found - alone).norm() / alone.norm()) < 2e-2
    # The bits of a row are its own, whoever stands beside it.
    turned = graphs.feed_each(ids[::-1], rows[::-1]).flip(0)
    assert torch.equal(turned, graphs.feed_each(ids, rows))


@pytest.mark.parametrize(("count", "vocab"), [(9, 32000), (40, 32000), (128, 3000), (12, 128256)])
def test_each_row_draws_as_it_would_alone(
    library: Library, monkeypatch: pytest.MonkeyPatch, count: int, vocab: int
) -> None:
    monkeypatch.setattr("exlchat.ext.chain._processors", lambda _device: 1)

    def launch(job: Job) -> None:
        job.launch(dependent=False)

    def make(alone: bool) -> Rows:
        return Rows(library, count, vocab, launch, torch.device("cuda"), alone=alone)

    check_alike(make, range(1, count, 6), ended=torch.cuda.synchronize)


@pytest.mark.parametrize(("count", "vocab"), [(2, 128256), (8, 32000), (8, 128256)])
def test_the_rows_of_a_step_draw_as_each_would_alone(library: Library, count: int, vocab: int) -> None:
    """Chains with all their blocks, and launches that begin before their predecessors end, as captured."""

    def launch(job: Job) -> None:
        job.launch(dependent=True)

    def make(alone: bool) -> Rows:
        return Rows(library, count, vocab, launch, torch.device("cuda"), alone=alone, chains=False)

    check_alike(make, (1,), ended=torch.cuda.synchronize)


class Answers:
    """All asked for at once, in an engine's own thread."""

    def __init__(
        self, engine: LocalEngine, requests: list[GenerationRequest], give_up: dict[int, int] | None = None
    ) -> None:
        """`give_up`: after so many tokens the client of a request leaves."""
        self._left, self._all = len(requests), threading.Event()
        self.ends: dict[int, Finished | Failed] = {}
        self._told = [0] * len(requests)
        self._give_up = give_up or {}
        self._handles = [
            engine.submit(one, lambda event, at=at: self._take(at, event)) for at, one in enumerate(requests)
        ]
        assert self._all.wait(120)

    def _take(self, at: int, event: object) -> None:
        if isinstance(event, TextDelta):
            self._told[at] += len(event.token_ids)
            if at in self._give_up and self._told[at] >= self._give_up[at]:
                self._handles[at].cancel()
        elif isinstance(event, Finished | Failed):
            self.ends[at] = event
            self._left -= 1
            if not self._left:
                self._all.set()

    @property
    def ids(self) -> list[tuple[int, ...]]:
        found = [self.ends[at] for at in sorted(self.ends)]
        assert all(isinstance(one, Finished) for one in found), found
        return [one.token_ids for one in found if isinstance(one, Finished)]


def unlike(engine: LocalEngine, count: int) -> list[GenerationRequest]:
    """Of unlike lengths, samplers and ends, beside each other."""
    told = [GREEDY, USUAL, FULL, dataclasses.replace(USUAL, dry_multiplier=0.9, frequency_penalty=0.3)]
    made = []
    for at, prompt in enumerate(prompts(engine, count, 500)):
        tokens = 60 + 7 * (at % 9)
        made.append(
            GenerationRequest(
                prompt[: 90 + 10 * at],
                told[at % len(told)],
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                seed=at,
                draft="off",
                banned=["self"] if at % 11 == 5 else [],
            )
        )
    return made


@needs_shared
def test_unlike_answers_beside_each_other_are_whole(engine: LocalEngine) -> None:
    requests = unlike(engine, 40)
    assert engine._parts.scheduler.runner.most_rows == MOST_ROWS
    for _ in range(2):  # the second time all prompts are known
        found = Answers(engine, requests).ids
        assert [len(ids) for ids in found] == [one.max_new_tokens for one in requests]
        assert all("self" not in engine.decode(ids) for ids in found[5::11])


@needs_shared
def test_who_leaves_in_the_middle_leaves_the_others_alone(engine: LocalEngine) -> None:
    requests = unlike(engine, 24)
    found = Answers(engine, requests, give_up={3: 10, 8: 25, 20: 1})
    reasons = {at: end.reason for at, end in found.ends.items() if isinstance(end, Finished)}
    assert {at for at, reason in reasons.items() if reason == "cancelled"} == {3, 8, 20}
    others = [at for at in range(24) if at not in (3, 8, 20)]
    assert all(len(found.ids[at]) == requests[at].max_new_tokens for at in others)


@needs_shared
def test_masks_and_chances_beside_plain_rows(engine: LocalEngine) -> None:
    requests = unlike(engine, 12)
    shape = Constraint("regex", "[a-z ]{20,30}[.]")
    requests[4] = dataclasses.replace(requests[4], constraint=shape, min_new_tokens=0, banned=[])
    requests[7] = dataclasses.replace(requests[7], alternatives=2)
    answers = Answers(engine, requests)
    assert engine.decode(answers.ids[4]).strip().rstrip(".").replace(" ", "").isalpha()
    told = answers.ends[7]
    assert isinstance(told, Finished)
    assert [len(one.top) for one in told.chances] == [2] * len(told.token_ids)
    assert [len(answers.ids[at]) for at in (0, 1, 11)] == [requests[at].max_new_tokens for at in (0, 1, 11)]


@needs_shared
def test_mirostat_beside_plain_rows_is_drawn_on_the_card(engine: LocalEngine) -> None:
    requests = unlike(engine, 14)
    steered = SamplingSettings(1.0, mirostat_tau=3.0)
    for at in (2, 9):
        requests[at] = dataclasses.replace(
            requests[at], sampling=steered, max_new_tokens=50, min_new_tokens=50, banned=[]
        )
    answers = Answers(engine, requests)
    assert [len(ids) for ids in answers.ids] == [one.max_new_tokens for one in requests]
    for at in (2, 9):
        end = answers.ends[at]
        assert isinstance(end, Finished)
        # All others are longer, so there were more than eight when it ended.
        assert end.stats.decode_path == "run-ahead"


@needs_shared
def test_a_single_answer_afterwards_is_what_it_was(engine: LocalEngine) -> None:
    request = unlike(engine, 1)[0]
    # A prompt that is known has other last bits than one that is read; in few bits others again once others have run.
    for others in (request, *unlike(engine, 20)):
        Answers(engine, [others])
    (before,) = Answers(engine, [request]).ids
    Answers(engine, unlike(engine, 20))
    assert Answers(engine, [request]).ids == [before]
