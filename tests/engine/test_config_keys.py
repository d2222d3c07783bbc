"""Keys of `config.json` that change what a model computes are computed or refused by name; all others are let be.

Which keys an architecture has, what their defaults are and which of them its code reads, `transformers` says.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from exlchat.engine import ModelError
from exlchat.engine.model.architecture import read_spec
from exlchat.engine.model.families import FAMILIES, TEXT_MODELS
from exlchat.engine.model.spec import ModelSpec
from tests.engine.decoding import open_transformer
from tests.engine.family_models import CASES, save_case
from tests.random_models import edit_json

KINDS = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Ministral3ForCausalLM": "ministral3",
    "MinistralForCausalLM": "ministral",
    "Mistral3ForConditionalGeneration": "mistral3",
    "LlavaForConditionalGeneration": "llava",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2VLForConditionalGeneration": "qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "qwen2_5_vl",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Phi3ForCausalLM": "phi3",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "GraniteForCausalLM": "granite",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "Starcoder2ForCausalLM": "starcoder2",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "SmolLM3ForCausalLM": "smollm3",
    "Exaone4ForCausalLM": "exaone4",
    "SeedOssForCausalLM": "seed_oss",
    "Ernie4_5ForCausalLM": "ernie4_5",
    "GptOssForCausalLM": "gpt_oss",
    "StableLmForCausalLM": "stablelm",
    "GPT2LMHeadModel": "gpt2",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
}
REMOTE = {"YiForCausalLM", "InternLM2ForCausalLM", "ExaoneForCausalLM", "MiniCPMForCausalLM", "OrionForCausalLM"}
"""Of which `transformers` has none: their code lies beside their weights."""
OF_TEXT = [name for name in KINDS if FAMILIES[name].text_model is None]

# What the model code reads, but no answer depends on: training, precision, what else is given back, and for positions
# and windows what others say is not used.
_NO_ANSWER = re.compile(
    r"dropout|pdrop|jitter|initializer|router_aux|output_|summary_|_fp32$|upcast|pad_token_id|use_cache|problem_type|"
    r"window|layer_types|^original_max"
)


@functools.cache
def _default_config(architecture: str) -> str:
    return AutoConfig.for_model(KINDS[architecture]).to_json_string(use_diff=False)


def default_config(architecture: str) -> dict[str, Any]:
    """As `transformers` writes the defaults of its class."""
    return {**json.loads(_default_config(architecture)), "architectures": [architecture]}


def read(config: dict[str, Any]) -> ModelSpec:
    return read_spec(config, "config.json")


def spec_or_line(config: dict[str, Any]) -> ModelSpec | str:
    try:
        return read(config)
    except ModelError as error:
        return str(error)


def keys_of_the_code(architecture: str) -> set[str]:
    """Keys of the default configuration that the model's code looks at."""
    kind = KINDS[architecture].removesuffix("_text")
    source = inspect.getsource(importlib.import_module(f"transformers.models.{kind}.modeling_{kind}"))
    return {key for key in re.findall(r"config\.(\w+)", source) if key in default_config(architecture)}


