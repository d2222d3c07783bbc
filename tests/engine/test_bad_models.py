"""Model directories that cannot be used: one line that names the file, what is wrong and how to mend it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError, load
from tests.chat.unprivileged import assert_unprivileged, public_folder
from tests.engine.family_models import CASES, save_case
from tests.random_models import edit_json, save_random_llama


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("good")
    save_random_llama(path)
    return path


@pytest.fixture
def model(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "model"))


def problem(path: Path, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        load(path, device="cpu", **options)
    line = str(error.value)
    assert "\n" not in line
    return line


def test_a_good_model_loads(good: Path) -> None:
    assert load(good, device="cpu").info.quantization == "F32"


def test_no_directory(tmp_path: Path) -> None:
    assert "no such directory" in problem(tmp_path / "nowhere")


def test_an_empty_directory(tmp_path: Path) -> None:
    assert "empty" in problem(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("model.gguf", "GGUF"),
        ("pytorch_model.bin", "pickle"),
        ("model.safetensors.incomplete", "did not finish"),
        ("notes.txt", "no *.safetensors"),
    ],
)
def test_other_files_are_named_for_what_they_are(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"x")
    assert words in problem(tmp_path)


def test_a_file_instead_of_a_directory(model: Path) -> None:
    assert "give the folder" in problem(model / "model.safetensors")


def test_an_adapter(model: Path) -> None:
    (model / "config.json").rename(model / "adapter_config.json")
    assert "adapter" in problem(model)


def test_a_missing_shard(tmp_path: Path) -> None:
    save_random_llama(tmp_path, shard_size="100KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    shards[1].unlink()
    assert shards[1].name in problem(tmp_path)


def test_two_models_in_one_directory(model: Path) -> None:
    shutil.copy(model / "model.safetensors", model / "other.safetensors")
    assert "both hold" in problem(model)


def test_an_index_tells_two_models_apart(tmp_path: Path) -> None:
    save_random_llama(tmp_path, shard_size="100KB")
    first = min(tmp_path.glob("model-*.safetensors"))
    shutil.copy(first, tmp_path / "copy.safetensors")
    assert load(tmp_path, device="cpu").info.vocab_size == 384


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated_weights(keep: int, model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    assert "not a whole safetensors file" in problem(model)


def rewrite_header(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    new = json.dumps(header).encode()
    file.write_bytes(len(new).to_bytes(8, "little") + new + data[8 + length :])


def past_the_end(header: dict[str, Any]) -> None:
    entry = header["model.norm.weight"]
    entry["data_offsets"] = [entry["data_offsets"][0], entry["data_offsets"][1] + 4096]


def another_dtype(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["dtype"] = "F64"


def overlapping(header: dict[str, Any]) -> None:
    header["model.norm.weight"]["data_offsets"] = header["model.layers.0.input_layernorm.weight"]["data_offsets"]


@pytest.mark.parametrize("lie", [past_the_end, another_dtype, overlapping])
def test_a_lying_header(lie: Callable[[dict[str, Any]], None], model: Path) -> None:
    rewrite_header(model / "model.safetensors", lie)
    assert "not a whole safetensors file" in problem(model)


def test_a_header_longer_than_the_file(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes((2**62).to_bytes(8, "little") + file.read_bytes()[8:])
    assert "not a whole safetensors file" in problem(model)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"num_attention_heads": True}, "num_attention_heads is True"),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"intermediate_size": 97}, "config.json makes it 64 x 97"),
        ({"vocab_size": 500}, "config.json makes it 500 x 64"),
        ({"vocab_size": 12}, "config.json makes it 12 x 64 (vocab_size)"),
        ({"num_hidden_layers": 3}, "model.layers.2"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1, but the weights have more"),
        ({"head_dim": 7}, "head_dim is 7"),
        ({"hidden_act": "wave"}, "hidden_act is 'wave'"),
        ({"attention_bias": True}, "lacks the bias"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings is 'yes'"),
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM"),
        ({"architectures": None}, "architectures is None"),
        ({"architectures": ["LlamaForCausalLM", "GPT2LMHeadModel"]}, "list with one name"),
        ({"rope_parameters": {"rope_type": "spiral", "factor": 2.0}}, "'spiral'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_parameters": 4}, "rope_parameters is 4"),
        ({"eos_token_id": 999}, "eos_token_id is 999"),
        ({"eos_token_id": "two"}, "eos_token_id is 'two'"),
    ],
)
def test_a_wrong_config(changes: dict[str, Any], words: str, model: Path) -> None:
    edit_json(model / "config.json", **changes)
    assert words in problem(model)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '"text"', "[" * 100_000, "\xff\xfe"])
def test_json_that_is_none(content: str, model: Path) -> None:
    (model / "config.json").write_bytes(content.encode("latin-1"))
    assert "config.json" in problem(model)


@pytest.mark.parametrize(
    ("name", "words"), [("config.json", "has no config.json"), ("tokenizer.json", "tokenizer.json is missing")]
)
def test_a_missing_file(name: str, words: str, model: Path) -> None:
    (model / name).unlink()
    assert words in problem(model)


def test_a_broken_tokenizer(model: Path) -> None:
    (model / "tokenizer.json").write_text('{"version": "1.0", "model": {"type": "Nonsense"}}')
    assert "not a tokenizer" in problem(model)


def test_a_tokenizer_that_is_far_too_small(model: Path) -> None:
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"] = {token: index for token, index in content["model"]["vocab"].items() if index < 90}
    content["model"]["merges"] = []
    file.write_text(json.dumps(content))
    assert "tokens for the model's 384 embeddings; tokenizer and weights are of different models" in problem(model)


def test_a_git_lfs_pointer_in_place_of_the_weights(model: Path) -> None:
    (model / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    assert "git lfs pull" in problem(model)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_file_that_may_not_be_read_is_not_called_broken(name: str, good: Path) -> None:
    with public_folder() as folder:
        model = Path(shutil.copytree(good, folder / "model"))
        model.chmod(0o755)
        (model / name).chmod(0o000)

        def check() -> None:
            assert f"{name}: cannot be read (permission denied); mend its permissions" in problem(model)

        assert_unprivileged(check)


def test_a_missing_tensor(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, model / "model.safetensors")
    assert "model.layers.1.mlp.up_proj.weight" in problem(model)


def test_a_tensor_of_another_shape_and_one_of_integers(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    save_file({**tensors, name: torch.zeros(64, 63)}, model / "model.safetensors")
    assert f"{name} is 64 x 63" in problem(model)
    save_file({**tensors, name: torch.zeros(64, 64, dtype=torch.int32)}, model / "model.safetensors")
    assert f"{name} is I32" in problem(model)


def test_awq_that_is_called_gptq_and_awq_of_another_version(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    key = "model.layers.0.self_attn.q_proj"
    packed = torch.zeros(64, 8, dtype=torch.int32)
    awq = {"qweight": packed, "qzeros": packed[:1].clone(), "scales": torch.ones(1, 64)}
    save_file({**tensors, **{f"{key}.{name}": part for name, part in awq.items()}}, model / "model.safetensors")
    edit_json(model / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "qweight is packed along the outputs, as AWQ does, but quant_method of config.json says GPTQ" in problem(
        model
    )
    edit_json(model / "config.json", quantization_config={"quant_method": "awq", "bits": 4, "version": "gemv"})
    assert "version is 'gemv'; of AWQ exlchat reads gemm alone" in problem(model)


def test_broken_exl2_names_layer_and_tensor(good: Path, tmp_path: Path) -> None:
    from exlchat.engine.formats.exl2_writer import write_model

    source = load_file(good / "model.safetensors")
    config = json.loads((good / "config.json").read_text())
    files = [good / "tokenizer.json", good / "tokenizer_config.json"]
    write_model(source, config, tmp_path, extra_files=files)
    assert load(tmp_path, device="cpu").info.quantization.startswith("EXL2 8.")
    stored = load_file(tmp_path / "output.safetensors")
    stored["model.layers.1.mlp.down_proj.q_groups"] = torch.tensor([9, 0], dtype=torch.int16)
    save_file(stored, tmp_path / "output.safetensors")
    line = problem(tmp_path)
    assert "model.layers.1.mlp.down_proj: q_groups" in line
    assert "output.safetensors" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_seq_len": 100_000}, "this model has 1 to 512"),
        ({"max_seq_len": 0}, "this model has 1 to 512"),
        ({"kv_cache": "q3"}, "kv_cache is 'q3'"),
        ({"quantize_head": 5}, "quantize_head is 5; it must be one of 4, 6, 8"),
        ({"quantize_head": 8}, "--quantize-head is for the CUDA kernels, which the CPU and --no-ext go without"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], words: str, good: Path) -> None:
    assert words in problem(good, **options)


@pytest.mark.parametrize("device", ["tpu", "cuda:x", "meta"])
def test_devices_that_are_none(device: str, good: Path) -> None:
    with pytest.raises(ModelError, match="use auto, cpu, cuda"):
        load(good, device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_cuda_without_a_gpu(good: Path) -> None:
    with pytest.raises(ModelError, match="exlchat doctor"):
        load(good, device="cuda")


def test_a_tokenizer_with_more_tokens_than_the_model(model: Path) -> None:
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["vocab"]["mill mill"] = 384
    file.write_text(json.dumps(content))
    assert "tokenizer.json: has 1 tokens past the model's 384 embeddings" in problem(model)


def test_a_pad_token_past_the_embedding_is_tolerated(model: Path) -> None:
    """Many Llama 2 derivatives carry one; nothing ever feeds it."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    pad = {**content["added_tokens"][0], "id": 384, "content": "[PAD]"}
    content["added_tokens"].append(pad)
    file.write_text(json.dumps(content))
    assert "[PAD]" in load(model, device="cpu").info.special_tokens


