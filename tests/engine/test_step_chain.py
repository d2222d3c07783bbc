"""The chain of the decode step, with the references in the kernels' place: the logits of `transformers`."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from exlchat.engine.cards.split import LayerSplit
from exlchat.engine.decode.captured import by_turns
from exlchat.engine.decode.fit import why_not, why_not_fused
from exlchat.engine.decode.over_cards import plans_of
from exlchat.engine.formats import exl2_writer, gptq_writer
from exlchat.engine.formats.exl2_writer import Section
from exlchat.engine.formats.gptq_writer import GptqRecipe
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.memory import PageTables
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.parallel.cut import split_model
from exlchat.engine.parallel.loading import parallel_transformer
from exlchat.engine.parallel.transformer import ParallelTransformer
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.reference_kernels import ReferenceKernels
from tests.engine.test_quantized_linear import open_quantized
from tests.random_models import edit_json, save_random_llama
from tests.shared_data import DATA, needs_shared

CPU = torch.device("cpu")
EXL2 = DATA / "tiny-llama-exl2-4.0bpw"
HEADS = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "vocab_size": 391}


def new_cache(transformer: Transformer, length: int, kind: str = "fp16") -> KVSequence:
    cache = KVSequence(KVCache(transformer.spec, kind, torch.float16, CPU, length, split=transformer.split))
    cache.reserve(length)
    return cache


def chain_logits(transformer: Transformer, ids: list[int], prompt: int, *, rows: int = 1) -> torch.Tensor:
    """float32 `[len(ids) - prompt, vocab]`: a prompt through the transformer, the rest so many tokens a step."""
    cache = new_cache(transformer, len(ids))
    if prompt:
        transformer.forward(torch.tensor(ids[:prompt]), cache, start=0)
    kernels: Any = ReferenceKernels()
    plans = plans_of(transformer, cache.cache, kernels, lambda *_: 3, rows=rows)
    plans[0].tables.show(cache.cache.tables, [cache.row])
    counts = {rows, (len(ids) - prompt) % rows or rows}
    lists = {count: [plan.jobs(count) for plan in plans] for count in counts}
    found = []
    for start in range(prompt, len(ids), rows):
        some = torch.tensor(ids[start : start + rows])
        for plan in plans:
            plan.token[: len(some)] = some
            plan.position[: len(some)] = torch.arange(start, start + len(some))
        if isinstance(transformer, ParallelTransformer):
            for _, job in by_turns(lists[len(some)]):
                job.launch(dependent=False)
        else:
            for plan, jobs in zip(plans, lists[len(some)], strict=True):
                for job in jobs:
                    job.launch(dependent=False)
                plan.send(len(some))
        found.append(plans[-1].logits[: len(some)].clone())
    return torch.cat(found)


def over_cards(transformer: Transformer, *counts: int) -> Transformer:
    """The same with so many layers on each of several logical cards."""
    split = LayerSplit((CPU,) * len(counts), tuple(accumulate(counts)))
    return Transformer(
        transformer.spec, transformer.ends, transformer.layers, operations=transformer._operations, split=split
    )


def over_cards_together(transformer: Transformer, *speeds: float) -> ParallelTransformer:
    """The same with a part of every layer on each of several logical cards."""
    spec, operations = transformer.spec, transformer._operations
    parts = split_model(spec, speeds)
    split = LayerSplit.in_parts((CPU,) * len(speeds), spec.num_layers, parts.kv_heads)
    kernels: Any = ReferenceKernels()
    return parallel_transformer(
        spec, transformer.ends, transformer.layers, parts, split, operations=operations, kernels=kernels
    )


@needs_shared
@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("prompt", [0, 100])
def test_logits_of_the_tiny_model(prompt: int) -> None:
    expected = load_file(DATA / "tiny-llama-exl2-4.0bpw-expected.safetensors")
    transformer = open_quantized(EXL2)
    assert why_not(transformer, new_cache(transformer, 1).cache) is None
    ids = [int(token) for token in expected["input_ids"]]
    found = chain_logits(transformer, ids, prompt)
    assert relative_error(found, expected["logits_exl2_model"][prompt:]) < (1e-3 if prompt == 0 else 2e-3)


def written(kind: str, path: Path, *, tied: bool) -> Path:
    model = save_random_llama(path / "float", attention_bias=True, mlp_bias=True, tie_word_embeddings=tied, **HEADS)
    source = {name: tensor for name, tensor in model.state_dict().items() if not tied or name != "lm_head.weight"}
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    config = model.config.to_dict()
    if kind == "exl2":
        # Every matrix has an order of its own, which is more than the converter does.
        body = (Section(5, 0.25, 32), Section(3, 0.75, 64))
        exl2_writer.write_model(source, config, path / kind, body=body, extra_files=files)
    else:
        gptq_writer.write_model(source, config, path / kind, GptqRecipe(32, act_order=True), extra_files=files)
    return path / kind


def one_order_for_gate_and_up(path: Path, layers: int = 2) -> None:
    """As quantizers write it: both read the same inputs, so both sort them alike."""
    file = next(path.glob("*.safetensors"))
    tensors = load_file(file)
    for layer in range(layers):
        prefix = f"model.layers.{layer}.mlp"
        for name in ("q_invperm", "g_idx"):
            if f"{prefix}.gate_proj.{name}" in tensors:
                tensors[f"{prefix}.up_proj.{name}"] = tensors[f"{prefix}.gate_proj.{name}"].clone()
    from safetensors.torch import save_file

    save_file(tensors, file)


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
def test_layers_that_see_a_window(tmp_path: Path) -> None:
    path = written("gptq", tmp_path, tied=False)
    one_order_for_gate_and_up(path)
    edit_json(path / "config.json", architectures=["MistralForCausalLM"], sliding_window=40)
    transformer = open_quantized(path)
    assert why_not(transformer, new_cache(transformer, 1).cache) is None
    ids = torch.randint(391, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(open_transformer(path), ids, [300])
    assert relative_error(chain_logits(transformer, ids, 250), wanted[250:]) < 1e-2


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["exl2", "gptq"])
@pytest.mark.sweep(3)
def test_biases_and_orders_of_all_sorts(kind: str, tied: bool, tmp_path: Path) -> None:
    path = written(kind, tmp_path, tied=tied)
    transformer = open_quantized(path)
    assert why_not_fused(transformer) == "gate and up of layer 0 order their inputs differently"
    ids = torch.randint(391, (300,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(open_transformer(path), ids[:40], [40])
    # They take the other chain.
    assert relative_error(chain_logits(transformer, ids[:40], 0), wanted) < 5e-3
    one_order_for_gate_and_up(path)
    transformer = open_quantized(path)
    assert why_not(transformer, new_cache(transformer, 1).cache) is None
    assert why_not_fused(transformer) is None
    wanted = logits_in_steps(open_transformer(path), ids, [300])
    assert relative_error(chain_logits(transformer, ids[:40], 0), wanted[:40]) < 5e-3
    # Across the edge of a page of 256 tokens, behind a prompt that is computed in float16.
    assert relative_error(chain_logits(transformer, ids, 250), wanted[250:]) < 1e-2


def test_models_that_decode_through_plain_torch_say_why(tmp_path: Path) -> None:
    save_random_llama(tmp_path, **{**HEADS, "head_dim": 48})
    dense = open_transformer(tmp_path, torch.float16)
    assert why_not(dense, new_cache(dense, 1).cache) == "its 4 heads over 2 have 48 elements"
    save_random_llama(tmp_path, **HEADS)
    dense = open_transformer(tmp_path, torch.float16)
    assert why_not_fused(dense) == "layer 0 is not quantized in a way that the kernels hold"
    assert why_not(dense, new_cache(dense, 1).cache) is None
    exact = open_transformer(tmp_path)
    assert why_not(exact, new_cache(exact, 1, "fp32").cache) == "it computes in torch.float32 with a cache in fp32"


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
def test_each_card_reads_tables_of_its_own(tmp_path: Path) -> None:
    """Where all layers lie on the second card, nothing reads what the first one's tables hold."""
    path = written("gptq", tmp_path, tied=False)
    one_order_for_gate_and_up(path)
    transformer = open_quantized(path)
    ids = torch.randint(391, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = chain_logits(transformer, ids, 30)
    with pytest.MonkeyPatch.context() as patch:
        really = PageTables.of
        patch.setattr(PageTables, "of", lambda self, narrow, card=0: really(self, narrow, card) + 1000 * (card == 0))
        assert torch.equal(chain_logits(over_cards(transformer, 0, 2), ids, 30), wanted)


@pytest.mark.usefixtures("decoded_once")
@torch.inference_mode()
@pytest.mark.parametrize("kind", ["exl2", "gptq"])
@pytest.mark.parametrize("in_one_order", [True, False], ids=["joins inside products", "joins apart"])
def test_cards_that_compute_every_layer_together_come_to_the_same(
    kind: str, in_one_order: bool, tmp_path: Path
) -> None:
    path = written(kind, tmp_path, tied=False)
    if in_one_order:
        one_order_for_gate_and_up(path)
    transformer = open_quantized(path)
    ids = torch.randint(391, (40,), generator=torch.Generator().manual_seed(3)).tolist()
    for speeds in ((1.0, 1.0), (2.0, 1.0)):
        several = over_cards_together(transformer, *speeds)
        assert [why_not_fused(rank) is None for rank in several.ranks] == [in_one_order] * 2
        for rows in (1, 5):
            wanted = chain_logits(transformer, ids, 10, rows=rows)
            assert relative_error(chain_logits(several, ids, 10, rows=rows), wanted) < 2e-3
