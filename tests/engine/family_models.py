"""Random small models of every architecture, saved by `transformers`, which also says what their logits are.

Architectures that `transformers` does not have are written under their own names and keys from one that computes the
same: InternLM2 and EXAONE 3.5 are Llamas, MiniCPM is a Granite, Orion a StableLM that turns whole heads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tests.random_models import save_tokenizer

Files = tuple[dict[str, Tensor], dict[str, Any]]
SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attn_implementation": "eager",
}
NO_HEAD_DIM = {"head_dim": None}
GPT2_SIZES: dict[str, Any] = {
    "vocab_size": 384,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "attn_implementation": "eager",
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "long_factor": [1.0 + 0.5 * i for i in range(8)],
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
}
MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 64}


@dataclass(frozen=True, slots=True)
class Case:
    """One model.

    Args:
        model_type: as `transformers` calls it.
        changes: of its configuration.
        rewrite: tensors and config as saved -> as the architecture's own files have them.
        context: the longest sequence that the engine is told of, where that changes what it computes.
        change: of the model before it is saved.
    """

    model_type: str
    changes: dict[str, Any] = field(default_factory=dict)
    rewrite: Callable[[dict[str, Tensor], dict[str, Any]], Files] | None = None
    context: int | None = None
    change: Callable[[PreTrainedModel], None] | None = None


def _renamed(tensors: dict[str, Tensor], *pairs: tuple[str, str]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in tensors.items():
        new = name
        for old, other in pairs:
            new = new.replace(old, other)
        found[new] = tensor
    return found


def as_internlm2(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    """A joined projection that holds the heads of each group together."""
    renamed = _renamed(
        tensors,
        ("model.embed_tokens", "model.tok_embeddings"),
        ("lm_head", "output"),
        ("input_layernorm", "attention_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attention.wo"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("mlp.down_proj", "feed_forward.w2"),
    )
    heads, kv_heads, dim = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    for index in range(config["num_hidden_layers"]):
        attention = f"model.layers.{index}.self_attn"
        for kind in ("weight", "bias"):
            if f"{attention}.q_proj.{kind}" not in renamed:
                continue
            q, k, v = (renamed.pop(f"{attention}.{name}_proj.{kind}") for name in "qkv")
            groups = [
                part
                for group in range(kv_heads)
                for part in (
                    q.view(kv_heads, heads // kv_heads * dim, *q.shape[1:])[group],
                    k.view(kv_heads, dim, *k.shape[1:])[group],
                    v.view(kv_heads, dim, *v.shape[1:])[group],
                )
            ]
            renamed[f"model.layers.{index}.attention.wqkv.{kind}"] = torch.cat(groups)
    bias = config.pop("attention_bias")
    return renamed, {**config, "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "bias": bias}


def as_exaone(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    renamed = _renamed(
        tensors,
        ("model.embed_tokens", "transformer.wte"),
        ("model.norm", "transformer.ln_f"),
        ("model.layers", "transformer.h"),
        ("input_layernorm", "ln_1"),
        ("post_attention_layernorm", "ln_2"),
        ("self_attn.o_proj", "attn.attention.out_proj"),
        ("self_attn", "attn.attention"),
        ("gate_proj", "c_fc_0"),
        ("up_proj", "c_fc_1"),
        ("down_proj", "c_proj"),
    )
    config["num_layers"] = config.pop("num_hidden_layers")
    config["layer_norm_epsilon"] = config.pop("rms_norm_eps")
    config["activation_function"] = config.pop("hidden_act")
    return renamed, {**config, "architectures": ["ExaoneForCausalLM"], "model_type": "exaone"}


def as_minicpm(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    config["scale_emb"] = config.pop("embedding_multiplier")
    config["scale_depth"] = config.pop("residual_multiplier") * config["num_hidden_layers"] ** 0.5
    config["dim_model_base"] = config["hidden_size"] / config.pop("logits_scaling")
    del config["attention_multiplier"]
    return tensors, {**config, "architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm"}


def as_orion(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    config["rms_norm_eps"] = config.pop("layer_norm_eps")
    return tensors, {**config, "architectures": ["OrionForCausalLM"], "model_type": "orion"}


def norms_of_each_head(*between: int) -> Callable[[PreTrainedModel], None]:
    """Norms of heads with a weight for each of them.

    Args:
        between: sizes of the axes between that of heads and that of their elements where the model norms them.
    """

    def change(model: PreTrainedModel) -> None:
        for key, norm in model.named_modules():
            if key.endswith(("q_norm", "k_norm")):
                config = model.config
                heads = config.num_attention_heads if key.endswith("q_norm") else config.num_key_value_heads
                own = torch.randn(heads, *between, len(norm.weight)) * 0.3
                norm.weight = torch.nn.Parameter(norm.weight.detach() + own)

    return change


def one_norm_for_all_heads(model: PreTrainedModel) -> None:
    """Equal rows, where the model has one for each head."""
    for key, parameter in model.named_parameters():
        if key.endswith(("q_norm.weight", "k_norm.weight")):
            parameter.data[:] = parameter.data[0].clone()


def with_flat_norms(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    """Norms of each head as `[heads, head_dim]`."""
    flat = {name: tensor.squeeze(1) if "self_attn" in name else tensor for name, tensor in tensors.items()}
    return flat, config


def as_yi(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    renamed = _renamed(tensors, ("input_layernorm", "ln1"), ("post_attention_layernorm", "ln2"))
    return renamed, {**config, "architectures": ["YiForCausalLM"], "model_type": "Yi"}


def with_images(prefix: str, architecture: str) -> Callable[[dict[str, Tensor], dict[str, Any]], Files]:
    """As the text part of a model that also sees, beside a tensor of the other part."""

    def rewrite(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
        if prefix == "model.language_model.":
            renamed = _renamed(tensors, ("model.", prefix))
        else:
            renamed = {f"{prefix}{name}": tensor for name, tensor in tensors.items()}
        renamed["vision_tower.layers.0.weight"] = torch.zeros(3, 3)
        tied = config.pop("tie_word_embeddings")
        return renamed, {"architectures": [architecture], "tie_word_embeddings": tied, "text_config": config}

    return rewrite


def as_old_rope(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    """As files before `transformers` 5 spell rotary positions."""
    section = dict(config.pop("rope_parameters"))
    config["rope_theta"] = section.pop("rope_theta")
    if section.get("rope_type", "default") != "default":
        section["type"] = section.pop("rope_type")
        config["rope_scaling"] = section
    return tensors, config


def as_old_gemma3(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    sections = config.pop("rope_parameters")
    config["rope_theta"] = sections["full_attention"]["rope_theta"]
    config["rope_local_base_freq"] = sections["sliding_attention"]["rope_theta"]
    config["rope_scaling"] = {"rope_type": "linear", "factor": sections["full_attention"]["factor"]}
    period = config.pop("layer_types").index("full_attention") + 1
    config.pop("_sliding_window_pattern", None)
    return tensors, {**config, "sliding_window_pattern": period}


def as_old_olmo3(tensors: dict[str, Tensor], config: dict[str, Any]) -> Files:
    section = dict(config.pop("rope_parameters")["full_attention"])
    config["rope_theta"] = section.pop("rope_theta")
    return tensors, {**config, "rope_scaling": section}


_GEMMA3 = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
    },
}
# Queries grow at 16, 32, 48 ... tokens.
_MINISTRAL3 = {
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 16.0,
        "original_max_position_embeddings": 16,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
_OLMO3 = {
    "head_dim": None,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_parameters": {
        "full_attention": YARN,
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
_GRANITE = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.11,
    "logits_scaling": 5.0,
}
_PHI3 = {"head_dim": None, "original_max_position_embeddings": 64, "partial_rotary_factor": 1.0}

CASES: dict[str, Case] = {
    "llama": Case("llama"),
    "llama, heads of their own, tied": Case("llama", {"num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama, dynamic positions": Case(
        "llama",
        {"max_position_embeddings": 64, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}},
        context=200,
    ),
    "llama, dynamic positions, short": Case(
        "llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0}}, context=200
    ),
    "llama, yarn": Case("llama", {"rope_parameters": YARN}),
    "llama, yarn by name of the parts": Case(
        "llama",
        {
            "rope_parameters": {
                **YARN,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "mscale": 0.7,
                "mscale_all_dim": 0.9,
                "truncate": False,
            }
        },
    ),
    "llama, yarn as old files write it": Case("llama", {"rope_parameters": YARN}, as_old_rope),
    "yi": Case("llama", {"rope_parameters": {"rope_theta": 5e6, "rope_type": "default"}}, as_yi),
    "yi, tied": Case("llama", {"tie_word_embeddings": True, "num_key_value_heads": 1}, as_yi),
    "mistral": Case("mistral", {"sliding_window": 24}),
    "mistral, no window": Case("mistral", {"sliding_window": None, "num_key_value_heads": 1}),
    "mistral with images": Case(
        "mistral", {"sliding_window": None}, with_images("language_model.", "Mistral3ForConditionalGeneration")
    ),
    "ministral": Case(
        "ministral",
        {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "ministral, all layers": Case("ministral", {"sliding_window": 40, "num_key_value_heads": 4}),
    "ministral3": Case("ministral3", _MINISTRAL3),
    "ministral3, plain positions, window": Case(
        "ministral3",
        {
            "sliding_window": 24,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e4,
                "original_max_position_embeddings": 50,
                "llama_4_scaling_beta": 0.4,
            },
        },
    ),
    "ministral3 with images": Case(
        "ministral3", _MINISTRAL3, with_images("language_model.", "Mistral3ForConditionalGeneration")
    ),
    "mixtral": Case("mixtral", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral, three of eight": Case(
        "mixtral", {"num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 24, "num_key_value_heads": 1}
    ),
    "qwen2": Case("qwen2", NO_HEAD_DIM),
    "qwen2, upper windows, tied": Case(
        "qwen2",
        {
            **NO_HEAD_DIM,
            "use_sliding_window": True,
            "sliding_window": 24,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ),
    "qwen2 with images": Case(
        "qwen2", NO_HEAD_DIM, with_images("model.language_model.", "Qwen2VLForConditionalGeneration")
    ),
    "qwen2_moe": Case("qwen2_moe", {**NO_HEAD_DIM, **MOE, "shared_expert_intermediate_size": 96}),
    "qwen2_moe, some layers dense, renormalised": Case(
        "qwen2_moe",
        {
            **NO_HEAD_DIM,
            **MOE,
            "shared_expert_intermediate_size": 32,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "qkv_bias": False,
        },
    ),
    "qwen3": Case("qwen3", {"head_dim": 32}),
    "qwen3, biases, tied": Case("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3, a norm of each head": Case("qwen3", change=norms_of_each_head()),
    "qwen3_moe, a norm of each head": Case("qwen3_moe", {**MOE, "num_key_value_heads": 1}, change=norms_of_each_head()),
    "qwen3_moe": Case("qwen3_moe", {**MOE, "norm_topk_prob": True}),
    "qwen3_moe, every second layer": Case(
        "qwen3_moe", {**MOE, "num_experts_per_tok": 4, "decoder_sparse_step": 2, "num_key_value_heads": 4}
    ),
    "gemma": Case("gemma"),
    "gemma, one key-value head": Case("gemma", {"num_key_value_heads": 1, "head_dim": 24}),
    "gemma2": Case(
        "gemma2",
        {
            "sliding_window": 24,
            "query_pre_attn_scalar": 20,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma2, no caps": Case(
        "gemma2", {"sliding_window": 40, "attn_logit_softcapping": None, "final_logit_softcapping": None}
    ),
    "gemma3": Case("gemma3_text", _GEMMA3),
    "gemma3 as old files write it": Case("gemma3_text", _GEMMA3, as_old_gemma3),
    "gemma3 with images": Case(
        "gemma3_text", _GEMMA3, with_images("language_model.", "Gemma3ForConditionalGeneration")
    ),
    "gemma3 with images, newer names": Case(
        "gemma3_text", _GEMMA3, with_images("model.language_model.", "Gemma3ForConditionalGeneration")
    ),
    "gemma3, a norm of each head": Case("gemma3_text", _GEMMA3, with_flat_norms, change=norms_of_each_head(1)),
    "phi3": Case("phi3", {"head_dim": None, "original_max_position_embeddings": 256}),
    "phi3, part of a head, window, tied": Case(
        "phi3",
        {
            "head_dim": None,
            "original_max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "sliding_window": 24,
            "tie_word_embeddings": True,
        },
    ),
    "phi3, long": Case("phi3", {**_PHI3, "rope_parameters": LONG}, context=200),
    "phi3, long as old files write it": Case("phi3", {**_PHI3, "rope_parameters": LONG}, as_old_rope, context=200),
    "phi3, long model, short text": Case(
        "phi3",
        {"head_dim": None, "original_max_position_embeddings": 250, "rope_parameters": LONG},
        context=200,
    ),
    "cohere": Case("cohere", {**NO_HEAD_DIM, "logit_scale": 0.3}),
    "cohere, head norms": Case("cohere", {**NO_HEAD_DIM, "use_qk_norm": True, "num_key_value_heads": 4}),
    "cohere, one norm for all heads": Case(
        "cohere", {**NO_HEAD_DIM, "use_qk_norm": True}, change=one_norm_for_all_heads
    ),
    "cohere2": Case(
        "cohere2",
        {
            "sliding_window": 24,
            "logit_scale": 0.3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "cohere2, no window, own heads": Case(
        "cohere2", {"sliding_window": 300, "layer_types": ["sliding_attention"] * 3, "num_key_value_heads": 4}
    ),
    "granite": Case("granite", {**_GRANITE, **NO_HEAD_DIM}),
    "granite, tied, biases": Case(
        "granite", {**_GRANITE, **NO_HEAD_DIM, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}
    ),
    "glm4": Case("glm4"),
    "glm4, no biases, all of a head": Case(
        "glm4",
        {
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0},
        },
    ),
    "glm": Case("glm"),
    "glm, biases of the projections only, tied": Case(
        "glm", {"num_key_value_heads": 1, "attention_bias": False, "tie_word_embeddings": True}
    ),
    "internlm2": Case("llama", {}, as_internlm2),
    "internlm2, biases": Case("llama", {"attention_bias": True, "num_key_value_heads": 1}, as_internlm2),
    "starcoder2": Case("starcoder2", {"sliding_window": 24}),
    "starcoder2, no biases": Case("starcoder2", {"use_bias": False, "tie_word_embeddings": False}),
    "olmo2": Case("olmo2", NO_HEAD_DIM),
    "olmo2, one key-value head": Case("olmo2", {**NO_HEAD_DIM, "num_key_value_heads": 1}),
    "olmo3": Case("olmo3", _OLMO3),
    "olmo3 as old files write it": Case("olmo3", _OLMO3, as_old_olmo3),
    "olmo3, every fourth layer without a window": Case(
        "olmo3", {**NO_HEAD_DIM, "num_hidden_layers": 4, "num_key_value_heads": 1, "sliding_window": 40}
    ),
    "smollm3": Case("smollm3", {**NO_HEAD_DIM, "no_rope_layers": [1, 0, 1]}),
    "smollm3, by interval": Case("smollm3", {**NO_HEAD_DIM, "no_rope_layer_interval": 2}),
    "exaone": Case("llama", {}, as_exaone),
    "exaone, llama3 positions, tied": Case(
        "llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 1e4,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        as_exaone,
    ),
    "exaone4": Case(
        "exaone4",
        {
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "exaone4, no window": Case("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
    "exaone4, a norm of each head": Case(
        "exaone4", {"sliding_window": 40}, with_flat_norms, change=norms_of_each_head(1)
    ),
    "seed_oss": Case("seed_oss"),
    "seed_oss, other biases": Case("seed_oss", {"attention_bias": False, "attention_out_bias": True, "mlp_bias": True}),
    "ernie4_5": Case("ernie4_5"),
    "ernie4_5, biases, a head of its own": Case(
        "ernie4_5", {"use_bias": True, "tie_word_embeddings": False, "num_key_value_heads": 1}
    ),
    "gpt_oss": Case("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24}),
    "gpt_oss, plain positions": Case(
        "gpt_oss",
        {
            "num_local_experts": 8,
            "sliding_window": 40,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
            "attention_bias": False,
        },
    ),
    "minicpm": Case("granite", {**_GRANITE, **NO_HEAD_DIM, "attention_multiplier": 0.25}, as_minicpm),
    "orion": Case(
        "stablelm",
        {**NO_HEAD_DIM, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.0}},
        as_orion,
    ),
    "minicpm, tied, stretched": Case(
        "granite",
        {
            **_GRANITE,
            **NO_HEAD_DIM,
            "attention_multiplier": 0.25,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
        },
        as_minicpm,
    ),
    "orion, one key-value head": Case(
        "stablelm",
        {
            **NO_HEAD_DIM,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e3, "partial_rotary_factor": 1.0},
        },
        as_orion,
    ),
    "stablelm, half of a head": Case(
        "stablelm",
        {
            **NO_HEAD_DIM,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
        },
    ),
    "stablelm": Case("stablelm", {**NO_HEAD_DIM, "use_qkv_bias": True, "num_key_value_heads": 4}),
    "gpt2": Case("gpt2", GPT2_SIZES),
    "gpt2, another width inside": Case("gpt2", {**GPT2_SIZES, "n_inner": 80, "activation_function": "gelu"}),
    "gpt_bigcode": Case("gpt_bigcode", GPT2_SIZES),
    "gpt_bigcode, every head its own": Case("gpt_bigcode", {**GPT2_SIZES, "multi_query": False}),
}
"""Their names begin with the architecture."""


def random_model(case: Case) -> PreTrainedModel:
    """The float32 model that `transformers` runs; its norms, biases and sinks do something."""
    torch.manual_seed(0)
    sizes = case.changes if "n_embd" in case.changes else {**SIZES, **case.changes}
    config = AutoConfig.for_model(
        case.model_type, **{key: value for key, value in sizes.items() if value is not None or key != "head_dim"}
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    center = 0.0 if "gemma" in case.model_type else 1.0
    for key, parameter in model.named_parameters():
        is_norm = "norm" in key or ".ln_" in key
        if key.endswith("bias") or "sinks" in key:
            torch.nn.init.normal_(parameter, std=0.2)
        elif is_norm:
            torch.nn.init.normal_(parameter, mean=center, std=0.2)
        elif "router" in key or "mlp.gate.weight" in key or "experts" in key:
            torch.nn.init.normal_(parameter, std=0.15)
    if case.change is not None:
        case.change(model)
    return model


def save_case(case: Case, path: Path) -> PreTrainedModel:
    """Writes the model's directory and returns the model."""
    model = random_model(case)
    model.save_pretrained(path)
    save_tokenizer(path)
    if case.rewrite is not None:
        tensors, config = case.rewrite(
            load_file(path / "model.safetensors"), json.loads((path / "config.json").read_text())
        )
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
        (path / "config.json").write_text(json.dumps(config))
    return model
