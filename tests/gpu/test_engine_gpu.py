"""The engine on a GPU through plain torch: against the CPU, `transformers` and the format's vectors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine import Finished, GenerationRequest, LocalEngine, ModelError, SamplingSettings, TextDelta, load
from exlchat.engine.formats import exl2
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.random_models import save_random_llama
from tests.shared_data import DATA, needs_shared

EXL2 = DATA / "tiny-llama-exl2-4.0bpw"


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(DATA / "tiny-llama-exl2-4.0bpw-expected.safetensors")


@pytest.fixture(scope="module")
def engine() -> LocalEngine:
    return load(EXL2, device="cuda")


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


@needs_shared
def test_dequantize_bit_for_bit() -> None:
    vectors = load_file(DATA / "dequantize_vectors.safetensors", device="cuda")
    cases = {name.split(".")[1] for name in vectors if name.startswith("exl2.")}
    assert cases
    for case in cases:
        tensors = {name: vectors[f"exl2.{case}.{name}"] for name in exl2.TENSORS}
        wanted = vectors[f"exl2.{case}.dequantized"]
        assert torch.equal(exl2.dequantize(tensors).view(torch.int16), wanted.view(torch.int16)), case


@needs_shared
@pytest.mark.parametrize("steps", [[128], [50, 1, 77], [1] * 128], ids=["one shot", "chunks", "token by token"])
def test_float32_logits_equal_transformers(steps: list[int], expected: dict[str, torch.Tensor]) -> None:
    transformer = open_transformer(EXL2, torch.float32, "cuda")
    ids = [int(token) for token in expected["input_ids"]]
    assert relative_error(logits_in_steps(transformer, ids, steps), expected["logits_exl2_model"]) < 1e-3


@needs_shared
@pytest.mark.parametrize("steps", [[128], [1] * 128], ids=["one shot", "token by token"])
def test_float16_logits_are_near(steps: list[int], expected: dict[str, torch.Tensor]) -> None:
    transformer = open_transformer(EXL2, torch.float16, "cuda")
    ids = [int(token) for token in expected["input_ids"]]
    found = logits_in_steps(transformer, ids, steps, kv_cache="fp16")
    assert relative_error(found, expected["logits_exl2_model"]) < 5e-3


@needs_shared
def test_greedy_tokens_and_the_reuse_of_the_cache(engine: LocalEngine, expected: dict[str, torch.Tensor]) -> None:
    assert engine.info.dtype == "float16"
    ids = [int(token) for token in expected["input_ids"]][:32]
    first = finish(engine.generate(GenerationRequest(ids, max_new_tokens=48)))
    assert list(first.token_ids) == expected["greedy_ids_exl2_model"][32:].tolist()
    again = finish(engine.generate(GenerationRequest([*ids, *first.token_ids[:20]], max_new_tokens=28)))
    assert again.stats.cached_tokens == 51
    assert again.token_ids == first.token_ids[20:]


@needs_shared
def test_cancel_and_seed(engine: LocalEngine, expected: dict[str, torch.Tensor]) -> None:
    ids = [int(token) for token in expected["input_ids"]][:32]
    request = GenerationRequest(ids, SamplingSettings(temperature=1.0), max_new_tokens=30, seed=4)
    assert finish(engine.generate(request)).token_ids == finish(engine.generate(request)).token_ids
    events = engine.generate(GenerationRequest(ids))
    for event in events:
        if isinstance(event, TextDelta):
            events.cancel()
            break
    assert finish(events).stats.new_tokens == 1


@torch.inference_mode()
@pytest.mark.parametrize("tied", [False, True])
def test_random_models_equal_transformers(tied: bool, tmp_path: Path) -> None:
    model = save_random_llama(tmp_path, tie_word_embeddings=tied, hidden_size=72, head_dim=18, num_key_value_heads=1)
    ids = torch.randint(384, (1, 90), generator=torch.Generator().manual_seed(0))
    wanted = model(ids).logits[0]
    transformer = open_transformer(tmp_path, torch.float32, "cuda")
    assert relative_error(logits_in_steps(transformer, ids[0].tolist(), [40, 1, 49]), wanted) < 1e-4


def test_bfloat16_model_computes_in_bfloat16(tmp_path: Path) -> None:
    save_random_llama(tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    assert load(tmp_path, device="cuda").info.dtype == "bfloat16"


def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    save_random_llama(tmp_path)
    with pytest.raises(ModelError, match="counted from 0"):
        load(tmp_path, device="cuda:99")
