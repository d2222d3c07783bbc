"""Architectures beside Llama's through the kernels: the captured step, and prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exlchat.engine import GenerationRequest, load
from exlchat.engine.formats.gptq_writer import GptqRecipe, write_model
from exlchat.ext.ops import Kernels
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.test_families import save
from tests.gpu.test_quantized_engine import finish, open_quantized, step_logits


@torch.inference_mode()
@pytest.mark.parametrize("name", ["qwen2", "qwen2 with windows", "qwen3"])
def test_logits_and_an_answer(kernels: Kernels, name: str, tmp_path: Path, build_cache: Path) -> None:
    model = save(name, tmp_path / "float")
    files = [tmp_path / "float" / file for file in ("tokenizer.json", "tokenizer_config.json")]
    write_model(model.state_dict(), model.config.to_dict(), tmp_path / "gptq", GptqRecipe(128), extra_files=files)
    ids = torch.randint(384, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(open_transformer(tmp_path / "gptq", torch.float32, "cuda"), ids, [300])
    transformer = open_quantized(tmp_path / "gptq", kernels)
    assert relative_error(step_logits(transformer, kernels, ids, dependent=True), wanted) < 1e-2
    assert relative_error(logits_in_steps(transformer, ids, [50, 3, 247], kv_cache="fp16"), wanted) < 1e-2
    engine = load(tmp_path / "gptq", device="cuda", build_cache=build_cache)
    assert finish(engine.generate(GenerationRequest(ids[:20], max_new_tokens=20))).stats.decode_path == "run-ahead"
