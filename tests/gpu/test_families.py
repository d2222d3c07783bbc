"""Architectures beside Llama's through the kernels: the captured step, and prompts, against the CPU's float32."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from exlchat.engine import GenerationRequest, load
from exlchat.engine.decode.fit import why_not
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.layers.transformer import Transformer
from exlchat.ext.ops import Kernels
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, Case, save_case
from tests.engine.test_settled_chain import NAMES, quantize, wide
from tests.gpu.test_quantized_engine import finish, open_quantized, step_logits

MORE = ("mistral", "qwen2, upper windows, tied", "qwen3")
TOKENS = 300
IDS = torch.randint(384, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()
# What float16 between the products leaves of float32; the limit.
LIMIT = 2e-3
# Of a model with experts: where two of them have nearly the same score, rounding decides between them, and what they
# leave is seen by every later token. A random model's scores are closer than a trained one's. So few tokens are
# computed, and half of them have to keep to the limit.
_FEW_TOKENS, _SURE = 40, 0.5


def gentle(name: str) -> Case:
    """A model whose activations have the sizes of a trained one's."""
    case = wide(name)
    changes = {**case.changes, "initializer_range": 0.04, "max_position_embeddings": 512}
    return dataclasses.replace(case, changes=changes)


def error_of(found: torch.Tensor, wanted: torch.Tensor, transformer: Transformer) -> float:
    """Of all tokens, or of the better half of the first ones."""
    if transformer.spec.experts is None:
        return relative_error(found, wanted)
    found, wanted = found[:_FEW_TOKENS], wanted[:_FEW_TOKENS]
    errors = (found - wanted).norm(dim=1) / wanted.norm(dim=1)
    return float(errors.quantile(_SURE))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["exl2", "gptq, act-order"])
@pytest.mark.parametrize("name", [*MORE, *NAMES])
def test_logits_and_an_answer(kernels: Kernels, name: str, kind: str, tmp_path: Path, build_cache: Path) -> None:
    save_case(gentle(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "written")
    wanted = logits_in_steps(open_transformer(path), IDS, [TOKENS])
    transformer = open_quantized(path, kernels)
    errors = {
        "step": error_of(step_logits(transformer, kernels, IDS, dependent=True), wanted, transformer),
        "prompt": error_of(logits_in_steps(transformer, IDS, [50, 3, 247], kv_cache="fp16"), wanted, transformer),
    }
    assert max(errors.values()) < LIMIT, errors
    engine = load(path, device="cuda", build_cache=build_cache)
    stats = finish(engine.generate(GenerationRequest(IDS[:20], max_new_tokens=20))).stats
    assert stats.decode_path == "run-ahead"


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["float16", "gptq, 8 bits"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2_moe", "gemma2", "cohere", "starcoder2"])
def test_layers_that_the_kernels_do_not_hold(kernels: Kernels, name: str, kind: str, tmp_path: Path) -> None:
    save_case(gentle(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "written")
    wanted = logits_in_steps(open_transformer(path), IDS, [TOKENS])
    transformer = open_transformer(path, torch.float16, "cuda")
    assert why_not(transformer, KVCache(transformer.spec, "fp16", torch.float16, transformer.device, 8)) is None
    errors = {
        "step": error_of(step_logits(transformer, kernels, IDS, dependent=True), wanted, transformer),
        "prompt": error_of(logits_in_steps(transformer, IDS, [50, 3, 247], kv_cache="fp16"), wanted, transformer),
    }
    assert max(errors.values()) < LIMIT, errors


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.context is None])
def test_float_models_on_the_device(name: str, tmp_path: Path) -> None:
    """In float32, so that nothing but the arithmetic of another machine differs."""
    save_case(CASES[name], tmp_path)
    ids = IDS[:150]
    wanted = logits_in_steps(open_transformer(tmp_path), ids, [150])
    transformer = open_transformer(tmp_path, torch.float32, "cuda")
    assert relative_error(logits_in_steps(transformer, ids, [70, 1, 79]), wanted) < 1e-4
