"""Answers of wide passes through the scheduler and the real owner of graphs, over references on the CPU."""

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
from exlchat.llm.port import Failed
from exlchat.llm.request import Rank
from tests.engine.test_graphs import IDS, Kernels, on_cpu, on_one_card, wide

__all__ = ["on_cpu", "on_one_card", "wide"]


class Words:
    """As much of a tokenizer as answers need."""

    fallback = None

    @staticmethod
    def decode(ids: list[int]) -> str:
        return "".join(chr(97 + token % 26) for token in ids)


@pytest.mark.usefixtures("decoded_once", "wide")
@torch.inference_mode()
@pytest.mark.parametrize("pages", [60, 18], ids=["room", "hardly a page more"])
def test_a_chat_beside_answers_of_which_one_follows_another(
    pages: int, on_one_card: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda _device: SimpleNamespace(query=lambda: True, cuda_stream=0)
    )
    cache = KVCache(on_one_card.spec, "fp16", torch.float16, torch.device("cpu"), 512, tokens=pages * 256)
    graphs = DecodeGraphs(on_one_card, cache, Kernels(), dependent=False)  # type: ignore[arg-type]
    tokenizer: Tokenizer = Words()  # type: ignore[assignment]
    scheduler = Scheduler(on_one_card, tokenizer, cache, (), 64, graphs=graphs)
    ends: dict[int, list[object]] = {}

    def ask(number: int, follow: int, rank: Rank = Rank.BULK, tokens: int = 0) -> None:
        ids = [5 + number % 300, *IDS[: 2 + number % 5]]

        def take(event: object) -> None:
            if isinstance(event, Finished | Failed):
                ends.setdefault(number, []).append(event)
                if follow:
                    ask(number + 100, follow - 1)

        wanted = tokens or 6 + number % 5
        asked = GenerationRequest(ids, GREEDY, max_new_tokens=wanted, rank=rank, alternatives=2 * (number % 5 == 4))
        scheduler.add(asked, take)

    for number in range(12):
        ask(number, 2)
    for turn in range(600):
        if turn == 30:
            ask(50, 0, Rank.CHAT, 25)
        if not scheduler.step():
            break
    assert len(ends) == 37
    for number, told in ends.items():
        (end,) = told
        assert isinstance(end, Finished), (number, end)
        assert len(end.token_ids) == (25 if number == 50 else 6 + number % 5)
        likeliest = tuple(one.top[0].token_id for one in end.chances)
        assert likeliest == (end.token_ids if number % 5 == 4 else ())
    monkeypatch.setattr(type(graphs.wide), "most", 8)
    alone = list(scheduler.generate(GenerationRequest([5 + 50, *IDS[: 2 + 50 % 5]], GREEDY, max_new_tokens=25)))[-1]
    assert isinstance(alone, Finished)
    (chat,) = ends[50]
    assert isinstance(chat, Finished)
    assert chat.token_ids == alone.token_ids
