"""Several answers to one prompt: each is what it would be alone, and the prompt is read once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from torch import Tensor

from exlchat.engine import (
    Finished,
    GenerationRequest,
    LocalEngine,
    ModelError,
    RequestError,
    SamplingSettings,
    TextDelta,
    load,
)
from exlchat.engine.decode.draws import DecodeRow
from exlchat.engine.decode.plan import DecodePlan
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.sampling import probabilities
from exlchat.engine.sampling.device_rules import DeviceRules
from exlchat.engine.schedule.batch import BatchedRunAhead
from exlchat.engine.schedule.host_draws import BatchedHostDraws
from exlchat.ext.philox import uniform_bits
from exlchat.ext.sampling import DRAWN, TokenRing
from exlchat.llm.constraint import Constraint
from exlchat.llm.events import OneOfSeveral, PrefillProgress
from exlchat.llm.thought_splitter import ThinkingMarks, Thoughts
from exlchat.paths import bundled_model
from tests.engine.decoding import relative_error
from tests.engine.reference_kernels import ReferenceKernels
from tests.engine.test_quantized_linear import open_quantized
from tests.engine.test_step_chain import new_cache, one_order_for_gate_and_up, written
from tests.random_models import edit_json, save_random_llama

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

PROMPT = list(range(10, 310))  # more than a page, and a part of one
WARM = SamplingSettings(temperature=1.0)
SEEDS = (11, 12, 13, 14)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path)
    edit_json(path / "config.json", max_position_embeddings=2048)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path


@pytest.fixture(scope="module")
def engine(folder: Path) -> LocalEngine:
    return load(folder, device="cpu", kv_cache="fp16", max_seq_len=512, cache_tokens=256 * 40)


@pytest.fixture(scope="module")
def guide() -> LocalEngine:
    return load(bundled_model(), device="cpu")


def alone(engine: LocalEngine, request: GenerationRequest, seed: int) -> Finished:
    last = list(engine.generate(dataclasses.replace(request, seed=seed)))[-1]
    assert isinstance(last, Finished)
    return last


def ends(events: Iterator[PrefillProgress | OneOfSeveral]) -> dict[int, Finished]:
    """The last event of each; everything told before it adds up to it."""
    texts: dict[int, str] = {}
    ids: dict[int, tuple[int, ...]] = {}
    found: dict[int, Finished] = {}
    for told in events:
        if isinstance(told, PrefillProgress):
            assert not texts
            continue
        assert told.index not in found
        if isinstance(told.event, TextDelta):
            texts[told.index] = texts.get(told.index, "") + told.event.text
            ids[told.index] = ids.get(told.index, ()) + told.event.token_ids
        else:
            found[told.index] = told.event
            assert texts.get(told.index, "") == told.event.text
            assert ids.get(told.index, ()) == told.event.token_ids
    return found


def same(engine: LocalEngine, request: GenerationRequest, seeds: Sequence[int] = SEEDS) -> dict[int, Finished]:
    found = ends(engine.generate_several(request, seeds))
    assert sorted(found) == list(range(len(seeds)))
    for index, seed in enumerate(seeds):
        wanted = alone(engine, request, seed)
        assert found[index].token_ids == wanted.token_ids
        assert (found[index].text, found[index].reason) == (wanted.text, wanted.reason)
        assert (found[index].chances, found[index].healed) == (wanted.chances, wanted.healed)
        assert found[index].stats.seed == seed
    return found


def test_each_is_what_it_would_be_alone(engine: LocalEngine) -> None:
    found = same(engine, GenerationRequest(PROMPT, WARM, max_new_tokens=215))
    assert len({one.token_ids for one in found.values()}) == len(SEEDS)


@pytest.mark.parametrize("seeds", [(5,), tuple(range(8))], ids=["one", "eight"])
def test_from_one_to_eight(engine: LocalEngine, seeds: Sequence[int]) -> None:
    same(engine, GenerationRequest(PROMPT, WARM, max_new_tokens=20), seeds)


def test_the_prompt_is_read_once(folder: Path) -> None:
    engine = load(folder, device="cpu", prefill_chunk=64)
    events = list(engine.generate_several(GenerationRequest(PROMPT, WARM, max_new_tokens=5), SEEDS))
    progress = [event.done for event in events if isinstance(event, PrefillProgress)]
    assert progress == sorted(set(progress))
    cached = [
        one.event.stats.cached_tokens
        for one in events
        if isinstance(one, OneOfSeveral) and isinstance(one.event, Finished)
    ]
    assert cached == [0, *[len(PROMPT)] * 3]


def test_they_come_side_by_side(engine: LocalEngine) -> None:
    told = engine.generate_several(GenerationRequest(PROMPT, WARM, max_new_tokens=40), SEEDS)
    turns = [one.index for one in told if isinstance(one, OneOfSeveral) and isinstance(one.event, TextDelta)]
    begun = [turns.index(index) for index in range(4)]
    ended = [len(turns) - turns[::-1].index(index) for index in range(4)]
    assert max(begun) < min(ended) - 40


def test_pages_that_all_begin_with_are_there_once(engine: LocalEngine) -> None:
    pool = engine._parts.cache.pool
    most = 0
    for _ in engine.generate_several(GenerationRequest(PROMPT, WARM, max_new_tokens=5), SEEDS):
        used = {page for page in pool.listed if page.users}
        most = max(most, len(used))
    # One whole page for all, and a second for each: the first goes on in the one that the prompt was read into.
    assert most == 1 + len(SEEDS)
    assert not [page for page in pool.listed if page.users > 1]


@pytest.mark.parametrize(
    "change",
    [
        {"stop": ["e"]},
        {"banned": ["a", "e"]},
        {"alternatives": 3},
        {"min_new_tokens": 10, "stop": [5, 6, 7]},
        {"sampling": SamplingSettings(temperature=1.0, repetition_penalty=1.3, dry_multiplier=0.8)},
        {"sampling": SamplingSettings(temperature=1.0, mirostat_tau=3.0)},
        {"draft": "ngram"},
        {"stop_repeating": True},
    ],
    ids=["stop", "banned", "chances", "least", "penalties", "mirostat", "draft", "repeating"],
)
def test_whatever_holds_for_one_holds_for_each(engine: LocalEngine, change: dict[str, object]) -> None:
    same(engine, dataclasses.replace(GenerationRequest(PROMPT, WARM, max_new_tokens=40), **change))  # type: ignore[arg-type]


def test_constraints_and_thoughts_are_of_each(guide: LocalEngine, engine: LocalEngine) -> None:
    prompt = guide.encode("Name one.")
    schema = Constraint("choice", "yes\nno\nperhaps")
    request = GenerationRequest(prompt, WARM, max_new_tokens=40, constraint=schema)
    assert {one.text for one in same(guide, request).values()} <= {"yes", "no", "perhaps"}
    limit = Thoughts(ThinkingMarks("<x>", "</x>", opened=True), "", 5, tuple(engine.encode("</x>")))
    request = GenerationRequest(
        PROMPT, SamplingSettings(1.5), thoughts=limit, constraint=Constraint("choice", "yes\nno"), max_new_tokens=60
    )
    assert {one.text.partition("</x>")[2] for one in same(engine, request).values()} <= {"yes", "no"}


def test_a_cut_word_is_healed_in_each(guide: LocalEngine) -> None:
    question = guide.encode("How do I open a model?")
    cut = guide.encode(" Start exlchat with the fol")
    request = GenerationRequest([*question, *cut], WARM, begun=len(cut), heal=True, max_new_tokens=6)
    assert [one.healed for one in same(guide, request).values()] == [1] * 4


class Passes:
    """A pass of a token of each sequence, row by row, into memory that the next one uses again."""

    def __init__(self, transformer: Transformer) -> None:
        self._transformer = transformer
        self._rows = torch.zeros(8, transformer.spec.vocab_size)
        self.sizes: list[int] = []

    def check(self) -> None:
        """No card fails here."""

    def feed_each(self, ids: Sequence[int], sequences: Sequence[KVSequence]) -> Tensor:
        self._rows.fill_(torch.nan)
        for row, (token, cache) in enumerate(zip(ids, sequences, strict=True)):
            cache.reserve(len(cache) + 1)
            self._rows[row] = self._transformer.forward(torch.tensor([token]), cache, start=len(cache))[0]
        self.sizes.append(len(ids))
        return self._rows[: len(ids)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"stop": ["e"]},
        {"banned": ["a", "e"]},
        {"thoughts": True},
        {"thoughts": True, "constraint": Constraint("choice", "yes\nno")},
        {"stop": [40, 50, 60, 70, 80]},
    ],
    ids=["plain", "stop", "banned", "thoughts", "constraint", "stop ids"],
)
def test_together_in_one_pass_each_is_what_it_would_be_alone(engine: LocalEngine, change: dict[str, Any]) -> None:
    """The host draws, as it does where chances are asked for."""
    if change.get("thoughts"):
        limit = Thoughts(ThinkingMarks("<x>", "</x>", opened=True), "", 5, tuple(engine.encode("</x>")))
        change = {**change, "thoughts": limit}
    request = dataclasses.replace(GenerationRequest(PROMPT, WARM, max_new_tokens=40, alternatives=1), **change)
    parts = engine._parts
    generator, passes = parts.scheduler, Passes(parts.transformer)
    rules = DeviceRules(generator._plans.vocabulary)
    together = BatchedHostDraws(cast("DecodeGraphs", passes), rules)
    alone_ = {seed: alone(engine, request, seed) for seed in range(5)}
    generator._sources._together = together
    try:
        found = ends(engine.generate_several(request, range(5)))
    finally:
        generator._sources._together = None
    for seed, wanted in alone_.items():
        assert found[seed].token_ids == wanted.token_ids
        assert found[seed].text == wanted.text
    assert together._open == []
    # No token is fed that nobody asked for, and all that wait go together.
    drawn = sum(len(one.token_ids) for one in found.values())
    assert sum(passes.sizes) <= drawn
    if not change:
        assert passes.sizes == [5] * 39


class Drawing:
    """Passes of `DecodeGraphs` that draw as the device does, and feed themselves."""

    def __init__(self, transformer: Transformer, sampling: SamplingSettings) -> None:
        self._transformer, self._sampling = transformer, sampling
        self._rings = [TokenRing(pinned=False) for _ in range(8)]
        self.sizes: list[int] = []
        self.begun: list[int] = []

    def begin_rows(self, rows: Sequence[DecodeRow]) -> None:
        self._rows = rows
        self._fed = [(row.context[-1], len(row.context) - 1, row.draws.c_draw()) for row in rows]
        for ring in self._rings:
            ring.clear()
        self.begun.append(len(rows))

    def launch(self) -> None:
        self.sizes.append(len(self._rows))
        for slot, (row, (token, position, draw)) in enumerate(zip(self._rows, self._fed, strict=True)):
            assert position < row.sequence.capacity
            logits = self._transformer.forward(torch.tensor([token]), row.sequence, start=position)[0]
            cumulative = probabilities(logits, self._sampling).cumsum(0)
            share = cumulative[-1] * (uniform_bits(draw.seed, draw.index, attempt=draw.attempt) / 2**53)
            drawn = int(torch.searchsorted(cumulative, share, right=True))
            draw.index, draw.sequence = draw.index + 1, draw.sequence + 1
            self._rings[slot].words[draw.sequence % 64] = draw.sequence << 32 | DRAWN << 24 | drawn
            self._fed[slot] = drawn, position + 1, draw

    def row_ring(self, row: int) -> TokenRing:
        return self._rings[row]

    def check(self) -> None:
        """No card fails here."""

    def running(self) -> bool:
        return False


@contextmanager
def drawing(engine: LocalEngine, sampling: SamplingSettings = WARM) -> Iterator[Drawing]:
    """The engine's answers are drawn on the device."""
    generator, step = engine._parts.scheduler, Drawing(engine._parts.transformer, sampling)
    generator._sources._ahead = BatchedRunAhead(step, DeviceRules(generator._plans.vocabulary))
    try:
        yield step
    finally:
        generator._sources._ahead = None


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"stop": ["e"]},
        {"banned": ["a", "e"]},
        {"thoughts": True},
        {"stop": [40, 50, 60, 70, 80]},
        {"stop": [40, 50, 60, 70, 80], "banned": ["e"], "thoughts": True},
    ],
    ids=["plain", "stop", "banned", "thoughts", "stop ids", "all"],
)
@pytest.mark.sweep(3)
def test_drawn_on_the_device_each_is_what_it_would_be_alone(engine: LocalEngine, change: dict[str, Any]) -> None:
    """One pass is under way while the host reads the one before, whatever the answers come to."""
    if change.get("thoughts"):
        change["thoughts"] = Thoughts(ThinkingMarks("<x>", "</x>", opened=True), "", 5, tuple(engine.encode("</x>")))
    request = dataclasses.replace(GenerationRequest(PROMPT, WARM, max_new_tokens=60), **change)
    wanted = {seed: alone(engine, request, seed) for seed in range(6)}
    with drawing(engine) as step:
        found = ends(engine.generate_several(request, range(6)))
        again = ends(engine.generate_several(request, range(6)))
    for seed, one in wanted.items():
        assert found[seed].token_ids == again[seed].token_ids == one.token_ids
        assert (found[seed].text, found[seed].reason) == (one.text, one.reason)
    # The last of all goes on by itself, which is faster where the device has a step for one.
    assert sum(one.stats.decode_path == "run-ahead" for one in found.values()) >= 4
    assert engine._parts.scheduler._sources._ahead is None
    if not change:
        assert step.sizes == [6] * 59 * 2
        assert step.begun == [6, 6]


