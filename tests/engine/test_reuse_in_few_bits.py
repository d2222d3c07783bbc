"""Second turns behind a cache in few bits: the same text as when everything is computed anew."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine import Finished, GenerationRequest, LocalEngine, load
from tests.shared_data import DATA, needs_shared

KINDS = ("fp8", "q8", "q6", "q4")
CONVERSATIONS = 20


def finish(engine: LocalEngine, prompt: list[int]) -> Finished:
    *_, last = engine.generate(GenerationRequest(prompt, max_new_tokens=16))
    assert isinstance(last, Finished)
    return last


@needs_shared
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sweep(1)
def test_the_same_greedy_text_in_second_turns(kind: str) -> None:
    """Of 20 conversations, each with one of the kinds.

    What is cached was rounded when it left its page, as it is when all is computed at once.
    """
    rows = next(iter(load_file(DATA / "tiny-llama-eval-ids.safetensors").values())).view(-1, 1024)
    used, fresh = (load(DATA / "tiny-llama-exl2-4.0bpw", device="cpu", kv_cache=kind) for _ in range(2))
    errors = []
    for number in range(KINDS.index(kind), CONVERSATIONS, len(KINDS)):
        first = rows[number].tolist()[: 150 + 17 * number]
        reply = list(finish(used, first).token_ids)
        second = [*first, *reply, *rows[number + 30].tolist()[:50]]
        found = finish(used, second)
        assert found.stats.cached_tokens == len(first) + len(reply) - 1
        assert found.token_ids == finish(fresh, second).token_ids, number
        logits = [engine._parts.scheduler._maker.reader._last[-1].logits for engine in (used, fresh)]
        errors.append(float((logits[0] - logits[1]).norm() / logits[1].norm()))
    # A sum in another order may change a code by one.
    assert float(torch.tensor(errors).median()) < 1e-4
