"""Formats beside EXL2 and 4-bit GPTQ through the CUDA kernels, and output heads that are rounded at load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import Finished, GenerationRequest, load
from exlchat.engine.formats import awq, awq_writer, gptq, grouped
from exlchat.engine.formats.awq import AwqSettings
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.gptq_writer import GptqRecipe, write_model
from exlchat.engine.formats.grouped import GroupedLayer
from exlchat.engine.formats.head import pack_head
from exlchat.engine.formats.packing import pack_grouped
from exlchat.ext.layout import PackedMatrix, decode, to_stored
from exlchat.ext.ops import Kernels
from tests.engine.bit_streams import random_awq, random_gptq
from tests.engine.decoding import relative_error
from tests.random_models import save_random_llama

CASES = ["2-bit", "3-bit", "4-bit", "awq"]
HEADS = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "vocab_size": 391}


def layer_of(case: str, features: int, outputs: int, groups: int) -> GroupedLayer:
    """Random codes and zero points, 0 among them, which the pieces hold as mirrored codes with a negative scale."""
    if case == "awq":
        tensors = {name: part.cuda() for name, part in random_awq(features, outputs, groups).items()}
        return awq.read_layer(tensors, AwqSettings())
    bits = int(case[0])
    tensors = {name: part.cuda() for name, part in random_gptq(bits, features, outputs, groups).items()}
    return gptq.read_layer(tensors, GptqSettings(exact_zeros=True, symmetric=False, bits=bits))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("features", "groups"), [(256, 8), (352, 3), (1024, 1)])
def test_weights_and_products(kernels: Kernels, case: str, features: int, groups: int) -> None:
    layer = layer_of(case, features, 480, groups)
    matrix, weights = pack_grouped(layer), grouped.dequantize(layer)
    found = torch.full(weights.shape, float("nan"), dtype=torch.float16, device="cuda")
    kernels.dequantize(matrix, found)
    # Equal as numbers: a mirrored zero is a negative one.
    assert torch.equal(found, weights)
    check_products(kernels, matrix, weights)


@pytest.mark.parametrize("bits", [4, 6, 8])
@pytest.mark.parametrize("outputs", [391, 4096])
def test_products_of_a_rounded_head(kernels: Kernels, bits: int, outputs: int) -> None:
    matrix = pack_head((torch.randn(outputs, 288, device="cuda") * 0.02).half(), bits)
    weights = decode(matrix)
    found = torch.full(weights.shape, float("nan"), dtype=torch.float16, device="cuda")
    kernels.dequantize(matrix, found)
    assert torch.equal(found, weights)
    check_products(kernels, matrix, weights)


def check_products(kernels: Kernels, matrix: PackedMatrix, weights: torch.Tensor) -> None:
    """With as many rows as each of the kernels takes."""
    for rows in (1, 3, 8):
        natural = torch.randn(rows, len(weights), device="cuda").half()
        y = torch.full((rows, weights.shape[1]), float("nan"), device="cuda")
        kernels.product([matrix], to_stored(natural, matrix), y, "float").launch(dependent=False)
        assert relative_error(y.double(), natural.double() @ weights.double()) < 1e-3
    natural = torch.randn(70, len(weights), device="cuda").half()
    wanted = natural.double() @ weights.double()
    assert relative_error(kernels.row_product([matrix])(natural).double(), wanted) < 2e-3


def model_of(path: Path, kind: str, *, tied: bool) -> Path:
    model = save_random_llama(path / "float", tie_word_embeddings=tied, **HEADS)
    source = {name: tensor for name, tensor in model.state_dict().items() if not tied or name != "lm_head.weight"}
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    if kind == "bf16":
        file = path / "float" / "model.safetensors"
        save_file({name: tensor.bfloat16() for name, tensor in load_file(file).items()}, file)
    elif kind == "awq":
        awq_writer.write_model(source, model.config.to_dict(), path / kind, 64, extra_files=files)
    elif kind != "float":
        recipe = GptqRecipe(128, bits=int(kind[-1]))
        write_model(source, model.config.to_dict(), path / kind, recipe, extra_files=files)
    return path / ("float" if kind == "bf16" else kind)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["gptq-3", "gptq-4", "gptq-8", "awq", "float", "bf16"])
def test_whole_models_with_a_float_and_with_a_rounded_head(
    kind: str, tied: bool, tmp_path: Path, build_cache: Path
) -> None:
    path = model_of(tmp_path, kind, tied=tied)
    ids = torch.randint(391, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    reference = load(path, device="cpu", kv_cache="fp32").logits(ids)
    for bits, limit in ((None, 2e-2), (8, 3e-2), (6, 6e-2), (4, 0.2)):
        engine = load(path, device="cuda", quantize_head=bits, build_cache=build_cache)
        assert engine.info.quantization.endswith("-bit head") is (bits is not None)
        # bfloat16 alone makes about a hundredth.
        slack = 0.05 if kind == "bf16" else 0.0
        assert relative_error(engine.logits(ids).cpu(), reference) < limit + slack
        *_, last = engine.generate(GenerationRequest(ids[:20], max_new_tokens=20))
        assert isinstance(last, Finished)
        in_the_step = kind != "bf16"
        assert last.stats.decode_path == ("run-ahead" if in_the_step else "synchronous")
