"""Layers that stay quantized, with the kernels' references in the kernels' place."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from exlchat.engine.formats import exl2_writer, gptq_writer
from exlchat.engine.formats.exl2 import dequantize
from exlchat.engine.formats.exl2_writer import Section, quantize_matrix
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.formats.inventory import parameter_count, weight_sizes
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.formats.packing import pack_exl2
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.experts import Experts, Mlp
from exlchat.engine.layers.linear import Joined, Linear, SideBySide, join
from exlchat.engine.layers.operations import KernelOperations
from exlchat.engine.layers.quantized_linear import MEDIUM_ROWS, Permuted, QuantizedLinear, Scratch, column_parts
from exlchat.engine.layers.transformer import DecoderLayer, Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.layout import PackedMatrix
from exlchat.ext.products import Activation
from tests.engine.decoding import logits_in_steps, relative_error
from tests.engine.family_models import CASES, save_case
from tests.engine.reference_kernels import ReferenceJob, ReferenceKernels
from tests.ext import reference_prompt
from tests.random_models import save_random_llama
from tests.shared_data import DATA, needs_shared

CPU = torch.device("cpu")
MIX = (Section(6, 0.3, 32), Section(4, 0.7, 64))


def packed(features: int, outputs: int, bias: bool = False) -> tuple[PackedMatrix, torch.Tensor, torch.Tensor]:
    """A matrix, its weights and its bias."""
    tensors = quantize_matrix(torch.randn(features, outputs) * 0.1, MIX)
    vector = torch.randn(outputs).half() if bias else torch.zeros(outputs).half()
    return pack_exl2(tensors, vector if bias else None), dequantize(tensors), vector


@pytest.mark.parametrize("rows", [1, 8, 9, 40, MEDIUM_ROWS + 1])
@pytest.mark.parametrize("limit", [1, 64 * 48, 2**20])
@pytest.mark.parametrize("bias", [False, True])
def test_any_number_of_rows_through_any_scratch(rows: int, limit: int, bias: bool) -> None:
    first, second = packed(64, 96, bias), packed(64, 160, bias)
    scratch = Scratch(CPU, limit)
    layers = [
        QuantizedLinear((first[0],), (96,), ReferenceKernels(), scratch),
        # EXL2 fills columns up to 32: these 150 stand in 160.
        QuantizedLinear((second[0],), (150,), ReferenceKernels(), scratch),
    ]
    x = torch.randn(rows, 64).half()
    wanted = torch.cat(
        [x.double() @ weights.double() + vector.double() for _, weights, vector in (first, second)], dim=1
    )[:, : 96 + 150]
    joined = join(layers)
    assert isinstance(joined, QuantizedLinear)
    found = joined(x)
    assert found.dtype == torch.float16
    assert relative_error(found.double(), wanted) < 1e-3
    assert torch.equal(found, torch.cat([layer(x) for layer in layers], dim=1))


@pytest.mark.parametrize("rows", [8, 9, MEDIUM_ROWS, MEDIUM_ROWS + 1])
def test_x_may_come_in_the_order_in_which_it_is_read(rows: int) -> None:
    matrix = replace(packed(128, 64)[0], gather=torch.randperm(128).short())
    layer = QuantizedLinear((matrix,), (60,), ReferenceKernels(), Scratch(CPU))
    permutation, x = layer.permutation(rows), torch.randn(rows, 128).half()
    assert (permutation is None) == (rows in (8, MEDIUM_ROWS + 1)), "other kernels read it otherwise"
    if permutation is not None:
        permuted = torch.empty_like(x)
        permuted[:, permutation.long()] = x
        assert torch.equal(layer(Permuted(permuted)), layer(x))


def test_matrices_of_unlike_orders_have_none_together() -> None:
    first, second = (replace(packed(128, 64)[0], gather=torch.randperm(128).short()) for _ in range(2))
    assert QuantizedLinear((first, second), (64, 64), ReferenceKernels(), Scratch(CPU)).permutation(20) is None


class _Fused:
    """The kernels between the products of a prompt, by their references; counts norms in the order of a product."""

    def __init__(self) -> None:
        self.permuted = 0

    def add_norm(
        self, hidden: Tensor, added: Tensor | None, weight: Tensor, eps: float, *, permutation: Tensor | None = None
    ) -> Tensor:
        y = reference_prompt.add_norm(hidden, added, weight, eps).half()
        if permutation is None:
            return y
        self.permuted += 1
        found = torch.empty_like(y)
        found[:, permutation.long()] = y
        return found

    def gate(self, x: Tensor, activation: Activation = "silu") -> Tensor:
        return reference_prompt.gate(x, activation).half()

    def turn(self, x: Tensor, turns: Tensor, heads: int, *, interleaved: bool = False) -> None:
        x.copy_(reference_prompt.turn(x, turns, heads, interleaved=interleaved))


def _in_random_order(layer: DecoderLayer) -> DecoderLayer:
    """What reads the norms of a layer stores their numbers in an order of its own."""

    def ordered(part: Joined) -> Joined:
        assert isinstance(part, QuantizedLinear)
        gather = torch.randperm(part.matrices[0].features).short()
        return replace(part, matrices=tuple(replace(matrix, gather=gather) for matrix in part.matrices))

    assert isinstance(layer.mlp, Mlp)
    return replace(layer, qkv=ordered(layer.qkv), mlp=replace(layer.mlp, gate_up=ordered(layer.mlp.gate_up)))


@torch.inference_mode()
@pytest.mark.parametrize(("name", "each"), [("llama", 6), ("cohere", 0), ("gemma2", 1)])
def test_norms_give_products_what_they_read_in_their_order(name: str, each: int, tmp_path: Path) -> None:
    save_case(CASES[name], tmp_path / "dense")
    source, config = load_file(tmp_path / "dense" / "model.safetensors"), (tmp_path / "dense" / "config.json")
    gptq_writer.write_model(source, json.loads(config.read_text()), tmp_path / "gptq", GptqRecipe(64))
    transformer = open_quantized(tmp_path / "gptq")
    transformer.layers = [_in_random_order(layer) for layer in transformer.layers]
    ids = torch.randint(90, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(transformer, ids, [30, 10], kv_cache="fp16")
    fused = _Fused()
    transformer._operations = KernelOperations(fused)
    assert relative_error(logits_in_steps(transformer, ids, [30, 10], kv_cache="fp16"), wanted) < 1e-2
    # Not where attention and MLP read the same, nor where torch norms what comes between.
    assert fused.permuted == 2 * each


def test_scratch_holds_no_more_than_it_must() -> None:
    scratch = Scratch(CPU, 64 * 50)
    assert scratch.columns(64) == 48
    assert scratch.columns(10_000) == 16
    small = scratch.take(64, 16)
    assert scratch.take(64, 48).numel() == 64 * 48
    assert small.shape == (64, 16)


def test_parts_share_the_memory_of_their_matrix() -> None:
    matrix, _, _ = packed(64, 160)
    parts = list(column_parts(matrix, 64))
    assert [(start, part.outputs) for start, part in parts] == [(0, 64), (64, 64), (128, 32)]
    storage = matrix.words.untyped_storage().data_ptr()
    assert all(part.words.untyped_storage().data_ptr() == storage for _, part in parts)


def test_quantized_and_float_layers_stand_side_by_side() -> None:
    quantized = QuantizedLinear((packed(64, 32)[0],), (32,), ReferenceKernels(), Scratch(CPU))
    plain = Linear(torch.randn(16, 64).half())
    both = join([quantized, plain])
    assert isinstance(both, SideBySide)
    assert both(torch.randn(3, 64).half()).shape == (3, 48)
    assert both.bytes == quantized.bytes + 16 * 64 * 2


def test_a_float_layer_filled_up_to_whole_rows_computes_the_same() -> None:
    layer = Linear(torch.randn(391, 24), torch.randn(391))
    x = torch.randn(5, 24)
    filled = layer.in_whole_rows()
    assert filled.weight.shape == (392, 24)
    assert torch.allclose(filled(x), layer(x), atol=1e-6)
    assert filled(x).shape == (5, 391)
    assert Linear(torch.randn(16, 8)).in_whole_rows().weight.shape == (16, 8)


def open_quantized(path: Path) -> Transformer:
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    loader = LayerLoader(checkpoint, CPU, torch.float16, ReferenceKernels())
    has_head = any(name.startswith("lm_head.") for name in checkpoint.names)
    return load_transformer(spec, loader, has_head, lambda: None)


@needs_shared
@pytest.mark.usefixtures("decoded_once")
@pytest.mark.parametrize("steps", [[128], [50, 1, 77]], ids=["one shot", "chunks"])
def test_logits_of_the_tiny_model(steps: list[int]) -> None:
    expected = load_file(DATA / "tiny-llama-exl2-4.0bpw-expected.safetensors")
    transformer = open_quantized(DATA / "tiny-llama-exl2-4.0bpw")
    ids = [int(token) for token in expected["input_ids"]]
    found = logits_in_steps(transformer, ids, steps, kv_cache="fp16")
    assert relative_error(found, expected["logits_exl2_model"]) < 5e-3


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("kind", ["exl2", "gptq"])
def test_a_model_with_biases_and_odd_sizes(kind: str, tmp_path: Path) -> None:
    model = save_random_llama(
        tmp_path / "float",
        attention_bias=True,
        mlp_bias=True,
        hidden_size=128,
        intermediate_size=256,
        vocab_size=391,
    )
    files = [tmp_path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    config, source, path = model.config.to_dict(), model.state_dict(), tmp_path / kind
    if kind == "exl2":
        exl2_writer.write_model(source, config, path, body=(Section(4, 1.0, 64),), extra_files=files)
    else:
        gptq_writer.write_model(source, config, path, gptq_writer.GptqRecipe(32, act_order=True), extra_files=files)
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    plain = load_transformer(spec, LayerLoader(checkpoint, CPU, torch.float32), True, lambda: None)
    ids = torch.randint(391, (60,), generator=torch.Generator().manual_seed(3)).tolist()
    quantized = open_quantized(path)
    found = logits_in_steps(quantized, ids, [30, 5, 25], kv_cache="fp16")
    assert relative_error(found, logits_in_steps(plain, ids, [60])) < 1e-2
    # Codes, scales and tables, and the embedding: far below the two bytes a weight of the written-out form.
    sizes = weight_sizes(checkpoint, stay_quantized=True)
    assert quantized.bytes == pytest.approx(sizes.bytes(torch.float16), rel=0.15)
    assert parameter_count(checkpoint) == weight_sizes(checkpoint, stay_quantized=False).floats
    assert sizes.bytes(torch.float16) < 1.6 * parameter_count(checkpoint)


def test_exl2_groups_that_the_kernels_cannot_hold_are_written_out(tmp_path: Path) -> None:
    model = save_random_llama(tmp_path / "float")
    files = [tmp_path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    odd = (Section(2, 1.0, 16),)
    exl2_writer.write_model(model.state_dict(), model.config.to_dict(), tmp_path / "exl2", body=odd, extra_files=files)
    loader = LayerLoader(Checkpoint(tmp_path / "exl2"), CPU, torch.float16, ReferenceKernels())
    assert isinstance(loader.linear("model.layers.0.self_attn.q_proj", 64, 64, bias=False), Linear)
    assert isinstance(loader.linear("lm_head", 64, 384, bias=False), QuantizedLinear)


class _Counted(ReferenceKernels):
    """Counts products of few rows, each of which keeps tensors of its own."""

    def __init__(self) -> None:
        self.few = 0

    def product(self, *parts: Any, **others: Any) -> ReferenceJob:
        self.few += 1
        return super().product(*parts, **others)


@pytest.mark.parametrize("rows", [1, 3, 8, 9, MEDIUM_ROWS + 1])
def test_a_layer_of_which_there_are_thousands_keeps_no_tensors_for_its_rows(rows: int) -> None:
    matrix, weights, _ = packed(64, 160)
    kernels = _Counted()
    layer = QuantizedLinear((matrix,), (150,), kernels, Scratch(CPU), prepared=False)
    x = torch.randn(rows, 64).half()
    assert relative_error(layer(x).double(), (x.double() @ weights.double())[:, :150]) < 1e-3
    assert kernels.few == 0


@torch.inference_mode()
def test_experts_of_a_prompt_keep_no_tensors_for_their_rows(tmp_path: Path) -> None:
    save_case(CASES["mixtral"], tmp_path / "dense")
    source, config = load_file(tmp_path / "dense" / "model.safetensors"), (tmp_path / "dense" / "config.json")
    gptq_writer.write_model(source, json.loads(config.read_text()), tmp_path / "gptq", GptqRecipe(32))
    transformer = open_quantized(tmp_path / "gptq")
    experts = [expert for layer in transformer.layers if isinstance(layer.mlp, Experts) for expert in layer.mlp.experts]
    parts = [part for expert in experts for part in (expert.gate_up, expert.down)]
    assert parts
    assert all(isinstance(part, QuantizedLinear) and not part.prepared for part in parts)