def other_values(value: Any) -> list[Any]:
    """Values of the same kind that are not the default."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value or 4]
    if isinstance(value, float):
        return [0.5 * value + 0.2]
    return ["relu"] if isinstance(value, str) else [True, 2.5]


def test_every_architecture_is_looked_at() -> None:
    assert set(KINDS) | REMOTE == set(FAMILIES)


@pytest.mark.parametrize("architecture", KINDS)
def test_the_defaults_of_transformers_are_accepted(architecture: str) -> None:
    assert read(default_config(architecture)).architecture == architecture


@pytest.mark.parametrize("architecture", OF_TEXT)
def test_what_the_model_code_reads_is_computed_or_refused(architecture: str) -> None:
    config = default_config(architecture)
    plain = read(config)
    for key in sorted(keys_of_the_code(architecture)):
        if _NO_ANSWER.search(key) or isinstance(config[key], list | dict):
            continue
        for value in other_values(config[key]):
            found = spec_or_line({**config, key: value})
            assert found != plain, f"{key} is {value!r}, and nothing changes"
            assert not isinstance(found, str) or (found.startswith("config.json: ") and found.isprintable())


OF_OTHERS: dict[str, Any] = {
    "attention_bias": True,
    "attn_logit_softcapping": 30.0,
    "attn_temperature_tuning": True,
    "clip_qkv": 8.0,
    "embedding_multiplier": 12.0,
    "final_logit_softcapping": 20.0,
    "lm_head_bias": True,
    "logit_scale": 0.3,
    "logits_scaling": 8.0,
    "mlp_bias": True,
    "norm_head": True,
    "n_routed_experts": 16,
    "position_embedding_type": "alibi",
    "qk_norm": True,
    "query_pre_attn_scalar": 100,
    "residual_multiplier": 0.22,
    "rope_condense_ratio": 8,
    "scale_depth": 1.4,
    "sliding_window": 100,
    "use_logn_attn": True,
    "use_qk_norm": True,
    "zz_attention_sink_tokens": 4,
}


@pytest.mark.parametrize("architecture", OF_TEXT)
def test_a_key_of_another_architecture_is_not_passed_over(architecture: str) -> None:
    config = default_config(architecture)
    config.pop("layer_types", None)
    if FAMILIES[architecture].windows in ("upper", "without positions"):
        config |= {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 0}
    plain = read(config)
    for key, value in OF_OTHERS.items():
        family = FAMILIES[architecture]
        if value in (config.get(key), family.fixed.get(key)) or key in family.settled:
            continue
        found = spec_or_line({**config, key: value})
        assert found != plain, key
        if isinstance(found, str):
            assert re.fullmatch(rf"config\.json: .*\b{key}\b.* ({value!r}|{json.dumps(value)})[ ,;].*", found)


@pytest.mark.parametrize("architecture", KINDS)
@pytest.mark.parametrize("key", ["causal", "is_causal"])
def test_a_model_that_sees_what_comes_later_is_refused(architecture: str, key: str) -> None:
    assert read({**default_config(architecture), key: True})
    with pytest.raises(ModelError, match=f"^config.json: {key} is false, which this version does not run$"):
        read({**default_config(architecture), key: False})


def test_biases_of_qwen2_are_what_the_tensors_say() -> None:
    config = default_config("Qwen2ForCausalLM")
    assert read({**config, "attention_bias": True}) == read(config)


# What published files have besides: of the models' own cards, and what programs leave behind.
REAL = {
    "CohereForCausalLM": {"model_max_length": 131072, "use_qk_norm": False},
    "Cohere2ForCausalLM": {
        "cache_implementation": "hybrid",
        "layer_switch": 4,
        "order_of_interleaved_layers": "local_attn_first",
        "position_embedding_type": "rope_gptj",
        "rotary_pct": 1.0,
        "sliding_window_pattern": 4,
        "use_embedding_sharing": True,
        "use_gated_activation": True,
        "use_parallel_block": True,
        "use_parallel_embedding": True,
        "use_qk_norm": False,
    },
    "Exaone4ForCausalLM": {"sliding_window_pattern": "LLLG"},
    "Gemma2ForCausalLM": {
        "sliding_window_size": 4096,
        "hidden_act": "gelu_pytorch_tanh",
        "cache_implementation": "hybrid",
    },
    "GPT2LMHeadModel": {
        "n_ctx": 1024,
        "_num_labels": 1,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    },
    "GPTBigCodeForCausalLM": {
        "inference_runner": 0,
        "max_batch_size": None,
        "pad_key_length": True,
        "pre_allocate_kv_cache": False,
        "validate_runner_input": True,
    },
    "GptOssForCausalLM": {"experts_per_token": 4, "initial_context_length": 4096},
    "LlamaForCausalLM": {
        "activation": "swiglu",
        "is_llama_config": True,
        "max_sequence_length": 2048,
        "pretraining_tp": 2,
        "rope_interleaved": False,
        "rope_scaling": None,
        "tensor_parallel": 4,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "unsloth_fixed": True,
        "use_flash_attention": True,
    },
    "Phi3ForCausalLM": {
        "attention_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
    },
    "Qwen2ForCausalLM": {
        "dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192},
        "max_window_layers": 70,
        "sliding_window": 131072,
        "use_mrope": False,
        "use_sliding_window": False,
    },
    "Qwen3MoeForCausalLM": {"qkv_bias": False, "shared_expert_intermediate_size": 0, "use_qk_norm": True},
    "SmolLM3ForCausalLM": {"max_window_layers": 28, "pretraining_tp": 2},
    "Starcoder2ForCausalLM": {
        "activation_function": "gelu",
        "attention_softmax_in_fp32": True,
        "layer_norm_epsilon": 1e-5,
        "mlp_type": "default",
        "norm_type": "layer_norm",
        "scale_attention_softmax_in_fp32": True,
        "scale_attn_weights": True,
    },
}
ANYWHERE = {
    "_attn_implementation_autoset": True,
    "_name_or_path": "someone/something",
    "attn_implementation": "flash_attention_2",
    "auto_map": {"AutoModelForCausalLM": "modeling.Model"},
    "bad_words_ids": None,
    "diversity_penalty": 0.0,
    "do_sample": True,
    "encoder_no_repeat_ngram_size": 0,
    "image_token_id": 151655,
    "is_composition": True,
    "max_length": 20,
    "no_repeat_ngram_size": 0,
    "output_scores": False,
    "pruned_heads": {},
    "quantization_config": {"quant_method": "gptq", "bits": 4},
    "repetition_penalty": 1.05,
    "temperature": 0.6,
    "tie_encoder_decoder": False,
    "tokenizer_class": "PreTrainedTokenizerFast",
    "top_k": 50,
    "torch_dtype": "bfloat16",
    "typical_p": 1.0,
    "use_bfloat16": False,
    "video_token_id": 151656,
    "vision_config": {"hidden_size": 1024, "use_attention_bias": True},
}


@pytest.mark.parametrize("architecture", KINDS)
def test_keys_of_published_files_that_change_nothing_are_accepted(architecture: str) -> None:
    config = default_config(architecture)
    assert read({**config, **ANYWHERE, **REAL.get(architecture, {})}) == read(config)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"rope_type": "spiral"}, "rope_parameters: rope_type is 'spiral'; this version knows default, linear"),
        ({"rope_type": "linear", "factor": 2.0, "alpha": 1000.0}, "rope_parameters: alpha is 1000.0, which"),
        ({"rope_type": "yarn", "factor": 4.0, "attn_factor": 0.5}, "rope_parameters: attn_factor is 0.5, which"),
        ({"rope_type": "default", "factor": 8.0}, "rope_parameters: factor is 8.0, which"),
        ({"rope_type": "default", "llama_4_scaling_beta": 0.1}, "rope_parameters: llama_4_scaling_beta is 0.1, which"),
        ({"rope_type": "default", "chunked_attention": {"rope_theta": 1e4}}, "rope_parameters: chunked_attention is {"),
    ],
)
def test_what_rotary_positions_say_is_computed_or_refused(change: dict[str, Any], line: str) -> None:
    config = {**default_config("LlamaForCausalLM"), "rope_parameters": change}
    with pytest.raises(ModelError, match=f"^config.json: {re.escape(line)}"):
        read(config)
    del config["rope_parameters"]
    with pytest.raises(ModelError, match=f"^config.json: {re.escape(line.replace('parameters', 'scaling'))}"):
        read({**config, "rope_scaling": change})


@pytest.mark.parametrize(
    "section",
    [
        {"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192, "finetuned": True, "attn_factor": 1},
        {"type": "mrope", "mrope_section": [16, 24, 24]},
        {"type": "linear", "rope_type": "linear", "factor": 4.0, "original_max_position_embeddings": 4096},
        {"rope_type": "default", "rope_theta": 1e4, "factor": None},
    ],
)
def test_rotary_positions_of_published_files_are_accepted(section: dict[str, Any]) -> None:
    config = default_config("LlamaForCausalLM")
    del config["rope_parameters"]
    assert read({**config, "rope_scaling": section}).ropes


def test_two_ways_of_stretching_positions_are_not_chosen_between() -> None:
    config = default_config("Qwen3ForCausalLM")
    same = {"type": "default"}
    assert read({**config, "rope_scaling": same}) == read(config)
    # As model cards say that it should be added; `transformers` takes it, and forgets the base of the other.
    stretched = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    with pytest.raises(
        ModelError, match=r"^config.json: rope_scaling has rope_type 'yarn', which rope_parameters has not"
    ):
        read({**config, "rope_scaling": stretched})


@pytest.mark.parametrize("architecture", [name for name in KINDS if name not in OF_TEXT])
@pytest.mark.parametrize("kind", ["mistral4", "qwen3_5_text", "gemma4_text", "mystery"])
def test_a_text_part_that_is_not_known_is_refused_by_name(architecture: str, kind: str) -> None:
    config = default_config(architecture)
    text = {**config["text_config"], "model_type": kind}
    line = f"^config.json: text_config: model_type is '{kind}'; this version runs models of images with "
    with pytest.raises(ModelError, match=line):
        read({**config, "text_config": text})


def test_text_parts_without_a_name_are_what_transformers_takes_them_for() -> None:
    for architecture in ("LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration"):
        config = default_config(architecture)
        text = {**config["text_config"]}
        kind = text.pop("model_type")
        assert FAMILIES[architecture].text_model == TEXT_MODELS[kind]
        assert read({**config, "text_config": text}) == read(config)


def test_mistral_4_is_refused_before_its_tensors_are_looked_at(tmp_path: Path) -> None:
    save_case(CASES["mistral with images"], tmp_path)
    text = json.loads((tmp_path / "config.json").read_text())["text_config"]
    edit_json(tmp_path / "config.json", text_config={**text, "model_type": "mistral4", "kv_lora_rank": 256})
    with pytest.raises(ModelError, match=r"config.json: text_config: model_type is 'mistral4'"):
        open_transformer(tmp_path)


@pytest.mark.parametrize("rope", [{"rope_type": "default"}, {"llama_4_scaling_beta": None}])
def test_ministral_3_without_its_scale_is_refused(rope: dict[str, Any]) -> None:
    config = default_config("Ministral3ForCausalLM")
    with pytest.raises(ModelError, match=r"rope_parameters: llama_4_scaling_beta is (missing|null)"):
        read({**config, "rope_parameters": {"rope_theta": 1e6, **rope}})


def test_layers_listed_otherwise_than_they_are_computed_are_refused() -> None:
    for name in ("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"):
        config = {**default_config(name), "sliding_window": None}
        layers = config["num_hidden_layers"]
        assert read({**config, "layer_types": ["full_attention"] * layers}) == read(config)
        with pytest.raises(ModelError, match=r"config.json: .*layer_types"):
            read({**config, "layer_types": ["full_attention", "sliding_attention"] * (layers // 2)})
        with pytest.raises(ModelError, match=r"config.json: layer_types is .'linear_attention'"):
            read({**config, "layer_types": ["linear_attention"] * layers})
    types = ["full_attention", "sliding_attention"] * 16
    with pytest.raises(ModelError, match=r"config.json: layer_types lists full_attention"):
        read({**default_config("MistralForCausalLM"), "layer_types": types})


def test_no_name_of_a_key_and_no_value_forges_a_line() -> None:
    config = default_config("LlamaForCausalLM")
    with pytest.raises(ModelError) as caught:
        read({**config, "x_scale\n\x1b[2Jconfig.json: fine" + "s" * 500: "a\nb" * 1000})
    assert len(str(caught.value)) < 400
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("positions", "named"),
    [
        ({"rope_type": "yarn", "rope_theta": 1, "factor": 4, "original_max_position_embeddings": 64}, "rope_theta"),
        ({"rope_type": "yarn", "factor": 4, "beta_fast": 5e-324, "original_max_position_embeddings": 64}, "beta_fast"),
        ({"rope_type": "yarn", "factor": 4, "beta_slow": 1e308, "original_max_position_embeddings": 64}, "beta_slow"),
        ({"rope_type": "linear", "factor": 5e-324}, "factor"),
        (
            {"rope_type": "longrope", "factor": 4, "original_max_position_embeddings": 1}
            | {"short_factor": [1.0] * 8, "long_factor": [1.0] * 8},
            "original_max_position_embeddings",
        ),
    ],
)
def test_positions_that_cannot_be_computed_are_named(positions: dict[str, Any], named: str) -> None:
    config = {**default_config("LlamaForCausalLM"), "head_dim": 16, "rope_parameters": {"rope_theta": 1e4, **positions}}
    with pytest.raises(ModelError, match=named):
        read_spec(config, "config.json")
