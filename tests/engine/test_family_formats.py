"""Architectures as EXL2, GPTQ and AWQ: our logits are those of `transformers` on the dequantized weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from exlchat.engine.formats import awq, awq_writer, exl2, exl2_writer, gptq, gptq_writer
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.formats.gptq_writer import GptqRecipe
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, save_case
from tests.random_models import save_tokenizer

# One of each way of naming, joining and choosing layers; of those that `transformers` reads under their own names.
NAMES = (
    "mistral",
    "mixtral",
    "qwen2, upper windows, tied",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "cohere, head norms",
    "cohere2",
    "granite",
    "glm4",
    "starcoder2",
    "olmo2",
    "smollm3",
    "exaone4",
    "seed_oss",
    "stablelm",
    "gpt_bigcode, every head its own",
)
# EXL2 holds layers by their own names only; those that join queries, keys and values are split by its converter.
IDS = torch.randint(384, (90,), generator=torch.Generator().manual_seed(3)).tolist()
MIXED = (Section(6, 0.5, 32), Section(3, 0.5, 32))
Write = Callable[[dict[str, Tensor], dict[str, object], Path], None]

WRITERS: dict[str, Write] = {
    "exl2": lambda source, config, path: exl2_writer.write_model(source, config, path, body=MIXED),
    "gptq": lambda source, config, path: gptq_writer.write_model(source, config, path, GptqRecipe(32, act_order=True)),
    "gptq, 8 bits": lambda source, config, path: gptq_writer.write_model(
        source, config, path, GptqRecipe(-1, symmetric=False, bits=8)
    ),
    "awq": lambda source, config, path: awq_writer.write_model(source, config, path, 32),
}


def dequantized(path: Path, name: str, shape: torch.Size) -> Tensor:
    """One matrix `[out, in]` as the format's own words give it."""
    tensors = load_file(path)
    key = name.removesuffix(".weight")
    parts = {kind.removeprefix(f"{key}."): tensor for kind, tensor in tensors.items() if kind.startswith(f"{key}.")}
    parts.pop("bias", None)
    if "q_weight" in parts:
        return exl2.dequantize(parts).T[: shape[0]]
    if "qweight" not in parts:
        return tensors[name]
    if parts["scales"].shape[1] == 8 * parts["qweight"].shape[1]:
        return awq.dequantize(parts).T
    bits = 32 * parts["qzeros"].shape[1] // parts["qweight"].shape[1]
    return gptq.dequantize(parts, bits=bits).T


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for kind in ("exl2", "gptq") for name in NAMES]
    + [
        (name, kind)
        for kind in ("gptq, 8 bits", "awq")
        for name in ("mixtral", "phi3", "glm4", "starcoder2", "qwen2_moe")
    ],
)
@pytest.mark.sweep(12)
def test_logits_are_those_of_the_dequantized_weights(name: str, kind: str, tmp_path: Path) -> None:
    dense, written = tmp_path / "dense", tmp_path / "written"
    save_case(CASES[name], dense)
    source, config = load_file(dense / "model.safetensors"), json.loads((dense / "config.json").read_text())
    head = source.get("lm_head.weight", source.get("model.embed_tokens.weight", source.get("transformer.wte.weight")))
    WRITERS[kind]({**source, "lm_head.weight": head}, config, written)
    save_tokenizer(written)
    file = next(written.glob("*.safetensors"))
    wanted = {name: dequantized(file, name, tensor.shape).float().contiguous() for name, tensor in source.items()}
    # Files of EXL2 have a head of their own, even where the model ties it to the embedding.
    wanted["lm_head.weight"] = dequantized(file, "lm_head.weight", head.shape).float().contiguous()
    save_file(wanted, dense / "model.safetensors", metadata={"format": "pt"})
    (dense / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    reference = AutoModelForCausalLM.from_pretrained(dense, attn_implementation="eager", dtype=torch.float32).eval()
    expected = reference(torch.tensor([IDS])).logits[0]
    found = logits_in_steps(open_transformer(written), IDS, [40, 1, 49])
    assert relative_error(found, expected) < 1e-4
