"""Answers that the device draws beside others that the host draws, which come and end: each is what it is alone."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from exlchat.engine import GREEDY, Finished, GenerationRequest
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.engine.text.tokenizer import Tokenizer
from tests.engine.test_graphs import IDS, Kernels, on_cpu, on_one_card

__all__ = ["on_cpu", "on_one_card"]
LONG = 40


class Words:
    """As much of a tokenizer as answers need."""

    fallback = None

    @staticmethod
    def decode(ids: list[int]) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


@pytest.fixture
def scheduler(on_one_card: Transformer, on_cpu: None, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    idle = SimpleNamespace(query=lambda: True, cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: idle)
    cache = KVCache(on_one_card.spec, "fp16", torch.float16, torch.device("cpu"), 512, tokens=40 * 256)
    graphs = DecodeGraphs(on_one_card, cache, Kernels(), dependent=False)  # type: ignore[arg-type]
    tokenizer: Tokenizer = Words()  # type: ignore[assignment]
    return Scheduler(on_one_card, tokenizer, cache, (), 64, graphs=graphs)


def request(number: int, tokens: int) -> GenerationRequest:
    """Of every third the host has to know how likely its tokens are."""
    ids = [5 + number, *IDS[: 3 + number % 4]]
    return GenerationRequest(ids, GREEDY, max_new_tokens=tokens, alternatives=2 * (number % 3 == 1), draft="off")


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
def test_who_is_answered_all_along_is_not_touched_by_who_comes_and_ends(scheduler: Scheduler) -> None:
    ends: dict[int, Finished] = {}
    modes = []

    def ask(number: int, tokens: int) -> None:
        def take(event: object) -> None:
            if isinstance(event, Finished):
                ends[number] = event

        scheduler.add(request(number, tokens), take)

    ask(0, LONG)
    ask(2, LONG)
    for turn in range(400):
        if turn % 11 == 4 and turn < 100:
            ask(1 + 3 * turn, 2 + turn % 5)
            ask(2 + 3 * turn, 3 + turn % 4)
        if not scheduler.step():
            break
        modes.append(scheduler._mode)
    assert {"ahead", "together"} <= set(modes)
    assert len(ends) == 2 + 2 * 9
    for number, end in ends.items():
        alone = list(scheduler.generate(request(number, len(end.token_ids))))[-1]
        assert isinstance(alone, Finished)
        assert end.token_ids == alone.token_ids, number
