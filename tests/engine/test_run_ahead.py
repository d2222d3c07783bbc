"""Running ahead on the CPU: a thread plays the device and computes each step with the model itself."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from exlchat.engine import (
    GREEDY,
    Finished,
    GenerationRequest,
    LocalEngine,
    ModelError,
    SamplingSettings,
    TextDelta,
    load,
)
from exlchat.engine.decode.prompts import PromptGraphs
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling import NotNumbersError, probabilities
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.sampling.distribution import Moment, distribution, drawn, next_surprise
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.ext.functions import CDraw
from exlchat.ext.philox import uniform_bits
from exlchat.ext.sampling import DRAWN, NOT_NUMBERS, TokenRing
from tests.endless_model import save_llama_without_end
from tests.engine.retired import retired
from tests.engine.test_several import Passes

PROMPT = list(range(10, 40))
WARM = SamplingSettings(1.5, top_k=200, top_p=0.98)


class Device:
    """`DecodeGraphs` for one answer, whose steps run in a thread, in order, each as long as `seconds`.

    Args:
        draw: token and status from the token before, its position and the draw.
    """

    def __init__(self, draw: Callable[[int, int, CDraw], tuple[int, int]], seconds: float = 0.0) -> None:
        self.ring = TokenRing(pinned=False)
        self.capacity = 64
        self.wide = SimpleNamespace(most=8)
        self.prompts: PromptGraphs
        self.feed_each: Callable[[Sequence[int], Sequence[KVSequence]], torch.Tensor]
        self.launches = self.reported = self.grown = 0
        self.failure: str | None = None
        self._draw_token, self._seconds = draw, seconds
        self._work: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._done = 0
        threading.Thread(target=self._run, daemon=True).start()

    def begin(self, sequence: KVSequence, context: Sequence[int], draws: DeviceDraws) -> None:
        self.sequence = sequence
        assert self.reported == self.launches
        self.began = draws
        self._token, self.position, self._draw = context[-1], len(context) - 1, draws.c_draw()

    def grow(self, length: int) -> None:
        self.grown += 1
        self.capacity = length + 3

    def launch(self) -> None:
        self.launches += 1
        self._work.put(True)

    def mu(self) -> float:
        assert self.reported == self.launches
        return float(self._draw.mu)

    def check(self) -> None:
        """No card fails here."""

    def running(self) -> bool:
        if self.failure:
            raise RuntimeError(f"{self.failure}\nand a long explanation")
        return self._done < self.launches

    def _run(self) -> None:
        while self._work.get():
            time.sleep(self._seconds)
            if self.failure is None:
                assert self.position < self.capacity
                self._token, status = self._draw_token(self._token, self.position, self._draw)
                self.position += 1
                self._draw.index += 1
                self._draw.sequence += 1
                self.reported += 1
                word = self._draw.sequence << 32 | status << 24 | self._token
                self.ring.words[self._draw.sequence % len(self.ring.words)] = word
            self._done += 1


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama_without_end(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine(model_dir: Path) -> LocalEngine:
    return load(model_dir, device="cpu", kv_cache="fp32", prefill_chunk=8)


@pytest.fixture
def other(model_dir: Path) -> LocalEngine:
    """The same model, with nothing in its cache."""
    return load(model_dir, device="cpu", kv_cache="fp32", prefill_chunk=8)


def with_device(engine: LocalEngine, device: Device) -> Scheduler:
    parts = engine._parts
    device.prompts = PromptGraphs(parts.transformer)
    return Scheduler(parts.transformer, parts.tokenizer, parts.cache, (), 8, graphs=device)


def model_device(engine: LocalEngine, sampling: SamplingSettings, seconds: float = 0.0) -> Device:
    """A device that computes with the engine's model and cache."""
    parts = engine._parts

    def draw(token: int, position: int, state: CDraw) -> tuple[int, int]:
        sequence = device.sequence
        sequence.reserve(position + 1)
        logits = parts.transformer.forward(torch.tensor([token]), sequence, start=position)[-1]
        if state.greedy:
            return int(logits.argmax()), DRAWN
        if "mirostat" in sampling.steps:
            found = distribution(logits.double(), sampling, sampling.steps, Moment(state.mu, 1.0, None))
            assert found.steered is not None
            token = drawn(found.left, uniform_bits(state.seed, state.index) / 2**53)
            p = float(found.steered.p[found.steered.ids == token])
            state.mu = next_surprise(state.mu, p, sampling.mirostat_tau, sampling.mirostat_eta)
            return token, DRAWN
        cumulative = probabilities(logits, sampling).cumsum(0)
        share = cumulative[-1] * (uniform_bits(state.seed, state.index) / 2**53)
        return int(torch.searchsorted(cumulative, share, right=True)), DRAWN

    device = Device(draw, seconds)
    return device


