"""The two prepared models against logits and greedy tokens that `transformers` gave."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine import Finished, GenerationRequest, LocalEngine, PrefillProgress, load
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.shared_data import DATA, needs_shared

pytestmark = needs_shared

EXL2 = DATA / "tiny-llama-exl2-4.0bpw"
MODELS = [(DATA / "tiny-llama", "logits_fp16_model"), (EXL2, "logits_exl2_model")]


@functools.cache
def expected() -> dict[str, torch.Tensor]:
    return load_file(DATA / "tiny-llama-exl2-4.0bpw-expected.safetensors")


def input_ids() -> list[int]:
    return [int(token) for token in expected()["input_ids"]]


@pytest.mark.parametrize(("path", "name"), MODELS, ids=["fp16", "exl2"])
@pytest.mark.parametrize("steps", [[128], [50, 1, 77], [1] * 128], ids=["one shot", "chunks", "token by token"])
def test_logits_equal_transformers(path: Path, name: str, steps: list[int]) -> None:
    found = logits_in_steps(open_transformer(path), input_ids(), steps)
    assert relative_error(found, expected()[name]) < 1e-3


@pytest.mark.parametrize(("path", "name"), MODELS, ids=["fp16", "exl2"])
def test_engine_logits_equal_transformers(path: Path, name: str) -> None:
    found = load(path, device="cpu").logits(input_ids())
    assert found.dtype == torch.float32
    assert relative_error(found, expected()[name]) < 1e-3


@pytest.mark.parametrize("kv_cache", ["fp16", "fp32"])
@pytest.mark.parametrize("prefill_chunk", [1, 5, 256])
@pytest.mark.sweep(3)
def test_greedy_tokens_equal_transformers(kv_cache: str, prefill_chunk: int) -> None:
    engine = load(EXL2, device="cpu", kv_cache=kv_cache, prefill_chunk=prefill_chunk)
    events = list(engine.generate(GenerationRequest(input_ids()[:32], max_new_tokens=48)))
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.reason == "max_new_tokens"
    assert list(last.token_ids) == expected()["greedy_ids_exl2_model"][32:].tolist()
    done = [event.done for event in events if isinstance(event, PrefillProgress)]
    assert done == sorted(done)
    assert done[0] == 0
    assert done[-1] == 32


def test_perplexity_of_held_out_text_is_the_published_one() -> None:
    """../shared/README.md: 18.84 for the 4.0 bpw weights on the first 16 rows of 1024 ids; two rows here."""
    ids = load_file(DATA / "tiny-llama-eval-ids.safetensors")
    rows = next(iter(ids.values())).reshape(-1, 1024)[:16]
    engine: LocalEngine = load(EXL2, device="cpu")
    losses = []
    for row in rows.tolist():
        logits = engine.logits(row)
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(row[1:])))
    assert torch.stack(losses).mean().exp().item() == pytest.approx(18.84, abs=0.02)
