"""What `exlchat bench` measures, on models that are small enough for a test."""

from __future__ import annotations

import gc
import json
import mmap
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from exlchat import paths
from exlchat.engine import GenerationRequest, LocalEngine, ModelError, load
from exlchat.engine.bench import measure
from exlchat.engine.bench.batches import batch_benchmark
from exlchat.engine.bench.figures import BenchMachine, BenchSettings, Figure, Memory, Model, Report, Skipped
from exlchat.engine.bench.measure import EndlessCheckpoint, MemoryProbe, benchmark, cache_types, copy_rates
from exlchat.engine.bench.mixes import MeanBits
from exlchat.engine.bench.random_checkpoint import RandomCheckpoint
from exlchat.engine.bench.shapes import named_shape
from exlchat.engine.schedule.admission import Admission
from exlchat.engine.schedule.work import Work
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.llm.sampling import GREEDY
from tests.random_models import edit_json, save_random_llama

CPU = torch.device("cpu")
SETTINGS = BenchSettings(
    device="cpu", kv_caches=("fp32",), contexts=(16, 64), runs=2, new_tokens=8, turn_cached=96, turn_new=5
)


@pytest.fixture(autouse=True)
def small_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.engine.bench.measure._COPY_BYTES", {"cpu": 2**24})


def random_model() -> Checkpoint:
    return RandomCheckpoint(named_shape("tiny-2layers"), MeanBits(4.1))


def run(
    settings: BenchSettings = SETTINGS, open_model: Callable[[], Checkpoint] = random_model
) -> tuple[Report, list[str]]:
    report = Report(settings)
    said: list[str] = []
    for result in benchmark(open_model, settings, said.append):
        report.add(result)
    return report, said


def test_everything_is_measured_so_often_and_in_this_order() -> None:
    report, said = run()
    assert [(figure.kind, figure.tokens) for figure in report.figures] == [
        ("load", 0),
        ("prefill", 16),
        ("decode", 16),
        ("sampled", 16),
        ("prefill", 64),
        ("decode", 64),
        ("turn", 96),
    ]
    assert all(len(figure.samples) == (1 if figure.kind == "load" else 2) for figure in report.figures)
    assert all(sample > 0 for figure in report.figures for sample in figure.samples)
    assert report.skipped == []
    assert len(report.memory) == 1
    assert "prefill of 64: run 2 of 2" in said
    assert "reading weights: 100 %" in said


def test_rows_are_measured_side_by_side_as_many_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[GenerationRequest] = []
    submit = LocalEngine.submit

    def noted(engine: LocalEngine, request: GenerationRequest, sink: Callable[..., None]) -> object:
        asked.append(request)
        return submit(engine, request, sink)

    monkeypatch.setattr(LocalEngine, "submit", noted)
    settings = replace(SETTINGS, contexts=(40,), rows=(1, 3, 12), runs=1)
    report = Report(settings)
    for result in batch_benchmark(random_model, settings, lambda _: None):
        report.add(result)
    assert [(one.kind, one.tokens, one.rows, len(one.samples)) for one in report.figures] == [
        ("batch", 40, rows, 1) for rows in (1, 3, 12)
    ]
    for one in report.figures:
        assert one.slowest is not None
        assert 0 < one.slowest <= one.median / one.rows * 1.001
    # All rows have prompts of their own, the same in the run that is not counted; every second is drawn with samplers.
    last = asked[-12:]
    assert len({tuple(one.prompt_ids) for one in last}) == 12
    assert [one.prompt_ids for one in asked[-24:-12]] == [one.prompt_ids for one in last]
    assert [one.sampling == GREEDY for one in last] == [True, False] * 6
    # A pass reads the weights once for all rows, and the cache of each.
    alone, beside = report.figures[0], report.figures[-1]
    assert alone.bytes_per_token is not None
    assert beside.bytes_per_token is not None
    assert beside.bytes_per_token < alone.bytes_per_token / 2
    assert report.rooms[0].rows > 12
    assert report.skipped == []


