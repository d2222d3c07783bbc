"""What a prompt costs when something of it was computed before: by counting tokens, and by comparing what comes out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from exlchat.engine import Finished, GenerationRequest, LocalEngine, load
from tests.engine.counting import PassedTokens
from tests.random_models import edit_json, save_random_llama

SYSTEM = random.Random(0).choices(range(384), k=300)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path, max_position_embeddings=4096)
    for file in ("generation_config.json", "config.json"):
        edit_json(path / file, eos_token_id=None)
    edit_json(path / "tokenizer_config.json", eos_token=None)
    return path


def open_engine(model_dir: Path, **options: object) -> LocalEngine:
    return load(model_dir, device="cpu", kv_cache="fp32", prefill_chunk=64, **options)  # type: ignore[arg-type]


@pytest.fixture
def engine(model_dir: Path) -> LocalEngine:
    return open_engine(model_dir)


class Computed:
    """Counts tokens that pass through the decoder."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._passed = PassedTokens(monkeypatch)

    def by(self, engine: LocalEngine, prompt: list[int], new_tokens: int = 1) -> int:
        """Tokens of a prompt that were computed. The answer's own: all but the last."""
        before = self._passed.count
        self.answer = finish(engine.generate(GenerationRequest(prompt, max_new_tokens=new_tokens)))
        prefilled = self._passed.count - before - (new_tokens - 1)
        assert self.answer.stats.prompt_tokens - self.answer.stats.cached_tokens == prefilled
        return prefilled


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    return Computed(monkeypatch)


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


def ids(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(384), k=count)


def test_a_second_turn_costs_what_is_new(engine: LocalEngine, computed: Computed) -> None:
    first = SYSTEM + ids(1, 40)
    assert computed.by(engine, first, 30) == 340
    reply = list(computed.answer.token_ids)
    # The last token of a reply that was cut at its limit has not been fed yet.
    assert computed.by(engine, first + reply + ids(2, 25), 5) == 1 + 25


def test_one_of_the_last_prompts_again_costs_nothing_and_an_older_one_a_token(
    engine: LocalEngine, computed: Computed
) -> None:
    first, *others = (SYSTEM + ids(seed, 40) for seed in range(1, 6))
    assert computed.by(engine, first, 30) == 340
    assert computed.by(engine, first, 30) == 0
    for other in others[:3]:
        assert computed.by(engine, other, 30) == 40
    assert computed.by(engine, first, 30) == 0
    assert computed.by(engine, others[3], 30) == 40
    assert computed.by(engine, first, 30) == 1


def test_an_edit_costs_what_stands_behind_it(engine: LocalEngine, computed: Computed) -> None:
    conversation = SYSTEM + ids(1, 900)
    assert computed.by(engine, conversation) == 1200
    edited = conversation[:777] + ids(2, 30) + conversation[800:]
    assert computed.by(engine, edited) == len(edited) - 777
    # And the other branch is still there, and the edited one too.
    assert computed.by(engine, conversation + ids(3, 10)) == 10
    assert computed.by(engine, edited + ids(4, 10)) == 10


def test_conversations_share_how_they_begin(engine: LocalEngine, computed: Computed) -> None:
    assert computed.by(engine, SYSTEM + ids(1, 40)) == 340
    assert computed.by(engine, SYSTEM + ids(2, 50)) == 50
    assert computed.by(engine, SYSTEM + ids(3, 60)) == 60
    report = engine.cache_report()
    # The page that all three share counts once; each has one of its own behind it.
    assert (report.running, report.idle) == (2, 2)
    assert report.found_tokens == 600
    assert report.prompt_tokens == 340 + 350 + 360


def test_another_persona_and_back(engine: LocalEngine, computed: Computed) -> None:
    first, other = SYSTEM + ids(1, 500), ids(9, 200)
    assert computed.by(engine, first) == 800
    assert computed.by(engine, other + ids(2, 10)) == 210
    assert computed.by(engine, first + ids(3, 20)) == 20


def test_beginnings_of_conversations_are_kept_longest(model_dir: Path, computed: Computed) -> None:
    engine = open_engine(model_dir, max_seq_len=2048, cache_tokens=2048)
    finish(engine.generate(GenerationRequest(SYSTEM + ids(1, 10), max_new_tokens=1, beginning=300)))
    for seed in range(2, 12):
        computed.by(engine, ids(seed, 700))
    assert engine.cached_tokens(SYSTEM) == 300
    assert computed.by(engine, SYSTEM + ids(20, 50)) == 50
    assert engine.cached_tokens(ids(2, 700)) == 0


def test_what_will_be_cached_can_be_asked_before(engine: LocalEngine, computed: Computed) -> None:
    prompt = SYSTEM + ids(1, 500)
    assert engine.cached_tokens(prompt) == 0
    computed.by(engine, prompt)
    assert engine.cached_tokens(prompt) == 800
    assert engine.cached_tokens([*prompt[:500], 1, 2, 3]) == 500