def test_two_passes_are_under_way_when_the_first_has_read_the_one_before(engine: LocalEngine) -> None:
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=30)
    with drawing(engine) as step:
        launched = [
            len(step.sizes)
            for told in engine.generate_several(request, range(3))
            if isinstance(told, OneOfSeveral) and isinstance(told.event, TextDelta)
        ]
    # Behind the first tokens, which the host draws, nothing is under way yet; the last pass is the last that is wanted.
    assert launched[:9] == [0, 0, 0, 3, 3, 3, 4, 4, 4]
    assert launched[-1] == 29


def test_who_has_no_room_for_what_runs_ahead_stands_still(folder: Path) -> None:
    """As `test_what_ends_leaves_its_room_to_the_others`."""
    small = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1280, cache_tokens=1280)
    request = GenerationRequest(PROMPT, WARM)
    with drawing(small):
        found = ends(small.generate_several(request, SEEDS[:2]))
    assert [one.reason for one in found.values()] == ["context_full"] * 2
    for index, one in found.items():
        assert len(one.token_ids) == 1280 - len(PROMPT)
        assert alone(small, request, SEEDS[index]).token_ids == one.token_ids


@pytest.mark.parametrize("case", range(12))
@pytest.mark.sweep(5)
def test_answers_that_go_back_take_no_pass_beyond_their_end(engine: LocalEngine, case: int) -> None:
    """Of a prompt that ends where a page does nearly; a pass that has no room fails in `Drawing`."""
    chosen = random.Random(case)
    count, length = chosen.choice([3, 4, 6, 8]), chosen.choice([226, 227, 228])
    seeds = [chosen.randrange(10**6) for _ in range(count)]
    request = GenerationRequest(
        list(range(10, 10 + length)), WARM, max_new_tokens=30, banned=["a", "e", "ti", "or"][: 1 + case % 4]
    )
    with drawing(engine) as step:
        found = ends(engine.generate_several(request, seeds))
    for index, seed in enumerate(seeds):
        assert found[index].token_ids == alone(engine, request, seed).token_ids
    assert len(step.begun) > 1
    # What is computed in vain: a token for each time that one goes back or ends.
    assert sum(step.sizes) <= sum(len(one.token_ids) for one in found.values()) + 2 * count * len(step.begun)