def test_no_row_waits_for_the_pages_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    has_pages = Admission._has_pages

    def noted(admission: Admission, work: Work, going: Sequence[Work]) -> bool:
        found.append(has_pages(admission, work, going))
        return found[-1]

    monkeypatch.setattr(Admission, "_has_pages", noted)
    list(batch_benchmark(random_model, replace(SETTINGS, contexts=(40,), rows=(12,), runs=1), lambda _: None))
    assert len(found) >= 2 * 11, "two runs, in which all but the first are asked of"
    assert all(found)


def test_rows_that_have_no_room_are_said_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exlchat.engine.bench.batches.usable_memory", lambda _: 2**23)
    settings = replace(SETTINGS, contexts=(40, 10**6), rows=(1, 500), runs=1)
    report = Report(settings)
    for result in batch_benchmark(random_model, settings, lambda _: None):
        report.add(result)
    assert [one.rows for one in report.figures] == [1]
    held = report.rooms[0].rows
    assert 1 <= held < 500
    assert report.skipped[0] == f"500 rows of 48 tokens, fp32 cache: {held} fit"
    assert report.skipped[1].startswith("rows of 1,000,000 tokens: the context is")


def test_each_type_of_cache_is_measured_and_what_they_share_only_once() -> None:
    report, _ = run(BenchSettings(device="cpu", contexts=(16,), runs=1, new_tokens=4, turn_cached=32, turn_new=2))
    kinds = [figure.kv_cache for figure in report.figures if figure.kind == "decode"]
    assert sorted(kinds) == ["fp16", "fp32", "fp8", "q4", "q6", "q8"]
    assert len([figure for figure in report.figures if figure.kind == "prefill"]) == 1
    sizes = {memory.kv_cache: memory.footprint.cache_per_token for memory in report.memory}
    assert sizes["fp32"] == 2 * sizes["fp16"]
    # Codes and a float16 scale for 32 of them.
    assert [sizes[kind] / sizes["fp16"] for kind in ("fp8", "q8", "q6", "q4")] == [8 / 16, 8.5 / 16, 6.5 / 16, 4.5 / 16]


def test_requests_are_what_the_figures_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[GenerationRequest, int]] = []
    original = measure._Bench._answer

    def watched(self: measure._Bench, prompt: list[int], new_tokens: int, sampling=GREEDY):  # type: ignore[no-untyped-def]
        stats = original(self, prompt, new_tokens, sampling)
        seen.append((GenerationRequest(prompt, sampling, max_new_tokens=new_tokens), stats.cached_tokens))
        return stats

    monkeypatch.setattr(measure._Bench, "_answer", watched)
    run()
    prefills = [cached for request, cached in seen if len(request.prompt_ids) == 64 and request.max_new_tokens == 1]
    assert prefills == [0, 0, 0]
    decodes = [cached for request, cached in seen if len(request.prompt_ids) == 64 and request.max_new_tokens == 8]
    assert decodes == [0, 64, 64]
    turns = [cached for request, cached in seen if len(request.prompt_ids) == 101]
    assert turns == [0, 96, 96]
    samplers = {request.sampling for request, _ in seen}
    assert samplers == {GREEDY, SETTINGS.sampling}


def test_contexts_that_do_not_fit_are_said_and_left_out(tmp_path: Path) -> None:
    save_random_llama(tmp_path, max_position_embeddings=64)
    settings = BenchSettings(device="cpu", kv_caches=("fp32",), contexts=(16, 60, 128), runs=1, new_tokens=8)
    report, _ = run(settings, lambda: EndlessCheckpoint(tmp_path))
    assert {figure.tokens for figure in report.figures if figure.kind == "decode"} == {16}
    assert report.skipped == ["60, 128 and 8 new tokens: the context is 64"]
    (turn,) = [figure for figure in report.figures if figure.kind == "turn"]
    assert turn.tokens == 8


def test_a_context_too_short_for_a_turn_is_said(tmp_path: Path) -> None:
    save_random_llama(tmp_path, max_position_embeddings=32)
    settings = BenchSettings(device="cpu", kv_caches=("fp32",), contexts=(8,), runs=1, new_tokens=4)
    report, _ = run(settings, lambda: EndlessCheckpoint(tmp_path))
    assert report.skipped == ["a turn of 50 tokens: the context is 32"]


