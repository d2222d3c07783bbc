"""Models of EXL2's original converter: four that it wrote, and every architecture that it knows in its conventions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from exlchat.engine import ModelError, load
from exlchat.engine.decode.fit import why_not_fused
from exlchat.engine.formats import exl2
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.original_converter import MODELS, VOCAB, write_converted
from tests.engine.test_quantized_linear import open_quantized
from tests.engine.test_step_chain import chain_logits
from tests.shared_data import DATA, needs_shared

CONVERTED = DATA / "converted"
FOUR = ("qwen3", "mixtral", "phi3", "cohere")
SHOWN = 1024
"""Entries of the vocabulary that the expected logits have."""
IDS = torch.randint(VOCAB, (90,), generator=torch.Generator().manual_seed(3)).tolist()


def expected(name: str) -> dict[str, Tensor]:
    return load_file(CONVERTED / name / "expected.safetensors")


def dequantized(name: str) -> dict[str, Tensor]:
    """The floats of a file under the names of `transformers`: matrices `[out, in]`, norms that are repeated once."""
    tensors = load_file(CONVERTED / name / "output.safetensors")
    floats = {}
    for key, tensor in tensors.items():
        module, _, kind = key.rpartition(".")
        if kind == "q_weight":
            parts = {part: tensors[f"{module}.{part}"] for part in exl2.TENSORS}
            floats[f"{module}.weight"] = exl2.dequantize(parts).T.float()
        elif not kind.startswith("q_"):
            floats[key] = tensor.float()
    for key in [key for key in floats if name == "qwen3" and key.endswith(("q_norm.weight", "k_norm.weight"))]:
        assert bool((floats[key] == floats[key][0]).all())
        floats[key] = floats[key][0]
    for key in [key for key in floats if name == "phi3" and ".layers." in key]:
        for joined, names in (("qkv_proj", ("q_proj", "k_proj", "v_proj")), ("gate_up_proj", ("gate_proj", "up_proj"))):
            if f".{names[0]}." in key:
                whole = torch.cat([floats.pop(key.replace(names[0], part)) for part in names])
                floats[key.replace(names[0], joined)] = whole
    return {key: tensor.contiguous() for key, tensor in floats.items()}


@needs_shared
@torch.inference_mode()
@pytest.mark.parametrize("name", FOUR)
def test_its_models_equal_transformers_on_the_weights_in_them(name: str, tmp_path: Path) -> None:
    save_file(dequantized(name), tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((CONVERTED / name / "config.json").read_text())
    del config["quantization_config"]
    # The file has a head of its own.
    (tmp_path / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    reference, report = AutoModelForCausalLM.from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float32, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = expected(name)["input_ids"]
    wanted = reference.eval()(ids.unsqueeze(0)).logits[0]
    transformer = open_transformer(CONVERTED / name)
    for steps in ([160], [100, 1, 59]):
        assert relative_error(logits_in_steps(transformer, ids.tolist(), steps), wanted) < 1e-4


@needs_shared
@pytest.mark.parametrize("name", ["mixtral", "phi3", "cohere"])
def test_its_models_give_the_original_engines_logits(name: str) -> None:
    ids = expected(name)["input_ids"].tolist()
    found = load(CONVERTED / name, device="cpu").logits(ids)
    assert relative_error(found[:, :SHOWN], expected(name)["logits_exllamav2"].float()) < 0.02


@needs_shared
def test_its_qwen3_is_nearer_to_the_model_than_the_original_engine_is() -> None:
    """That engine subtracts the mean in norms of heads, which Qwen3 does not."""
    model = expected("qwen3")["logits_fp16_model"].float()
    found = load(CONVERTED / "qwen3", device="cpu").logits(expected("qwen3")["input_ids"].tolist())
    assert relative_error(found[:, :SHOWN], model) == pytest.approx(0.308, abs=0.002)
    assert relative_error(expected("qwen3")["logits_exllamav2"].float(), model) == pytest.approx(0.42, abs=0.005)


@needs_shared
@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("name", FOUR)
def test_its_models_decode_in_the_captured_step(name: str) -> None:
    """With the references in the kernels' place; norms that are repeated do not keep Qwen3 from the fused chain."""
    transformer, ids = open_quantized(CONVERTED / name), expected(name)["input_ids"].tolist()[:60]
    assert (why_not_fused(transformer) is None) == (name in ("qwen3", "phi3", "mixtral"))
    wanted = logits_in_steps(open_transformer(CONVERTED / name), ids, [60])
    assert relative_error(chain_logits(transformer, ids, 40), wanted[40:]) < 1e-2


@torch.inference_mode()
@pytest.mark.parametrize("name", MODELS)
def test_every_architecture_it_knows_equals_transformers(name: str, tmp_path: Path) -> None:
    wanted = write_converted(name, tmp_path)(torch.tensor([IDS])).logits[0]
    transformer = open_transformer(tmp_path)
    found = logits_in_steps(transformer, IDS, [40, 1, 49])
    # Nothing is drawn of the columns that fill the head up.
    assert found.shape == (len(IDS), VOCAB)
    assert transformer.head.bytes == 4 * VOCAB * transformer.spec.hidden_size
    assert relative_error(found, wanted) < 1e-4


def test_norms_of_neither_shape_are_named(tmp_path: Path) -> None:
    write_converted("Qwen3ForCausalLM", tmp_path)
    file = tmp_path / "output.safetensors"
    name = "model.layers.1.self_attn.k_norm.weight"
    save_file({**load_file(file), name: torch.ones(3, 16).half()}, file)
    with pytest.raises(
        ModelError, match=rf"output.safetensors: {name} is 3 x 16, but config.json makes it 16 or 2 x 16"
    ):
        open_transformer(tmp_path)