class Scripted(Drawing):
    """Says the same digit, and now and then, in turns, the first two say what is banned."""

    def __init__(self, engine: LocalEngine, banned: int, digit: int) -> None:
        super().__init__(engine._parts.transformer, WARM)
        self._banned, self._digit = banned, digit
        self.deepest = 0

    def launch(self) -> None:
        self.sizes.append(len(self._rows))
        for slot, (row, (token, position, draw)) in enumerate(zip(self._rows, self._fed, strict=True)):
            assert position < row.sequence.capacity
            self._transformer.forward(torch.tensor([token]), row.sequence, start=position)
            at = {0: 1, 1: 5}.get(draw.seed)
            goes_back = at is not None and draw.index % 8 == at and draw.attempt <= draw.index // 8
            drawn = self._banned if goes_back else self._digit
            draw.index, draw.sequence = draw.index + 1, draw.sequence + 1
            self._rings[slot].words[draw.sequence % 64] = draw.sequence << 32 | DRAWN << 24 | drawn
            self._fed[slot] = drawn, position + 1, draw


def test_who_falls_behind_catches_up(folder: Path) -> None:
    """Two go back by turns, which the third never does: what it has not read must not grow."""
    engine = load(folder, device="cpu", kv_cache="fp16", max_seq_len=2048, cache_tokens=256 * 40)
    texts = {index: engine.decode([index]) for index in range(20, 380)}
    banned = next(index for index, text in texts.items() if len(text) >= 2 and text.isascii() and text.isalpha())
    digit = next(index for index, text in texts.items() if len(text) == 1 and text.isascii() and text.isdigit())
    generator, step = engine._parts.scheduler, Scripted(engine, banned, digit)
    generator._sources._ahead = BatchedRunAhead(step, DeviceRules(generator._plans.vocabulary))
    request = GenerationRequest(PROMPT[:20], WARM, max_new_tokens=300, banned=[texts[banned]])
    deepest = 0
    for told in engine.generate_several(request, [0, 1, 2]):
        deepest = max([deepest, *(one.unread for one in generator._sources._ahead._open)])
        last = told
    assert isinstance(last, OneOfSeveral)
    assert isinstance(last.event, Finished)
    assert len(step.begun) > 40
    assert deepest <= 3
    assert generator._sources._ahead._formed == []


