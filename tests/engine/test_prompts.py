"""Short prompts in passes that are filled up to a size, as they are computed before they are captured."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from exlchat.engine.decode import prompts as prompts_module
from exlchat.engine.decode.fit import why_no_prompts
from exlchat.engine.decode.prompts import PromptGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.parallel.sums import SumsOverCards
from exlchat.ext.exchange import Exchange, Peers
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, save_case
from tests.engine.reference_kernels import Meeting, ReferenceJob
from tests.engine.test_step_chain import CPU, over_cards, over_cards_together
from tests.random_models import save_random_llama

# Sizes that differ, each once: the second time they would be captured.
STEPS = [10, 50, 20, 1]
IDS = torch.randint(90, (sum(STEPS),), generator=torch.Generator().manual_seed(3)).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.context is None])
def test_a_filled_pass_gives_what_the_transformer_does(name: str, cards: int, tmp_path: Path) -> None:
    save_case(CASES[name], tmp_path)
    transformer = open_transformer(tmp_path)
    wanted = logits_in_steps(transformer, IDS, STEPS)
    if cards > 1:
        layers = len(transformer.layers)
        transformer = over_cards(transformer, 1, layers - 1)
    sequence = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, transformer.device, len(IDS)))
    prompts, found = PromptGraphs(transformer), []
    for step in STEPS:
        start = len(sequence)
        sequence.reserve(start + step)
        ids = IDS[start : start + step]
        found.append(transformer.logits(prompts.features(torch.tensor(ids), sequence, start=start)))
        sequence.extend(ids)
    assert relative_error(torch.cat(found), wanted) < 1e-5


@torch.inference_mode()
def test_a_prompt_before_leaves_nothing_behind(tmp_path: Path) -> None:
    save_case(CASES["llama"], tmp_path)
    transformer = open_transformer(tmp_path)

    def last(prompts: PromptGraphs, ids: list[int]) -> torch.Tensor:
        sequence = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, transformer.device, 64))
        sequence.reserve(len(ids))
        return prompts.forward(torch.tensor(ids), sequence, start=0)

    used = PromptGraphs(transformer)
    last(used, IDS[:64])
    assert torch.equal(last(used, IDS[:20]), last(PromptGraphs(transformer), IDS[:20]))


@torch.inference_mode()
@pytest.mark.parametrize("counts", [(1, 3), (3, 1), (1, 2, 1)])
def test_over_cards_a_prompt_has_the_bits_of_one(counts: tuple[int, ...], tmp_path: Path) -> None:
    save_random_llama(tmp_path, num_hidden_layers=4)
    whole = open_transformer(tmp_path)

    def said(transformer: Transformer) -> torch.Tensor:
        sequence = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, transformer.device, 64))
        prompts = PromptGraphs(transformer)
        found = []
        for start, end in ((0, 20), (20, 60)):
            sequence.reserve(end)
            found.append(prompts.forward(torch.tensor(IDS[start:end]), sequence, start=start))
            sequence.extend(IDS[start:end])
        return torch.cat(found)

    assert torch.equal(said(over_cards(whole, *counts)), said(whole))


@torch.inference_mode()
@pytest.mark.parametrize("cards", [1, 2])
@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])
def test_what_is_captured_is_what_was_computed(
    name: str, cards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def captured(work: partial[None], _: object) -> SimpleNamespace:
        def replay() -> None:
            ((before, _),), _size, stream, _places = work.args
            if before is None:
                # A graph begins with the residual stream as it stands in memory.
                stream.added = stream.after = stream.normed = None
            work()

        return SimpleNamespace(replay=replay)

    monkeypatch.setattr(prompts_module, "captured", captured)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    save_case(CASES[name], tmp_path)
    whole = open_transformer(tmp_path)
    split = over_cards(whole, 1, len(whole.layers) - 1) if cards > 1 else whole
    prompts = PromptGraphs(split)
    for begin in range(4):  # computed, captured, and what was captured
        ids = torch.tensor(IDS[begin : begin + 20])
        found, wanted = [], []
        for runs, kept in ((prompts, found), (whole, wanted)):
            sequence = KVSequence(KVCache(whole.spec, "fp32", whole.dtype, whole.device, 64))
            sequence.reserve(20)
            kept.append(runs.forward(ids, sequence, start=0))
        assert relative_error(torch.cat(found), torch.cat(wanted)) < 1e-5
    assert prompts.captured == (32,)


class Barred:
    """Sums over two cards whose graphs run beside each other; what is not captured goes by turns."""

    def __init__(self) -> None:
        self._barrier, self._parts, self.counted = Barrier(2, timeout=60), [torch.zeros(0)] * 2, [0, 0]
        self._beside: list[Thread] = []
        self._meeting = Meeting()

    def exchange_sums(self, values: torch.Tensor, exchange: Exchange) -> ReferenceJob:
        def work() -> None:
            if not self._beside:
                self._meeting.come(exchange, values, lambda parts: values.copy_(parts[0] + parts[1]))
                return
            self._parts[exchange.peers.card] = values.clone()
            self._barrier.wait()
            values.copy_(self._parts[0] + self._parts[1])
            self._barrier.wait()

        return ReferenceJob(work, meets=True)

    def count_exchanges(self, peers: Peers, count: int) -> ReferenceJob:
        self.counted[peers.card] = count
        return ReferenceJob(lambda: None)

    def replay(self, work: Callable[[], object]) -> None:
        """The first card's runs on until the second one's has."""
        if not self._beside:
            self._beside.append(Thread(target=work))
            self._beside[0].start()
            return
        work()
        self._beside[0].join()
        self._beside.clear()


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "gemma2", "cohere"])
def test_cards_that_compute_together_add_up_in_their_graphs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: Any = Barred()

    def captured(work: partial[None], _: object) -> SimpleNamespace:
        def run() -> None:
            with torch.inference_mode():
                ((before, _),), _size, stream, _places = work.args
                if before is None:  # a graph begins with the residual stream as it stands in memory
                    stream.added = stream.after = stream.normed = None
                work()

        return SimpleNamespace(replay=lambda: kernels.replay(run))

    monkeypatch.setattr(prompts_module, "captured", captured)
    monkeypatch.setattr(torch.cuda, "Stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())
    save_case(CASES[name], tmp_path)
    whole = open_transformer(tmp_path)
    split = over_cards_together(whole, 1.0, 1.0)
    split.sums = [SumsOverCards(kernels, sums.peers) for sums in split.sums]
    prompts = PromptGraphs(split)
    for begin in range(4):  # computed, captured, and what was captured
        ids = torch.tensor(IDS[begin : begin + 20])
        found = []
        for runs, of in ((prompts, split), (whole, whole)):
            sequence = KVSequence(KVCache(whole.spec, "fp32", whole.dtype, CPU, 64, split=of.split))
            sequence.reserve(20)
            found.append(runs.forward(ids, sequence, start=0))
        assert relative_error(*found) < 1e-5
        assert prompts.captured == ((32,) if begin else ())
    # Halves of a layer that read the same are added up at once.
    assert kernels.counted == [1 if name == "cohere" else 2] * 2


def few_layers_of_many_tokens(path: Path) -> Transformer:
    save_random_llama(path, max_position_embeddings=4096)
    return open_transformer(path)


def asked(prompts: PromptGraphs, transformer: Transformer, tokens: int) -> None:
    sequence = KVSequence(KVCache(transformer.spec, "fp32", transformer.dtype, CPU, 4096, split=transformer.split))
    sequence.reserve(tokens)
    prompts.features(torch.zeros(tokens, dtype=torch.int64), sequence, start=0)


@torch.inference_mode()
def test_whole_chunks_over_several_cards_are_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each has some layers, chunks of 2,048 tokens alone: products of another number of rows have other bits."""
    seen: list[int] = []
    for name in ("_run", "_run_together"):
        monkeypatch.setattr(PromptGraphs, name, lambda _self, _cards, size, *_: seen.append(size))
    monkeypatch.setattr(PromptGraphs, "_capture", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    one = few_layers_of_many_tokens(tmp_path)
    split, together = over_cards(one, 1, len(one.layers) - 1), over_cards_together(one, 1.0, 1.0)
    for transformer, wanted in ((one, []), (split, [2048, 2048]), (together, [384, 384, 2048, 2048, 2048])):
        prompts = PromptGraphs(transformer)
        for tokens in (300, 300, 2047, 2048, 2048):
            asked(prompts, transformer, tokens)
        assert seen == wanted
        seen.clear()


@torch.inference_mode()
def test_without_memory_for_whole_chunks_they_go_through_the_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PromptGraphs, "_capture", full)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    one = few_layers_of_many_tokens(tmp_path)
    transformer = over_cards(one, 1, len(one.layers) - 1)
    prompts = PromptGraphs(transformer)
    for _ in range(3):
        asked(prompts, transformer, 2048)
    assert prompts.captured == ()
    asked(prompts, transformer, 20)
    with pytest.raises(torch.OutOfMemoryError):
        asked(prompts, transformer, 20)


def test_mixtures_go_through_the_transformer(tmp_path: Path) -> None:
    save_case(CASES["mixtral"], tmp_path)
    assert why_no_prompts(open_transformer(tmp_path)) == "the host asks which experts compute a prompt"
    save_case(CASES["llama"], tmp_path)
    assert why_no_prompts(open_transformer(tmp_path)) is None
