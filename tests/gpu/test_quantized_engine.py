"""The engine through the CUDA kernels: quantized weights, captured step, sampling on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import GREEDY, Finished, GenerationRequest, LocalEngine, ModelError, SamplingSettings, load
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.formats import exl2_writer
from exlchat.engine.formats.gptq import GptqSettings
from exlchat.engine.formats.gptq_writer import GptqRecipe, quantize_matrix, write_model
from exlchat.engine.formats.layers import LayerLoader
from exlchat.engine.formats.packing import pack_gptq
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.assembly import load_transformer
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.engine.weights.checkpoint import Checkpoint
from exlchat.ext.ops import Kernels
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.gptq_vectors import DEVICE_CASES, device_case, weights_of
from tests.random_models import edit_json, save_random_llama
from tests.shared_data import DATA, needs_shared

EXL2 = DATA / "tiny-llama-exl2-4.0bpw"
CUDA = torch.device("cuda")
WARM = SamplingSettings(temperature=1.0, top_k=50, top_p=0.9, min_p=0.02)
HEADS = {"hidden_size": 256, "intermediate_size": 384, "head_dim": 64, "vocab_size": 391}


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    return load_file(DATA / "tiny-llama-exl2-4.0bpw-expected.safetensors")


@pytest.fixture(scope="module")
def engine(build_cache: Path) -> LocalEngine:
    return load(EXL2, device="cuda", build_cache=build_cache)


def open_quantized(path: Path, kernels: Kernels) -> Transformer:
    checkpoint = Checkpoint(path)
    spec = read_spec(checkpoint.config, "config.json")
    has_head = any(name.startswith("lm_head.") for name in checkpoint.names)
    return load_transformer(spec, LayerLoader(checkpoint, CUDA, torch.float16, kernels), has_head, lambda: None)


def step_logits(transformer: Transformer, kernels: Kernels, ids: list[int], *, dependent: bool) -> torch.Tensor:
    """float32 `[len(ids), vocab]` from replays of the captured step, which draws but is told what to feed."""
    cache = KVCache(transformer.spec, "fp16", torch.float16, CUDA, len(ids))
    step, sequence = DecodeGraphs(transformer, cache, kernels, dependent=dependent), KVSequence(cache)
    greedy = DeviceDraws(GREEDY, seed=0, index=0)
    found = []
    for position in range(len(ids)):
        step.begin(sequence, ids[: position + 1], greedy)
        step.launch()
        torch.cuda.synchronize()
        assert not step.running()
        found.append(step.logits[0].cpu())
    return torch.stack(found)


def finish(events: Iterator[object]) -> Finished:
    last = list(events)[-1]
    assert isinstance(last, Finished)
    return last


@needs_shared
@pytest.mark.parametrize("case", DEVICE_CASES)
def test_gptq_weights_bit_for_bit(kernels: Kernels, case: str) -> None:
    tensors, wanted = device_case(case)
    matrix = pack_gptq({name: tensor.cuda() for name, tensor in tensors.items()}, settings=GptqSettings())
    found = torch.full(wanted.shape, float("nan"), dtype=torch.float16, device="cuda")
    kernels.dequantize(matrix, found)
    assert torch.equal(found.cpu().view(torch.int16), wanted.view(torch.int16))


@pytest.mark.parametrize("features", [256, 4096])
@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("group_size", [32, 128, -1])
def test_gptq_products(kernels: Kernels, features: int, act_order: bool, group_size: int) -> None:
    recipe = GptqRecipe(group_size, act_order, symmetric=False)
    tensors = quantize_matrix(torch.randn(features, 480, device="cuda") * 0.05, recipe)
    weights = weights_of(tensors, GptqSettings(symmetric=False, group_size=group_size))
    matrix = pack_gptq(tensors, settings=GptqSettings(symmetric=False, group_size=group_size))
    for rows in (1, 3, 8):
        x = torch.zeros(rows, matrix.stored, dtype=torch.float16, device="cuda")
        natural = torch.randn(rows, features, device="cuda").half()
        x[:, matrix.scatter.long() & 0xFFFF] = natural
        y = torch.full((rows, 480), float("nan"), device="cuda")
        kernels.product([matrix], x, y, "float").launch(dependent=False)
        assert relative_error(y.double(), natural.double() @ weights.double()) < 1e-3


@needs_shared
@pytest.mark.parametrize("steps", [[128], [50, 1, 77], [5] * 25 + [3]], ids=["one shot", "chunks", "few rows"])
def test_prompt_logits_equal_transformers(
    kernels: Kernels, steps: list[int], expected: dict[str, torch.Tensor]
) -> None:
    ids = [int(token) for token in expected["input_ids"]]
    found = logits_in_steps(open_quantized(EXL2, kernels), ids, steps, kv_cache="fp16")
    assert relative_error(found, expected["logits_exl2_model"]) < 2e-3


@needs_shared
@pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
def test_step_logits_equal_transformers(kernels: Kernels, dependent: bool, expected: dict[str, torch.Tensor]) -> None:
    ids = [int(token) for token in expected["input_ids"]]
    found = step_logits(open_quantized(EXL2, kernels), kernels, ids, dependent=dependent)
    assert relative_error(found, expected["logits_exl2_model"]) < 2e-3


@needs_shared
def test_greedy_tokens_and_the_reuse_of_the_cache(engine: LocalEngine, expected: dict[str, torch.Tensor]) -> None:
    ids = [int(token) for token in expected["input_ids"]][:32]
    first = finish(engine.generate(GenerationRequest(ids, max_new_tokens=48)))
    assert list(first.token_ids) == expected["greedy_ids_exl2_model"][32:].tolist()
    assert first.stats.decode_path == "run-ahead"
    again = finish(engine.generate(GenerationRequest([*ids, *first.token_ids[:20]], max_new_tokens=28)))
    assert again.stats.cached_tokens == 51
    assert again.token_ids == first.token_ids[20:]


@needs_shared
def test_the_same_seed_gives_the_same_tokens_a_hundred_times(
    engine: LocalEngine, expected: dict[str, torch.Tensor]
) -> None:
    ids = [int(token) for token in expected["input_ids"]][:32]
    request = GenerationRequest(ids, WARM, max_new_tokens=40, seed=11)
    first = finish(engine.generate(request)).token_ids
    assert len(first) > 1
    for _ in range(100):
        assert finish(engine.generate(request)).token_ids == first
    other = finish(engine.generate(dataclasses.replace(request, seed=12)))
    assert other.token_ids != first


@needs_shared
def test_an_answer_over_several_pages(build_cache: Path, expected: dict[str, torch.Tensor]) -> None:
    """Its pages lie elsewhere the second time, in another order, and nothing else changes."""
    ids = [int(token) for token in expected["input_ids"]][:32]
    request = GenerationRequest(ids, WARM, max_new_tokens=900, seed=3)
    once = load(EXL2, device="cuda", build_cache=build_cache)
    answer = finish(once.generate(request))
    assert answer.stats.decode_path == "run-ahead"
    pool = once._parts.cache.pool
    taken = [pool.take() for _ in range(5)]
    pool.release([taken[0], taken[2], taken[4]])
    again = finish(once.generate(dataclasses.replace(request, prompt_ids=[5, *ids])))
    other = load(EXL2, device="cuda", build_cache=build_cache)
    assert again.token_ids == finish(other.generate(dataclasses.replace(request, prompt_ids=[5, *ids]))).token_ids


@needs_shared
def test_no_memory_for_the_cache_is_one_line(build_cache: Path) -> None:
    with pytest.raises(ModelError, match=r"a cache of .* tokens takes .* GiB free: --cache-tokens") as error:
        load(EXL2, device="cuda", build_cache=build_cache, cache_tokens=10**9)
    assert "\n" not in str(error.value)


@needs_shared
def test_plain_torch_on_request(expected: dict[str, torch.Tensor]) -> None:
    ids = [int(token) for token in expected["input_ids"]][:32]
    plain = load(EXL2, device="cuda", extension=False)
    answer = finish(plain.generate(GenerationRequest(ids, max_new_tokens=48)))
    assert answer.stats.decode_path == "synchronous"
    assert list(answer.token_ids) == expected["greedy_ids_exl2_model"][32:].tolist()


def gptq_model(path: Path, recipe: GptqRecipe, *, tied: bool) -> Path:
    model = save_random_llama(path / "float", attention_bias=True, mlp_bias=True, tie_word_embeddings=tied, **HEADS)
    source = {name: tensor for name, tensor in model.state_dict().items() if not tied or name != "lm_head.weight"}
    files = [path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    write_model(source, model.config.to_dict(), path / "gptq", recipe, extra_files=files)
    if recipe.act_order:
        # As quantizers write it: gate and up read the same inputs, so both sort them alike.
        file = path / "gptq" / "model.safetensors"
        tensors = load_file(file)
        for layer in range(2):
            gate, up = (f"model.layers.{layer}.mlp.{name}_proj.g_idx" for name in ("gate", "up"))
            tensors[up] = tensors[gate].clone()
        save_file(tensors, file)
    return path / "gptq"


@torch.inference_mode()
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "recipe", [GptqRecipe(128), GptqRecipe(32, act_order=True, symmetric=False)], ids=["g128", "g32 act-order"]
)
def test_a_gptq_model_with_biases(
    kernels: Kernels, recipe: GptqRecipe, tied: bool, tmp_path: Path, build_cache: Path
) -> None:
    path = gptq_model(tmp_path, recipe, tied=tied)
    ids = torch.randint(391, (120,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(open_transformer(path, torch.float32, "cuda"), ids, [120])
    transformer = open_quantized(path, kernels)
    # Random weights of a wide spread: float16 activations alone make some 3e-3.
    assert relative_error(step_logits(transformer, kernels, ids, dependent=True), wanted) < 1e-2
    assert relative_error(logits_in_steps(transformer, ids, [50, 3, 67], kv_cache="fp16"), wanted) < 1e-2
    engine = load(path, device="cuda", build_cache=build_cache)
    assert finish(engine.generate(GenerationRequest(ids[:20], max_new_tokens=20))).stats.decode_path == "run-ahead"


@torch.inference_mode()
@pytest.mark.parametrize("kv_cache", ["fp16", "q8"])
def test_layers_that_see_a_window(kernels: Kernels, kv_cache: str, tmp_path: Path, build_cache: Path) -> None:
    path = gptq_model(tmp_path, GptqRecipe(128), tied=False)
    edit_json(
        path / "config.json", architectures=["MistralForCausalLM"], sliding_window=100, max_position_embeddings=4096
    )
    ids = torch.randint(391, (700,), generator=torch.Generator().manual_seed(3)).tolist()
    wanted = logits_in_steps(open_transformer(path, torch.float32, "cuda"), ids, [700])
    transformer = open_quantized(path, kernels)
    assert relative_error(step_logits(transformer, kernels, ids, dependent=True), wanted) < 1e-2
    # 8 bits add 2 % for these random weights, where float16 alone makes 0.7 %.
    most = 1e-2 if kv_cache == "fp16" else 4e-2
    assert relative_error(logits_in_steps(transformer, ids, [50, 3, 647], kv_cache=kv_cache), wanted) < most
    engine = load(path, device="cuda", build_cache=build_cache, kv_cache=kv_cache, max_seq_len=4096)
    answer = finish(engine.generate(GenerationRequest(ids, max_new_tokens=600)))
    assert answer.stats.decode_path == "run-ahead"
    again = finish(engine.generate(GenerationRequest([*ids, *answer.token_ids, 5], max_new_tokens=2)))
    assert again.stats.cached_tokens >= len(ids) + len(answer.token_ids) - 1


def test_logits_that_are_not_numbers_end_the_answer(tmp_path: Path, build_cache: Path) -> None:
    model = save_random_llama(tmp_path / "float", **HEADS)
    files = [tmp_path / "float" / name for name in ("tokenizer.json", "tokenizer_config.json")]
    exl2_writer.write_model(model.state_dict(), model.config.to_dict(), tmp_path / "exl2", extra_files=files)
    file = tmp_path / "exl2" / "output.safetensors"
    tensors = load_file(file)
    # The prompt is sound, and the answer meets the others when it feeds its own tokens.
    embedding = tensors["model.embed_tokens.weight"]
    embedding[20:] = float("nan")
    save_file({**tensors, "model.embed_tokens.weight": embedding}, file)
    engine = load(tmp_path / "exl2", device="cuda", build_cache=build_cache)
    with pytest.raises(ModelError, match="not numbers") as error:
        list(engine.generate(GenerationRequest(list(range(20)), max_new_tokens=100)))
    assert "\n" not in str(error.value)