def test_a_report_that_never_comes_ends_that_request_alone(engine: LocalEngine) -> None:
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=12)
    with drawing(engine) as step:
        work, launches = step.launch, count()
        step.launch = lambda: None if next(launches) == 2 else work()  # type: ignore[method-assign]
        with pytest.raises(ModelError, match="without a token"):
            list(engine.generate_several(request, SEEDS))
        found = ends(engine.generate_several(request, SEEDS))
    assert found[0].token_ids == alone(engine, request, SEEDS[0]).token_ids


def test_a_newer_request_shares_the_passes_of_what_the_device_draws(engine: LocalEngine) -> None:
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=300)
    with drawing(engine):
        events = engine.generate_several(request, SEEDS)
        told = [next(events) for _ in range(20)]
        assert isinstance(told[-1], OneOfSeveral)
        short = dataclasses.replace(request, max_new_tokens=9)
        found = ends(engine.generate_several(short, SEEDS))
        rest = ends(iter([*told, *events]))
    for index, seed in enumerate(SEEDS):
        assert found[index].token_ids == alone(engine, short, seed).token_ids
        assert rest[index].token_ids == alone(engine, request, seed).token_ids


def test_what_the_host_has_to_know_is_not_drawn_ahead(engine: LocalEngine) -> None:
    with drawing(engine, SamplingSettings(1.0, mirostat_tau=3.0)) as step:
        same(engine, GenerationRequest(PROMPT, WARM, max_new_tokens=9, alternatives=2))
        same(engine, GenerationRequest(PROMPT, SamplingSettings(1.0, mirostat_tau=3.0), max_new_tokens=9))
        same(engine, GenerationRequest(PROMPT, WARM, max_new_tokens=9, constraint=Constraint("regex", "[a-z]+")))
    assert step.sizes == []


