"""Short prompts through captured graphs: against the CPU's float32, at any place, beside steps and other threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

from exlchat.engine import GenerationRequest, load
from exlchat.engine.decode.chunk_attention import chunk_attention
from exlchat.engine.decode.fit import why_no_prompts
from exlchat.engine.decode.prompts import PromptGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.rows import kernel_rows
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.operations import KernelOperations
from exlchat.engine.layers.transformer import Transformer
from exlchat.ext.ops import Kernels
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import save_case
from tests.engine.test_settled_chain import NAMES, quantize
from tests.gpu.test_families import LIMIT, MORE, gentle
from tests.gpu.test_quantized_engine import finish, open_quantized

# Each size twice and more, so that it is computed, captured and replayed, at other places and with other fillings;
# pages end at 256.
STEPS = [50, 20, 60, 17, 12, 49, 64, 15, 22, 3, 97, 100]
IDS = torch.randint(384, (sum(STEPS),), generator=torch.Generator().manual_seed(4)).tolist()


def in_steps(transformer: Transformer, kernels: Kernels, kv_cache: str) -> tuple[torch.Tensor, PromptGraphs]:
    """float32 logits of all tokens."""
    cache = KVCache(
        transformer.spec, kv_cache, transformer.dtype, transformer.device, len(IDS), rows=kernel_rows(kernels)
    )
    attention = chunk_attention(transformer, cache, kernels)
    sequence, prompts, found = KVSequence(cache), PromptGraphs(transformer, attention), []
    for step in STEPS:
        start = len(sequence)
        sequence.reserve(start + step)
        ids = IDS[start : start + step]
        features = prompts.features(torch.tensor(ids, device="cuda"), sequence, start=start)
        found.append(transformer.logits(features).cpu())
        sequence.extend(ids)
    return torch.cat(found), prompts


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["exl2", "gptq, act-order"])
@pytest.mark.parametrize("name", [*MORE, *NAMES])
def test_captured_prompts_of_every_architecture(kernels: Kernels, name: str, kind: str, tmp_path: Path) -> None:
    save_case(gentle(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "written")
    transformer = open_quantized(path, kernels)
    transformer._operations = KernelOperations(kernels)
    if why_no_prompts(transformer) is not None:
        pytest.skip("a mixture")
    found, prompts = in_steps(transformer, kernels, "fp16")
    assert set(prompts.captured) == {16, 32, 64, 128}
    assert relative_error(found, logits_in_steps(open_transformer(path), IDS, [len(IDS)])) < LIMIT


@torch.inference_mode()
@pytest.mark.parametrize("kv_cache", ["fp16", "fp8", "q8", "q6", "q4"])
def test_captured_prompts_over_every_cache(kernels: Kernels, kv_cache: str, tmp_path: Path) -> None:
    """Against the same passes one by one: what is stored in few bits is the same but for the rounding of products."""
    save_case(gentle("qwen3"), tmp_path / "dense")
    transformer = open_quantized(quantize("exl2", tmp_path / "dense", tmp_path / "written"), kernels)
    transformer._operations = KernelOperations(kernels)
    found, _ = in_steps(transformer, kernels, kv_cache)
    again, _ = in_steps(transformer, kernels, kv_cache)
    assert torch.equal(found, again)
    assert relative_error(found, logits_in_steps(transformer, IDS, STEPS, kv_cache=kv_cache)) < 2e-2


def test_turns_of_a_conversation(tmp_path: Path, build_cache: Path) -> None:
    """Turns of one length are captured at the second one, and what that took is given back with the model."""
    save_case(gentle("llama"), tmp_path / "dense")
    path = quantize("exl2", tmp_path / "dense", tmp_path / "written")

    def ask(engine: object, prompt: list[int]) -> list[int]:
        return list(finish(engine.generate(GenerationRequest(prompt, max_new_tokens=4))).token_ids)  # type: ignore[attr-defined]

    engine = load(path, device="cuda", build_cache=build_cache)
    prompt: list[int] = []
    for turn in range(5):
        prompt = prompt + IDS[30 * turn : 30 * turn + 30]
        answer = ask(engine, prompt)
        prompt = prompt + answer
    assert engine._parts.scheduler.runner.step is not None
    assert 32 in engine._parts.scheduler.runner.step.prompts.captured
    before = torch.cuda.memory_allocated()
    engine.unload()
    del engine
    assert torch.cuda.memory_allocated() < before


@torch.inference_mode()
def test_another_thread_may_use_the_card_meanwhile(kernels: Kernels, tmp_path: Path) -> None:
    save_case(gentle("llama"), tmp_path / "dense")
    transformer = open_quantized(quantize("exl2", tmp_path / "dense", tmp_path / "written"), kernels)
    transformer._operations = KernelOperations(kernels)
    done, began = threading.Event(), threading.Event()

    def other() -> None:
        while not done.is_set():
            torch.ones(1000, device="cuda").sum().item()
            began.set()

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert began.wait(30)
        _, prompts = in_steps(transformer, kernels, "q8")
    finally:
        done.set()
        thread.join()
    assert prompts.captured
