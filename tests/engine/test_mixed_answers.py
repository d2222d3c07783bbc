"""Answers of unlike kinds beside each other over the owner of captured graphs: each is what it is alone."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from exlchat.engine import GREEDY, Finished, GenerationRequest
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.schedule.scheduler import Scheduler
from exlchat.engine.text.tokenizer import Tokenizer
from exlchat.llm.port import Failed, Handle
from exlchat.llm.request import Rank
from tests.engine.test_graphs import IDS, Kernels, on_cpu, on_one_card

__all__ = ["on_cpu", "on_one_card"]
MANY = 30


class Words:
    """As much of a tokenizer as answers need."""

    fallback = None

    @staticmethod
    def decode(ids: list[int]) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


@pytest.fixture(params=[60, 7], ids=["room", "few pages"])
def scheduler(
    request: pytest.FixtureRequest, on_one_card: Transformer, on_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> Scheduler:
    idle = SimpleNamespace(query=lambda: True, cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: idle)
    # Short prompts are not captured here.
    monkeypatch.setattr("exlchat.engine.decode.prompts.SIZES", ())
    cache = KVCache(on_one_card.spec, "fp16", torch.float16, torch.device("cpu"), 512, tokens=request.param * 256)
    graphs = DecodeGraphs(on_one_card, cache, Kernels(), dependent=False)  # type: ignore[arg-type]
    tokenizer: Tokenizer = Words()  # type: ignore[assignment]
    return Scheduler(on_one_card, tokenizer, cache, (), 64, graphs=graphs)


def some_request(choice: random.Random) -> GenerationRequest:
    """Drawn by the device, by the host, as guesses are checked; short and long; of any rank."""
    begun = IDS[: choice.randrange(38)] * choice.choice((1, 1, 1, 8))
    asked = GenerationRequest(
        [choice.randrange(390), choice.randrange(390), *begun],
        GREEDY,
        max_new_tokens=choice.choice((1, 2, 4, 9, 20, 40)),
        rank=choice.choice((Rank.CHAT, Rank.API, Rank.BULK, Rank.BULK, Rank.IDLE)),
        draft=choice.choice(("auto", "off")),
    )
    kind = choice.random()
    if kind < 0.2:
        return replace(asked, alternatives=choice.choice((1, 3)))
    if kind < 0.3:
        return replace(asked, stop=[choice.choice("xyzuv")])
    if kind < 0.45:
        return replace(asked, banned=[choice.choice("abcdefgh")])
    return asked


def stop_and_go(handles: list[Handle], choice: random.Random) -> None:
    """Whoever reads an answer cannot keep up for a while."""
    if handles and choice.random() < 0.01:
        choice.choice(handles).rest()
    for handle in handles:
        if choice.random() < 0.3:
            handle.go_on()


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_each_is_what_it_is_alone(scheduler: Scheduler, seed: int) -> None:
    """They come, are given up, cannot be told what was made for a while, and stand still for want of pages."""
    choice = random.Random(seed)
    asked: list[GenerationRequest] = []
    handles: list[Handle] = []
    ends: dict[int, object] = {}
    given_up: set[int] = set()
    most = choice.choice((3, 7, 12, 25))

    def ask() -> None:
        number = len(asked)
        asked.append(some_request(choice))

        def take(event: object) -> None:
            if isinstance(event, Finished | Failed):
                ends[number] = event

        handles.append(scheduler.add(asked[number], take))

    while len(ends) < MANY:
        if len(asked) < MANY and len(asked) - len(ends) < most and choice.random() < 0.4:
            ask()
        if handles and choice.random() < 0.02 and (number := choice.randrange(len(handles))) not in ends:
            given_up.add(number)
            handles[number].cancel()
        stop_and_go(handles, choice)
        scheduler.step()
    for number, end in ends.items():
        assert isinstance(end, Finished), end
        alone = list(scheduler.generate(replace(asked[number], rank=Rank.CHAT)))[-1]
        assert isinstance(alone, Finished)
        assert end.token_ids == alone.token_ids[: len(end.token_ids)], asked[number]
        assert number in given_up or (end.reason, end.text) == (alone.reason, alone.text)