def test_room_is_not_booked_for_what_may_be_said(folder: Path) -> None:
    small = load(folder, device="cpu", max_seq_len=2048, cache_tokens=256 * 12)
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=1700)
    told = (one.index for one in small.generate_several(request, SEEDS[:2]) if isinstance(one, OneOfSeveral))
    assert set(islice(told, 20)) == {0, 1}


def test_what_ends_leaves_its_room_to_the_others(folder: Path) -> None:
    """Five pages: both begin, the second stands still when they are used up, and goes on when the first has ended."""
    small = load(folder, device="cpu", kv_cache="fp32", max_seq_len=1280, cache_tokens=1280)
    request = GenerationRequest(PROMPT, WARM)
    found = ends(small.generate_several(request, SEEDS[:2]))
    assert [one.reason for one in found.values()] == ["context_full"] * 2
    for index, one in found.items():
        assert len(one.token_ids) == 1280 - len(PROMPT)
        by_itself = alone(small, request, SEEDS[index])
        assert by_itself.token_ids == one.token_ids
        assert (by_itself.stats.rows, by_itself.stats.exact) == (1, True)
        # What stood still had some of its tokens read again, in other sums.
        assert (one.stats.rows, one.stats.exact) == (2, index == 0)


def test_with_guidance_they_come_one_behind_the_other(engine: LocalEngine) -> None:
    lean = dataclasses.replace(WARM, guidance_scale=1.5)
    request = GenerationRequest(PROMPT, lean, max_new_tokens=6, guidance_ids=PROMPT[:50])
    same(engine, request, SEEDS[:2])


