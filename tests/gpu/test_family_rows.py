"""Architectures of every shape: the tokens of a captured step are each what they are alone, to the last bit."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from exlchat.engine import GREEDY, GenerationRequest, SamplingSettings, load
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.ext.ops import Kernels
from tests.engine.decoding import open_transformer
from tests.engine.family_models import save_case
from tests.engine.test_settled_chain import NAMES, quantize
from tests.gpu.test_families import MORE, gentle
from tests.gpu.test_quantized_engine import finish, open_quantized
from tests.gpu.test_rows import CUDA, Both, same_bits
from tests.gpu.test_several import ends

CASES = [(name, ("exl2", "gptq, act-order")[index % 2]) for index, name in enumerate([*MORE, *NAMES])]


def several_sequences(transformer: Transformer, kernels: Kernels, lengths: list[int]) -> None:
    """A pass of a token of each of them, behind so many: logits as of single steps."""
    cache = KVCache(transformer.spec, "q8", torch.float16, CUDA, 512, tokens=512 * len(lengths))
    graphs, sequences, ids = DecodeGraphs(transformer, cache, kernels), list[KVSequence](), list[int]()
    for length in lengths:
        prompt = torch.randint(transformer.spec.vocab_size, (length + 1,))
        sequence = KVSequence(cache)
        sequence.reserve(length + 1)
        transformer.forward(prompt[:length].cuda(), sequence, start=0)
        sequence.extend(prompt[:length].tolist())
        sequences.append(sequence)
        ids.append(int(prompt[length]))
    alone = [graphs.forward(one, token, len(one)).clone() for one, token in zip(sequences, ids, strict=True)]
    for _ in range(2):  # one by one, and captured
        assert same_bits(graphs.feed_each(ids, sequences), torch.stack(alone)), f"{len(lengths)} sequences"


@torch.inference_mode()
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_rows_of_every_architecture(kernels: Kernels, name: str, kind: str, tmp_path: Path) -> None:
    save_case(gentle(name), tmp_path / "dense")
    transformer = open_quantized(quantize(kind, tmp_path / "dense", tmp_path / "written"), kernels)
    both = Both(transformer, "q8", kernels, 300, dependent=True)
    for rows in range(2, 9):
        both.check(rows, 253)  # across the end of a page
    both.check(8, 3)
    several_sequences(transformer, kernels, [5, 290, 256, 37, 1])


@pytest.mark.parametrize("name", ["gemma2", "cohere2", "glm4", "mixtral", "qwen2_moe", "stablelm"])
def test_answers_side_by_side_and_with_guesses_are_what_they_are_alone(
    name: str, tmp_path: Path, build_cache: Path
) -> None:
    """Through the engine: of models with windows, norms behind, parallel blocks and experts too."""
    save_case(gentle(name), tmp_path / "dense")
    path = quantize("exl2", tmp_path / "dense", tmp_path / "written")
    engine = load(path, device="cuda", max_seq_len=512, cache_tokens=256 * 40, build_cache=build_cache)
    prompt = torch.randint(384, (270,), generator=torch.Generator().manual_seed(5)).tolist()
    warm = GenerationRequest(prompt, SamplingSettings(1.0, top_k=50), max_new_tokens=60, min_new_tokens=60, draft="off")
    wanted = [finish(engine.generate(dataclasses.replace(warm, seed=seed))) for seed in range(8)]
    found = ends(engine.generate_several(warm, range(8)), 8)
    assert [one.token_ids for one in found] == [one.token_ids for one in wanted]
    assert {one.stats.decode_path for one in found} == {"run-ahead"}
    greedy = dataclasses.replace(warm, sampling=GREEDY)
    plain, guessed = (finish(engine.generate(dataclasses.replace(greedy, draft=draft))) for draft in ("off", "ngram"))
    assert guessed.token_ids == plain.token_ids


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["float16", "gptq, 8 bits"])
@pytest.mark.parametrize(
    "name", ["llama", "mixtral", "qwen2_moe", "gemma2", "cohere", "starcoder2", "internlm2", "gpt_oss"]
)
def test_rows_where_torch_computes_layers(kernels: Kernels, name: str, kind: str, tmp_path: Path) -> None:
    if name == "gpt_oss" and kind != "float16":
        pytest.skip("its experts are only in one tensor")
    save_case(gentle(name), tmp_path / "dense")
    path = quantize(kind, tmp_path / "dense", tmp_path / "written")
    both = Both(open_transformer(path, torch.float16, "cuda"), "fp16", kernels, 300, dependent=True)
    for rows in (2, 3, 8):
        both.check(rows, 253)