def test_a_model_that_likes_to_stop_is_measured_to_the_end(tmp_path: Path) -> None:
    save_random_llama(tmp_path)
    every_id = list(range(384))
    edit_json(tmp_path / "config.json", eos_token_id=every_id)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": every_id}))
    assert load(tmp_path, device="cpu").info.stop_ids == tuple(every_id)
    report, _ = run(open_model=lambda: EndlessCheckpoint(tmp_path))
    assert report.find("decode", 16) is not None


def test_bytes_are_those_of_the_model() -> None:
    shape = named_shape("tiny-2layers")
    engine = load(random_model(), device="cpu", kv_cache="fp16")
    footprint = engine.footprint
    embedding = shape.vocab * shape.hidden
    # On a CPU all weights are written out in float32: layers, norms, embedding, head.
    assert footprint.weights == 4 * engine.info.parameters
    assert footprint.weights - footprint.weights_per_token == 4 * (embedding - shape.hidden)
    assert footprint.cache_per_token == 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim
    assert footprint.cache == footprint.cache_per_token * 3 * engine.info.max_seq_len


def test_a_tied_head_counts_once_but_is_read_for_every_token(tmp_path: Path) -> None:
    save_random_llama(tmp_path, tie_word_embeddings=True)
    engine = load(tmp_path, device="cpu")
    footprint = engine.footprint
    assert footprint.weights == 4 * engine.info.parameters
    # One row of the embedding is read beside the whole of it as the head.
    assert footprint.weights_per_token == footprint.weights + 4 * 64


def test_decode_counts_weights_and_the_cache_up_to_the_middle_of_the_run() -> None:
    report, _ = run()
    footprint = report.memory[0].footprint
    figure = report.find("decode", 64)
    assert figure is not None
    assert figure.bytes_per_token == footprint.weights_per_token + footprint.cache_per_token * 68
    assert figure.read_rate == pytest.approx(figure.median * figure.bytes_per_token)
    assert report.setting is not None
    assert report.of_copy(figure) == pytest.approx(figure.median * figure.bytes_per_token / report.setting.copy_rate)


def test_the_setting_and_the_model_come_first_and_are_true() -> None:
    results = benchmark(random_model, SETTINGS, lambda _text: None)
    setting, model = next(results), next(results)
    assert isinstance(setting, BenchMachine)
    assert isinstance(model, Model)
    assert (setting.device, setting.torch, setting.cuda) == ("cpu", torch.__version__, None)
    assert setting.threads == torch.get_num_threads()
    assert model.quantization.startswith("EXL2 4")
    assert model.made
    # Room for the longest of what is measured, and no more.
    assert model.max_seq_len == 96 + 5 + 1


def test_a_folder_is_not_made_and_keeps_its_name() -> None:
    guide = paths.bundled_model()
    report, _ = run(open_model=lambda: EndlessCheckpoint(guide))
    assert report.model is not None
    assert (report.model.name, report.model.made) == (guide.name, False)


def test_no_run_begins_when_the_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    original, now = LocalEngine.generate, 0.0

    def slow(self: LocalEngine, request: GenerationRequest):  # type: ignore[no-untyped-def]
        nonlocal now
        now += 0.05
        return original(self, request)

    def clock() -> float:
        """On a busy machine one run can take as long as all of them should."""
        nonlocal now
        now += 1e-6
        return now

    monkeypatch.setattr(LocalEngine, "generate", slow)
    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=clock))
    report, _ = run(replace(SETTINGS, seconds=0.01, runs=50))
    assert all(len(figure.samples) == 1 for figure in report.figures)
    report, _ = run(replace(SETTINGS, seconds=0.3, runs=50))
    prefill = report.find("prefill", 16)
    assert prefill is not None
    assert 1 < len(prefill.samples) < 8


