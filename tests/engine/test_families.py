"""Every architecture against `transformers`, as floats: in one go, in chunks and token by token past every window."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from exlchat.engine import ModelError, load
from exlchat.engine.formats import mxfp4
from exlchat.engine.formats.inventory import describe_format, parameter_count
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.families import FAMILIES
from exlchat.engine.model_card import describe, look_around
from exlchat.engine.weights.checkpoint import Checkpoint
from tests.engine.decoding import logits_in_steps, open_transformer, relative_error
from tests.engine.family_models import CASES, save_case, with_images
from tests.engine.family_table import ErrorTable
from tests.random_models import edit_json

TOKENS = 200
WAYS = {"at once": [TOKENS], "in chunks": [70, 3, 99, 28], "token by token": [60, *[1] * 140]}
IDS = torch.randint(384, (TOKENS,), generator=torch.Generator().manual_seed(3)).tolist()


@torch.inference_mode()
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path, errors: ErrorTable) -> None:
    case = CASES[name]
    wanted = save_case(case, tmp_path)(torch.tensor([IDS])).logits[0]
    transformer = open_transformer(tmp_path, context=case.context)
    for way, steps in WAYS.items():
        error = relative_error(logits_in_steps(transformer, IDS, steps), wanted)
        errors.note(transformer.spec.architecture, name, way, error)
        assert error < 1e-4, way
    # Over several cards, logical ones here, the bits are those of one: a card with the ends alone, and one a layer.
    counts = (0, *(1,) * transformer.spec.num_layers, 0)
    over_cards = open_transformer(tmp_path, context=case.context, counts=counts)
    steps = WAYS["in chunks"]
    assert torch.equal(logits_in_steps(over_cards, IDS, steps), logits_in_steps(transformer, IDS, steps))


def test_every_architecture_has_a_case(tmp_path: Path) -> None:
    found = set()
    for number, case in enumerate(CASES.values()):
        save_case(case, tmp_path / str(number))
        found |= set(json.loads((tmp_path / str(number) / "config.json").read_text())["architectures"])
    # The same rows of the table under other names of the wrapping.
    assert set(FAMILIES) - found == {"LlavaForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"}


def test_the_docs_show_the_errors_of_every_architecture() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architectures.md").read_text()
    for architecture in FAMILIES:
        assert f"`{architecture}`" in page


@torch.inference_mode()
def test_experts_in_mxfp4_are_what_transformers_makes_of_them(tmp_path: Path) -> None:
    """Blocks and scales of random bytes; the wanted weights by the format's own words, one code after the other."""
    case = CASES["gpt_oss"]
    model = save_case(case, tmp_path)
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    generator = torch.Generator().manual_seed(5)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, features, outputs = tensors.pop(name).shape
        blocks = torch.randint(256, (count, outputs, features // 32, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, (count, outputs, features // 32), generator=generator, dtype=torch.uint8)
        tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = blocks, scales
        weights = torch.zeros(count, outputs, features)
        magnitudes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        for feature in range(features):
            byte = blocks[..., feature // 32, feature % 32 // 2]
            code = byte // 16 if feature % 2 else byte % 16
            value = torch.tensor(magnitudes)[(code % 8).long()] * torch.where(code < 8, 1.0, -1.0)
            weights[..., feature] = value * 2.0 ** (scales[..., feature // 32].float() - 127)
        model.get_parameter(name).copy_(weights.transpose(1, 2))
    save_file(tensors, tmp_path / "model.safetensors")
    wanted = model(torch.tensor([IDS])).logits[0]
    assert relative_error(logits_in_steps(open_transformer(tmp_path), IDS, [TOKENS]), wanted) < 1e-4
    checkpoint = Checkpoint(tmp_path)
    assert parameter_count(checkpoint) == model.num_parameters()
    assert describe_format(checkpoint) == "F32/MXFP4"


@pytest.mark.parametrize("name", ["gpt_oss", "mixtral", "gemma3", "qwen2_moe", "gpt2", "phi3"])
def test_all_weights_are_counted_and_bytes_a_token_are_those_of_the_chosen(name: str, tmp_path: Path) -> None:
    model = save_case(CASES[name], tmp_path)
    checkpoint = Checkpoint(tmp_path)
    assert parameter_count(checkpoint) == model.num_parameters()
    transformer = open_transformer(tmp_path)
    assert transformer.bytes == 4 * model.num_parameters()
    experts = [parameter for key, parameter in model.named_parameters() if ".experts." in key]
    unused = 0
    if experts:
        config = model.config
        count = getattr(config, "num_experts", None) or config.num_local_experts
        every = sum(parameter.numel() for parameter in experts)
        unused = every - every * config.num_experts_per_tok // count
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
    rows = (0 if tied else 383 * 64) - (64 if tied else 0)
    positions = 256 * 64 if name == "gpt2" else 0
    assert transformer.bytes_per_token == 4 * (model.num_parameters() - unused - rows - positions)


def test_dynamic_positions_allow_more_than_the_model_was_made_for(tmp_path: Path) -> None:
    save_case(CASES["llama, dynamic positions"], tmp_path)
    assert load(tmp_path, max_seq_len=192).info.max_seq_len == 192
    with pytest.raises(ModelError, match="this model has 1 to 192"):
        load(tmp_path, max_seq_len=193)


def test_mxfp4_of_another_shape_or_dtype_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    (tmp_path / "config.json").write_text("{}")
    blocks, scales = torch.zeros(2, 8, 2, 16, dtype=torch.uint8), torch.zeros(2, 8, 2)
    save_file({"up_blocks": blocks, "up_scales": scales}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=r"up_blocks is 2 x 8 x 2 x 16, but config.json makes it 2 x 8 x 3 x 16"):
        mxfp4.load_stacked(Checkpoint(tmp_path), "up", (2, 96, 8), torch.float32)
    with pytest.raises(ModelError, match=r"up_scales is F32; MXFP4 is stored as U8"):
        mxfp4.load_stacked(Checkpoint(tmp_path), "up", (2, 64, 8), torch.float32)


def test_windows_of_the_upper_layers() -> None:
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 384}
    config = {"architectures": ["Qwen2ForCausalLM"], **sizes, "num_hidden_layers": 4, "sliding_window": 128}
    assert read_spec(config, "config.json").windows == (0, 0, 0, 0)
    config |= {"use_sliding_window": True, "max_window_layers": 3}
    assert read_spec(config, "config.json").windows == (0, 0, 0, 128)
    assert read_spec(config | {"max_window_layers": 0}, "config.json").windows == (128,) * 4


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("gemma2", {"layer_types": ["sliding_attention"]}, "layer_types .* must list sliding_attention or full_att"),
        ("smollm3", {"no_rope_layers": [1, 2, 1]}, "no_rope_layers .* must list 0 or 1 for each of 3 layers"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, more than the 5 experts"),
        ("qwen2_moe", {"mlp_only_layers": "all"}, "mlp_only_layers is 'all'; it must be a list of layers"),
        ("stablelm", {"use_parallel_residual": True}, "use_parallel_residual is true, which this version does not run"),
        ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights is false, which this version does not run"),
        ("glm4", {"hidden_act": "relu"}, "hidden_act is 'relu'; this version knows silu"),
        ("gemma2", {"query_pre_attn_scalar": -1}, "query_pre_attn_scalar is -1; it must be a positive whole number"),
        (
            "phi3, long",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
            "short_factor .* 8 numbers",
        ),
        ("llama, yarn", {"rope_parameters": {"rope_type": "xpos"}}, "rope_type is 'xpos'; this version knows default"),
    ],
)
def test_wrong_keys_are_named(name: str, change: dict[str, object], words: str, tmp_path: Path) -> None:
    save_case(CASES[name], tmp_path)
    edit_json(tmp_path / "config.json", **change)
    with pytest.raises(ModelError, match=words):
        open_transformer(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_key_that_is_absent_means_what_it_means_in_transformers(name: str, tmp_path: Path) -> None:
    """Where `transformers` has a default of its own that changes what is computed."""
    from transformers import AutoConfig

    case = CASES[name]
    if case.rewrite is not None:
        pytest.skip("transformers does not read such a config.json")
    save_case(case, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in sorted(set(config) & _SILENT):
        # Layers that are listed with a window contradict that none is used.
        gone = {key, "layer_types"} if key == "use_sliding_window" else {key}
        without = {other: value for other, value in config.items() if other not in gone}
        theirs = type(AutoConfig.for_model(case.model_type)).from_dict(without).to_dict()
        # Spelled out by `transformers`, where the absent key has its default.
        assert read_spec(without, "config.json") == read_spec(
            {**without, key: theirs[key], "architectures": config["architectures"]}, "config.json"
        ), key


_SILENT = {
    "attention_bias",
    "attention_multiplier",
    "attention_out_bias",
    "attn_logit_softcapping",
    "embedding_multiplier",
    "final_logit_softcapping",
    "hidden_act",
    "hidden_activation",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "logit_scale",
    "logits_scaling",
    "max_position_embeddings",
    "mlp_bias",
    "multi_query",
    "norm_epsilon",
    "norm_topk_prob",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "rms_norm_eps",
    "sliding_window",
    "swiglu_alpha",
    "swiglu_limit",
    "tie_word_embeddings",
    "use_bias",
    "use_qk_norm",
    "use_qkv_bias",
    "use_sliding_window",
}


def test_what_gemma_adds_to_its_norms_is_not_rounded_to_bfloat16(tmp_path: Path) -> None:
    save_case(CASES["gemma"], tmp_path)
    weight = torch.linspace(0.001, 0.1, 64).bfloat16()
    file = tmp_path / "model.safetensors"
    save_file({**load_file(file), "model.norm.weight": weight}, file, metadata={"format": "pt"})
    # Near 1 bfloat16 has steps of 0.0078; transformers adds in float32 whatever the model's dtype.
    norm = open_transformer(tmp_path, torch.bfloat16).norm
    assert torch.equal(norm.weight, 1.0 + weight.float())


def test_bits_a_weight_are_those_of_the_part_that_runs(tmp_path: Path) -> None:
    save_case(CASES["gemma3 with images"], tmp_path)
    file = tmp_path / "model.safetensors"
    images = {"vision_tower.layers.1.weight": torch.zeros(1000, 1000)}
    save_file({**load_file(file), **images}, file, metadata={"format": "pt"})
    assert describe(tmp_path, look_around("cpu")).bits_per_weight == 32.0


def test_looking_for_a_tensor_does_not_list_them_all(tmp_path: Path) -> None:
    save_case(CASES["qwen3_moe"], tmp_path)
    checkpoint = Checkpoint(tmp_path)
    # Made anew for each of 75,000 tensors, the names of Qwen3-30B-A3B in GPTQ took minutes of every look and load.
    assert checkpoint.names is checkpoint.names


@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_a_model_of_images_and_text_is_what_its_text_config_names(name: str, tmp_path: Path) -> None:
    # LLaVA has been made of several: only those of Mistral have a window where the file does not say so.
    case = CASES[name]
    save_case(replace(case, rewrite=with_images("language_model.", "LlavaForConditionalGeneration")), tmp_path)
    transformer = open_transformer(tmp_path)
    assert not any(transformer.spec.windows)
    ids = list(range(60))
    save_case(case, tmp_path / "alone")
    alone = open_transformer(tmp_path / "alone")
    assert torch.equal(logits_in_steps(transformer, ids, [60]), logits_in_steps(alone, ids, [60]))