def counting(engine: LocalEngine, seconds: float = 0.0) -> tuple[Device, Scheduler]:
    """Each token is the one before plus one, whatever the model says."""
    device = Device(lambda token, _position, _draw: ((token + 1) % 384, DRAWN), seconds)
    return device, with_device(engine, device)


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "drawn"])
def test_both_paths_give_the_same_answer_and_the_same_cache(
    engine: LocalEngine, other: LocalEngine, sampling: SamplingSettings
) -> None:
    request = GenerationRequest(PROMPT, sampling, max_new_tokens=25, seed=77)
    waiting = finish(engine.generate(request))
    generator = with_device(other, model_device(other, sampling))
    ahead = finish(generator.generate(request))
    assert (ahead.token_ids, ahead.text, ahead.reason) == (waiting.token_ids, waiting.text, waiting.reason)
    assert retired(other._parts.cache).ids == retired(engine._parts.cache).ids
    assert (waiting.stats.decode_path, ahead.stats.decode_path) == ("synchronous", "run-ahead")


def test_mirostat_goes_on_behind_the_token_that_the_host_drew(engine: LocalEngine) -> None:
    """Its state moves by how surprising that one was."""
    steered = SamplingSettings(1.2, mirostat_tau=3.0, mirostat_eta=0.2)
    found = set()
    for seed in range(5):
        device, generator = counting(engine)
        first = finish(generator.generate(GenerationRequest(PROMPT, steered, max_new_tokens=3, seed=seed))).token_ids[0]
        logits = engine._parts.transformer.forward(torch.tensor(PROMPT), None)[-1]
        p = probabilities(logits, steered)[first]
        assert device.began.index == 1
        assert device.began.c_draw().mu == pytest.approx(6.0 - 0.2 * (-math.log2(p) - 3.0), abs=1e-4)
        found.add(device.began.mu)
    assert len(found) > 1


@pytest.mark.parametrize("tokens", [1, 2, 9])
@pytest.mark.parametrize("passes_beside", [1, 2, 6])
def test_mirostat_is_beside_others_what_it_is_alone(
    engine: LocalEngine, other: LocalEngine, tokens: int, passes_beside: int
) -> None:
    """The device has drawn ahead when others come; the host goes on where it was, and the device where the host was."""
    steered = SamplingSettings(1.2, mirostat_tau=3.0, mirostat_eta=0.2)
    request = GenerationRequest(PROMPT, steered, max_new_tokens=60, seed=3)
    beside = GenerationRequest(PROMPT[:20], WARM, max_new_tokens=1 + passes_beside, seed=4, alternatives=1)
    wanted, wanted_beside = (finish(other.generate(one)).token_ids for one in (request, beside))
    device = model_device(engine, steered)
    passes = Passes(engine._parts.transformer)
    device.feed_each = passes.feed_each
    generator = with_device(engine, device)
    events = generator.generate(request)
    for _ in range(2):
        told = 0
        while told < tokens:
            event = next(events)
            told += len(event.token_ids) if isinstance(event, TextDelta) else 0
        launches = device.launches
        assert finish(generator.generate(beside)).token_ids == wanted_beside
    assert 2 in passes.sizes
    assert finish(events).token_ids == wanted
    assert device.launches > launches + 25


def test_the_next_answer_uses_what_the_device_has_cached(engine: LocalEngine, other: LocalEngine) -> None:
    generator = with_device(engine, model_device(engine, GREEDY))
    first = finish(generator.generate(GenerationRequest(PROMPT, max_new_tokens=10)))
    longer = GenerationRequest([*PROMPT, *first.token_ids, 50, 51], max_new_tokens=8)
    second = finish(generator.generate(longer))
    assert second.stats.cached_tokens == len(PROMPT) + 9
    assert finish(other.generate(longer)).token_ids == second.token_ids