@pytest.mark.parametrize("cut", [64, 256, 512, 640])
def test_reuse_gives_the_same_logits_where_chunks_fall_alike(model_dir: Path, cut: int) -> None:
    prompt = ids(1, 900)
    fresh, used = open_engine(model_dir), open_engine(model_dir)
    finish(used.generate(GenerationRequest(prompt[:cut] + ids(2, 300), max_new_tokens=1)))
    answers = [finish(engine.generate(GenerationRequest(prompt, max_new_tokens=40))) for engine in (fresh, used)]
    assert [answer.stats.cached_tokens for answer in answers] == [0, cut]
    assert answers[0].token_ids == answers[1].token_ids
    logits = [engine._parts.scheduler._maker.reader._last[-1].logits for engine in (fresh, used)]
    assert torch.equal(*logits)


@pytest.mark.parametrize("cut", [1, 100, 255, 257, 700])
def test_reuse_gives_nearly_the_same_logits_elsewhere(model_dir: Path, cut: int) -> None:
    prompt = ids(1, 900)
    fresh, used = open_engine(model_dir), open_engine(model_dir)
    finish(used.generate(GenerationRequest(prompt[:cut] + ids(2, 300), max_new_tokens=1)))
    for engine in (fresh, used):
        finish(engine.generate(GenerationRequest(prompt, max_new_tokens=1)))
    one, other = (engine._parts.scheduler._maker.reader._last[-1].logits for engine in (fresh, used))
    assert float((one - other).norm() / one.norm()) < 1e-5


def test_a_cancelled_prompt_keeps_what_was_computed(engine: LocalEngine, computed: Computed) -> None:
    prompt = ids(1, 900)
    events = engine.generate(GenerationRequest(prompt, max_new_tokens=1))
    for done, _ in enumerate(events):
        if done == 5:
            events.cancel()
    assert computed.by(engine, prompt) == 900 - 5 * 64


def test_a_restart_with_the_disk_costs_a_token(model_dir: Path, tmp_path: Path, computed: Computed) -> None:
    conversation = SYSTEM + ids(1, 700)
    disk = {"page_folder": tmp_path, "page_bytes": 10**9}
    before = open_engine(model_dir, **disk)
    assert computed.by(before, conversation, 20) == 1000
    whole = computed.answer
    before._parts.archive.note_prefill(1000, 1000.0)  # type: ignore[union-attr]
    before.close()
    after = open_engine(model_dir, **disk)
    assert computed.by(after, conversation, 20) == 1
    assert computed.answer.token_ids == whole.token_ids
    disk_report = after.cache_report().disk
    assert disk_report is not None
    assert (disk_report.files, disk_report.restored_tokens, disk_report.damaged) == (4, 1019, 0)
    # What was said last is there as well, to the token.
    third = open_engine(model_dir, **disk)
    assert computed.by(third, [*conversation, *whole.token_ids[:19], 1, 2, 3]) == 3


def test_what_is_not_to_be_kept_is_not_written_but_serves_in_memory(
    model_dir: Path, tmp_path: Path, computed: Computed
) -> None:
    engine = open_engine(model_dir, page_folder=tmp_path, page_bytes=10**9)
    prompt = SYSTEM + ids(1, 700)
    request = GenerationRequest(prompt, max_new_tokens=20, keep_pages=False)
    finish(engine.generate(request))
    list(engine.generate_several(request, [1, 2]))
    assert computed.by(engine, [*prompt, 1, 2, 3]) == 3
    engine.close()
    # What was written is of the request that may be kept: 1,004 tokens, and none of the answers.
    report = engine.cache_report().disk
    assert report is not None
    assert report.written == 4
    private = open_engine(model_dir, page_folder=tmp_path / "none", page_bytes=10**9)
    finish(private.generate(request))
    list(private.generate_several(request, [1, 2]))
    private.close()
    assert not [file for file in (tmp_path / "none").rglob("*") if file.is_file() and file.stat().st_size]


def test_nothing_comes_back_for_another_model_or_another_cache(
    model_dir: Path, tmp_path: Path, computed: Computed
) -> None:
    prompt = SYSTEM + ids(1, 700)
    first = open_engine(model_dir, page_folder=tmp_path, page_bytes=10**9)
    computed.by(first, prompt)
    first.close()
    other_dir = save_other(tmp_path / "other")
    for engine in (
        load(other_dir, device="cpu", kv_cache="fp32", page_folder=tmp_path, page_bytes=10**9),
        load(model_dir, device="cpu", kv_cache="fp16", page_folder=tmp_path, page_bytes=10**9),
    ):
        assert computed.by(engine, prompt) == 1000


def save_other(path: Path) -> Path:

    save_random_llama(path, max_position_embeddings=4096, seed=99)
    return path
