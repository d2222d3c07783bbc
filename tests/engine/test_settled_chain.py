"""The chain of the decode step for any architecture, with the references in the kernels' place."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from exlchat.engine.decode.fit import why_not, why_not_fused
from exlchat.engine.formats import exl2_writer, gptq_writer
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.layers.experts import Experts
from exlchat.engine.layers.operations import TorchOperations
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.parallel import cut as parallel
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, Case, save_case
from tests.engine.test_quantized_linear import open_quantized
from tests.engine.test_step_chain import chain_logits, new_cache, over_cards, over_cards_together

# One of each shape of the step, in sizes that the kernels hold.
NAMES = (
    "mixtral",
    "ministral3",
    "qwen2_moe",
    "qwen3_moe, every second layer",
    "qwen3, a norm of each head",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3, part of a head, window, tied",
    "cohere, head norms",
    "cohere, one norm for all heads",
    "cohere2",
    "granite, tied, biases",
    "glm4",
    "ernie4_5",
    "internlm2",
    "starcoder2",
    "olmo2",
    "olmo3",
    "smollm3",
    "exaone4",
    "stablelm",
)
# An expert for all tokens, norms that subtract the mean, attention and MLP side by side, heads sorted by group.
APART = {
    "qwen2_moe",
    "cohere, head norms",
    "cohere, one norm for all heads",
    "cohere2",
    "internlm2",
    "starcoder2",
    "stablelm",
}
WIDE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "num_hidden_layers": 2}
TOKENS, PROMPT = 60, 30
IDS = torch.randint(384, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()


def wide(name: str) -> Case:
    """A case with heads of 64 elements and matrices of whole tiles."""
    case = CASES[name]
    changes = {**case.changes, **WIDE}
    if "layer_types" in changes:
        changes["layer_types"] = changes["layer_types"][:2]
    if "no_rope_layers" in changes:
        changes["no_rope_layers"] = changes["no_rope_layers"][:2]
    if "moe_intermediate_size" in changes:
        changes["moe_intermediate_size"] = 128
    if case.changes.get("head_dim", 0) is None:
        changes["head_dim"] = None
    if "shared_expert_intermediate_size" in changes:
        changes["shared_expert_intermediate_size"] = 160
    return replace(case, changes=changes)


def one_order_of_inputs(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """As quantizers write it: matrices that read the same inputs sort them alike."""
    for name in [name for name in tensors if name.endswith(("q_invperm", "g_idx"))]:
        for first, second in (("gate_proj", "up_proj"), ("w1", "w3")):
            if f".{second}." in name:
                tensors[name] = tensors[name.replace(f".{second}.", f".{first}.")].clone()
    return tensors


def quantize(kind: str, dense: Path, path: Path) -> Path:
    """Writes a model as EXL2 or GPTQ, or as floats."""
    source, config = load_file(dense / "model.safetensors"), json.loads((dense / "config.json").read_text())
    files = [dense / "tokenizer.json", dense / "tokenizer_config.json"]
    if kind == "float16":
        return dense
    if kind == "exl2":
        head = source.get("output.weight", source.get("lm_head.weight", source.get("model.embed_tokens.weight")))
        body = (Section(5, 0.25, 32), Section(4, 0.75, 32))
        exl2_writer.write_model({**source, "lm_head.weight": head}, config, path, body=body, extra_files=files)
    else:
        recipe = GptqRecipe(32, act_order=kind == "gptq, act-order", bits=8 if "8 bits" in kind else 4)
        gptq_writer.write_model(source, config, path, recipe, extra_files=files)
    file = next(path.glob("*.safetensors"))
    tensors = one_order_of_inputs(load_file(file))
    tensors.pop("output.weight", None) if kind == "exl2" else None
    save_file(tensors, file)
    return path


def check(transformer: Transformer, wanted: Tensor) -> None:
    assert why_not(transformer, new_cache(transformer, 1).cache) is None
    for rows in (1, 7):
        found = chain_logits(transformer, IDS, PROMPT, rows=rows)
        assert relative_error(found, wanted[PROMPT:]) < 1e-2, rows
        # From card to card goes all that the next one reads: the bits are those of one.
        assert torch.equal(chain_logits(over_cards(transformer, 1, 1), IDS, PROMPT, rows=rows), found)
        if parallel.why_not(transformer.spec) is None:
            together = over_cards_together(transformer, 1.0, 1.0)
            assert relative_error(chain_logits(together, IDS, PROMPT, rows=rows), wanted[PROMPT:]) < 1e-2, rows


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kind"), [(name, ("exl2", "gptq, act-order")[index % 2]) for index, name in enumerate(NAMES)]
)
@pytest.mark.sweep(11)
def test_the_step_computes_the_same(name: str, kind: str, tmp_path: Path) -> None:
    save_case(wide(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "written")
    wanted = logits_in_steps(open_transformer(path), IDS, [TOKENS])
    transformer = open_quantized(path)
    assert (why_not_fused(transformer) is None) == (name not in APART)
    check(transformer, wanted)


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("kind", ["float16", "gptq, 8 bits"])
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen2_moe", "gemma2", "cohere", "starcoder2", "gpt_oss"])
def test_layers_that_the_kernels_do_not_hold_are_captured_too(name: str, kind: str, tmp_path: Path) -> None:
    if name == "gpt_oss" and kind != "float16":
        pytest.skip("its experts are only in one tensor")
    save_case(wide(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "written")
    transformer = open_transformer(path, torch.float16)
    # In the same numbers, because experts whose scores are nearly alike change places by rounding.
    check(transformer, logits_in_steps(transformer, IDS, [TOKENS], kv_cache="fp16"))


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
def test_the_limit_of_the_experts_activation_is_that_of_the_config(tmp_path: Path) -> None:
    case = wide("gpt_oss")
    save_case(replace(case, changes={**case.changes, "swiglu_limit": 0.05}), tmp_path)
    transformer = open_transformer(tmp_path, torch.float16)
    check(transformer, logits_in_steps(transformer, IDS, [TOKENS], kv_cache="fp16"))


@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("gpt_oss", {"swiglu_alpha": 2.0}, "alpha of 2"),
        ("gpt_oss", {"num_local_experts": 20, "num_experts_per_tok": 17}, "17 of 20 experts"),
    ],
)
def test_experts_that_the_kernels_do_not_know_decode_through_torch(
    name: str, change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    case = wide(name)
    save_case(replace(case, changes={**case.changes, **change}), tmp_path)
    transformer = open_transformer(tmp_path, torch.float16)
    found = why_not(transformer, new_cache(transformer, 1).cache)
    assert found is not None
    assert why in found


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize(
    ("name", "kind"), [("mixtral", "gptq, act-order"), ("qwen2_moe", "exl2"), ("qwen3_moe", "exl2")]
)
def test_all_experts_at_once_are_the_experts_one_by_one(name: str, kind: str, tmp_path: Path) -> None:
    save_case(wide(name), tmp_path / "dense")
    transformer = open_quantized(quantize(kind, tmp_path / "dense", tmp_path / "written"))
    experts = transformer.layers[0].mlp
    assert isinstance(experts, Experts)
    assert experts.together is not None
    x = torch.randn(37, 256, generator=torch.Generator().manual_seed(1)).half()
    at_once = experts(x, TorchOperations(torch.float16))
    one_by_one = dataclasses.replace(experts, together=None)(x, TorchOperations(torch.float16))
    assert relative_error(at_once.float(), one_by_one.float()) < 2e-3