def test_without_room_for_all_the_last_ones_wait(folder: Path) -> None:
    small = load(folder, device="cpu", max_seq_len=512, cache_tokens=768)
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=60)
    turns = [one.index for one in small.generate_several(request, SEEDS) if isinstance(one, OneOfSeveral)]
    assert turns.index(3) > turns.index(1) + 50
    same(small, request)


@pytest.mark.parametrize("kind", ["q4", "fp8"])
def test_in_few_bits_each_is_an_answer(kind: str) -> None:
    engine = load(bundled_model(), device="cpu", kv_cache=kind)
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=20, min_new_tokens=20)
    found = ends(engine.generate_several(request, SEEDS))
    assert [len(found[index].token_ids) for index in range(4)] == [20] * 4
    assert len({one.token_ids for one in found.values()}) == 4
    assert not any(one.stats.exact for one in found.values())
    assert alone(engine, request, SEEDS[0]).stats.exact


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers see 256 tokens."""
    path = tmp_path_factory.mktemp("narrow")
    save_random_llama(path, max_position_embeddings=2048)
    edit_json(path / "config.json", architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=256)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path


def test_a_model_with_windows_answers_as_well(narrow: Path) -> None:
    """Behind a prompt that is longer than a window, until nothing of that is seen any more."""
    engine = load(narrow, device="cpu", max_seq_len=1024, cache_tokens=256 * 48)
    assert engine._parts.cache.has_windows
    request = GenerationRequest([11 + 7 * place % 300 for place in range(400)], WARM, max_new_tokens=300)
    wanted = {seed: alone(engine, request, seed) for seed in range(6)}
    together = [one.index for one in engine.generate_several(request, range(6)) if isinstance(one, OneOfSeveral)]
    assert together[:12] == [*range(6), *range(6)]
    with drawing(engine) as step:
        found = ends(engine.generate_several(request, range(6)))
    assert step.sizes == [6] * 299
    assert {seed: one.token_ids for seed, one in found.items()} == {seed: one.token_ids for seed, one in wanted.items()}


def test_without_memory_for_the_windows_of_all_the_last_ones_wait(narrow: Path) -> None:
    engine = load(narrow, device="cpu", max_seq_len=2048, cache_tokens=256 * 15)
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=400)
    wanted = {seed: alone(engine, request, seed).token_ids for seed in range(6)}
    told = [one for one in engine.generate_several(request, range(6)) if isinstance(one, OneOfSeveral)]
    assert [one.index for one in told].index(5) > 100
    assert {index: one.token_ids for index, one in ends(iter(told)).items()} == wanted


def test_cancelled_ones_all_say_so(engine: LocalEngine) -> None:
    events = engine.generate_several(GenerationRequest(PROMPT, WARM, max_new_tokens=300), SEEDS)
    found, count = {}, 0
    for told in events:
        if isinstance(told, OneOfSeveral):
            count += 1
            if count == 20:
                events.cancel()
            if isinstance(told.event, Finished):
                found[told.index] = told.event
    assert {one.reason for one in found.values()} == {"cancelled"}
    assert len(found) == 4
    assert all(len(one.token_ids) < 10 for one in found.values())


def test_closing_gives_the_pages_back_and_a_newer_request_ends_none(engine: LocalEngine) -> None:
    request = GenerationRequest(PROMPT, WARM, max_new_tokens=300)
    events = engine.generate_several(request, SEEDS)
    for told in events:
        if isinstance(told, OneOfSeveral):
            break
    assert len({page for page in engine._parts.cache.pool.listed if page.users}) > 2
    wanted = alone(engine, request, 3)
    assert next(events)
    events.close()
    assert len({page for page in engine._parts.cache.pool.listed if page.users}) <= 3
    assert alone(engine, request, 3).token_ids == wanted.token_ids


def test_what_one_of_them_said_is_found_again(engine: LocalEngine) -> None:
    found = ends(engine.generate_several(GenerationRequest(PROMPT, WARM, max_new_tokens=50), [21, 22, 23]))
    for one in found.values():
        # The last token was drawn and not fed.
        assert engine.cached_tokens([*PROMPT, *one.token_ids]) == len(PROMPT) + 49


@pytest.mark.parametrize("count", [0, 9])
def test_no_more_than_eight(engine: LocalEngine, count: int) -> None:
    with pytest.raises(RequestError, match="there can be 1 to 8"):
        engine.generate_several(GenerationRequest(PROMPT), [None] * count)


# The pass of a token of each sequence, by the reference of the kernels.


@pytest.fixture(scope="module", params=["exl2", "gptq"])
def quantized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Transformer:
    path: Path = written(request.param, tmp_path_factory.mktemp("model"), tied=False)
    one_order_for_gate_and_up(path)
    return open_quantized(path)


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
def test_a_pass_of_a_token_of_each_sequence_is_a_step_of_each(quantized: Transformer) -> None:
    cache: KVSequence = new_cache(quantized, 1500, "q8")
    cache.close()
    lengths = (250, 40, 300)
    texts = [torch.randint(391, (length,), generator=torch.Generator().manual_seed(length)) for length in lengths]
    beside = [KVSequence(cache.cache) for _ in texts]
    for one, ids in zip(beside, texts, strict=True):
        one.reserve(len(ids) + 1)
        quantized.forward(ids, one, start=0)
        one.extend(ids.tolist())

    def run(chain: DecodePlan, token: Sequence[int], position: Sequence[int]) -> Tensor:
        chain.token[:] = torch.tensor(token)
        chain.position[:] = torch.tensor(position)
        for job in chain.jobs(tables="own" if len(token) > 1 else "shared"):
            job.launch(dependent=False)
        return chain.logits.clone()

    alone = []
    for place, one in enumerate(beside):
        step = DecodePlan(quantized, one.cache, ReferenceKernels(), splits=3)
        step.tables.show(one.cache.tables, [one.row])
        alone.append(run(step, [place + 7], [len(one)]))
    together = DecodePlan(quantized, cache.cache, ReferenceKernels(), splits=3, rows=3)
    together.tables.show(cache.cache.tables, [one.row for one in beside])
    found = run(together, [7, 8, 9], [len(one) for one in beside])
    assert relative_error(found, torch.cat(alone)) < 1e-3
    together.tables.show(cache.cache.tables, [beside[0].row, beside[0].row, beside[2].row])
    mixed = run(together, [7, 8, 9], [len(one) for one in beside])
    assert relative_error(mixed[1], alone[1][0]) > 1e-2
    assert relative_error(mixed[2], alone[2][0]) < 1e-3