def test_what_was_measured_before_an_error_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: measure._Bench) -> None:
        raise ModelError("no memory for a turn")

    monkeypatch.setattr(measure._Bench, "_turn", fail)
    report = Report(SETTINGS)
    results = benchmark(random_model, SETTINGS, lambda _text: None)
    with pytest.raises(ModelError, match="no memory for a turn"):
        deque(map(report.add, results))
    assert report.find("decode", 64) is not None


def test_types_of_cache() -> None:
    cuda = torch.device("cuda")
    assert set(cache_types(CPU, 64, ("all",))) == {"fp32", "fp16", "fp8", "q8", "q6", "q4"}
    assert cache_types(CPU, 64, ("auto", "fp16", "fp32")) == ("fp32", "fp16")
    assert cache_types(cuda, 128, ("auto",)) == ("fp16",)
    assert cache_types(cuda, 128, ("all",)) == ("fp16", "fp8", "q8", "q6", "q4")
    assert cache_types(cuda, 80, ("all",)) == ("fp16",)
    with pytest.raises(ModelError, match=r"kv_cache 'q3' is not known; there are fp32, .*auto and all"):
        cache_types(CPU, 64, ("fp16", "q3"))


def test_a_figure_s_middle_and_spread() -> None:
    figure = Figure("decode", "fp16", 128, (90.0, 100.0, 104.0), 2e9)
    assert figure.median == 100
    assert figure.spread == pytest.approx(0.07)
    assert figure.read_rate == 2e11


def test_a_report_as_json_holds_all_samples_and_derived_values() -> None:
    report, _ = run()
    report.complete = True
    content = json.loads(json.dumps(report.to_json()))
    assert content["complete"]
    decode = next(figure for figure in content["figures"] if figure["kind"] == "decode")
    assert len(decode["samples"]) == 2
    assert decode["unit"] == "tok/s"
    assert decode["decode_path"] == "synchronous"
    assert decode["of_copy"] > 0
    assert decode["median"] == pytest.approx(sum(decode["samples"]) / 2)
    assert content["setting"]["torch"] == torch.__version__
    assert content["settings"]["contexts"] == [16, 64]
    assert content["memory"][0]["footprint"]["weights"] > 0


def test_results_find_their_places() -> None:
    report = Report(SETTINGS)
    report.add(Skipped("nothing there"))
    report.add(Figure("decode", "fp16", 16, (100.0,), 1e9))
    report.add(Figure("sampled", "fp16", 16, (97.0,), 1e9))
    sampled = report.find("sampled", 16, "fp16")
    assert sampled is not None
    assert report.sampled_share(sampled) == pytest.approx(0.97)
    assert report.sampled_share(Figure("sampled", "q4", 16, (97.0,), 1e9)) is None
    assert report.of_copy(sampled) is None
    assert report.skipped == ["nothing there"]


def test_the_peak_of_memory_follows_what_is_taken_and_given_back() -> None:
    probe = MemoryProbe([CPU])
    gc.collect()  # what other tests left must not be given back meanwhile
    probe.restart()
    before = probe.peak
    # Of the system, not of what an allocator has kept.
    block = mmap.mmap(-1, 2**26)
    for page in range(0, 2**26, mmap.PAGESIZE):
        block[page] = 1
    assert probe.peak >= before + 60 * 2**20
    block.close()
    assert probe.peak >= before + 60 * 2**20
    probe.restart()
    assert probe.peak < before + 60 * 2**20
    assert probe.device_used is None


def test_memory_beyond_is_what_is_left_of_the_peak() -> None:
    report, _ = run()
    (memory,) = report.memory
    assert isinstance(memory, Memory)
    assert memory.beyond == memory.run_peak - memory.footprint.weights - memory.footprint.cache
    assert memory.load_peak > memory.footprint.weights


def test_a_copy_counts_what_is_read_and_what_is_written() -> None:
    rates = copy_rates(CPU)
    source, target = (torch.zeros(2**24, dtype=torch.uint8) for _ in range(2))
    target.copy_(source)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    # On a busy machine two measurements of the same thing differ, but not by an order of magnitude.
    assert 0.1 < max(rates) / (2 * source.numel() / min(seconds)) < 10