def test_no_more_steps_than_tokens_are_wanted(engine: LocalEngine) -> None:
    for wanted in (0, 1, 2, 7):
        device, generator = counting(engine)
        last = finish(generator.generate(GenerationRequest(PROMPT, max_new_tokens=wanted)))
        assert (last.reason, len(last.token_ids)) == ("max_new_tokens", wanted)
        assert device.launches == max(0, wanted - 1)


def test_a_stop_costs_one_step_in_vain(engine: LocalEngine) -> None:
    device, generator = counting(engine)
    last = finish(generator.generate(GenerationRequest(PROMPT, max_new_tokens=6)))
    stop = last.token_ids[-1] + 1
    device, generator = counting(engine)
    last = finish(generator.generate(GenerationRequest(PROMPT, stop=[stop])))
    assert (last.reason, len(last.token_ids)) == ("stop_token", 6)
    assert device.launches == 6 + 1
    assert len(retired(engine._parts.cache)) == len(PROMPT) + 6


def test_the_device_works_while_the_consumer_does_not(engine: LocalEngine) -> None:
    device, generator = counting(engine)
    device.capacity = 100
    events = generator.generate(GenerationRequest(PROMPT, max_new_tokens=50))
    deltas = 0
    for event in events:
        if isinstance(event, TextDelta):
            deltas += 1
            assert device.launches == min(deltas + 1, 49)  # this token is read, two more are under way


def test_pages_are_taken_while_steps_are_under_way(engine: LocalEngine) -> None:
    device, generator = counting(engine, seconds=0.001)
    device.capacity = len(PROMPT) + 2
    last = finish(generator.generate(GenerationRequest(PROMPT, max_new_tokens=20)))
    assert list(last.token_ids) == list(range(last.token_ids[0], last.token_ids[0] + 20))
    assert device.grown == 5
    assert device.position == len(PROMPT) + 19


def test_the_context_ends_the_answer(model_dir: Path) -> None:
    engine = load(model_dir, device="cpu", max_seq_len=40)
    device, generator = counting(engine)
    last = finish(generator.generate(GenerationRequest(PROMPT)))
    assert (last.reason, len(last.token_ids), device.launches) == ("context_full", 10, 9)


def test_cancel_ends_within_a_token_and_waits_for_the_device(engine: LocalEngine) -> None:
    device, generator = counting(engine, seconds=0.002)
    deltas = 0
    running = generator.generate(GenerationRequest(PROMPT))
    for event in running:
        deltas += isinstance(event, TextDelta)
        if deltas == 4:
            running.cancel()
    assert isinstance(event, Finished)
    assert (event.reason, len(event.token_ids)) == ("cancelled", 4)
    assert device.reported == device.launches
    assert device.launches <= 4 + 1


def test_closing_the_iterator_waits_for_the_device(engine: LocalEngine) -> None:
    device, generator = counting(engine, seconds=0.01)
    events = generator.generate(GenerationRequest(PROMPT))
    for event in events:
        if isinstance(event, TextDelta):
            break
    events.close()  # type: ignore[attr-defined]
    assert device.reported == device.launches


def test_logits_that_are_no_numbers_are_an_error_of_the_model(engine: LocalEngine) -> None:
    device = Device(lambda token, position, _draw: (0, NOT_NUMBERS if position == len(PROMPT) + 2 else DRAWN))
    events = with_device(engine, device).generate(GenerationRequest(PROMPT))
    with pytest.raises(ModelError, match="not numbers; the weights are damaged") as error:
        list(events)
    assert isinstance(error.value.__cause__, NotNumbersError)
    assert device.reported == device.launches


def test_a_device_that_fails_is_one_line(engine: LocalEngine) -> None:
    device, generator = counting(engine, seconds=0.001)
    events = generator.generate(GenerationRequest(PROMPT))
    while not isinstance(next(events), TextDelta):
        pass
    device.failure = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(ModelError) as error:
        list(events)
    assert str(error.value) == (
        "the GPU failed in a decode step (CUDA error: an illegal memory access was encountered); start exlchat again"
    )


def test_a_step_that_reports_nothing_is_an_error_and_no_endless_wait(engine: LocalEngine) -> None:
    device, generator = counting(engine)
    device.launch = lambda: None  # type: ignore[method-assign]
    with pytest.raises(ModelError, match="without a token"):
        list(generator.generate(GenerationRequest(PROMPT)))