def test_a_tensor_is_called_what_its_file_calls_it(tmp_path: Path) -> None:
    """Gemma 2 has names that other architectures have for other norms; ours are Llama's."""
    save_case(CASES["gemma2"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.post_feedforward_layernorm.weight"
    save_file({**tensors, name: torch.zeros(63)}, tmp_path / "model.safetensors")
    assert f"model.safetensors: {name} is 63, but config.json makes it 64" in problem(tmp_path)


@pytest.mark.parametrize(
    ("case", "part", "named"),
    [
        ("gemma2", ".pre_feedforward_layernorm.weight", "model.layers.0.pre_feedforward_layernorm.weight"),
        ("qwen3_moe", ".mlp.gate.weight", "model.layers.0.mlp.gate.weight"),
        ("gpt2", ".ln_2.", "transformer.h.0.ln_2.weight"),
        ("mixtral", ".w3.weight", "model.layers.0.block_sparse_moe.experts.0.w3.weight"),
    ],
)
def test_a_tensor_that_no_layer_has_is_called_what_the_family_calls_it(
    case: str, part: str, named: str, tmp_path: Path
) -> None:
    save_case(CASES[case], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name: tensor for name, tensor in tensors.items() if part not in name}, tmp_path / "model.safetensors")
    assert f"the tensor {named} is missing" in problem(tmp_path)


def test_an_index_names_the_file_of_a_missing_tensor_that_is_renamed(tmp_path: Path) -> None:
    save_case(CASES["gpt2"], tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    index = {"weight_map": dict.fromkeys(tensors, "model.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    del tensors["transformer.h.1.ln_1.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    assert "transformer.h.1.ln_1.weight is missing, which model.safetensors.index.json says is there" in problem(
        tmp_path
    )
