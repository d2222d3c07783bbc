"""The architectures that run, one row each: how they differ from Llama.

Every default is that of the architecture's configuration class in `transformers` 5, which is what a `config.json`
without the key means. Sources of the differences: the models' own code and cards; `formats/models.md` of the plan lists
where an earlier engine deviated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exlchat.engine.family import Aliases, Family

_LLAMA = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048}
_GEMMA = {
    **_LLAMA,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
_GEMMA2 = {
    **_GEMMA,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3 = {
    **_GEMMA,
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
_POST_NORMS = (
    ("post_attention_layernorm", "attention_post_norm"),
    ("pre_feedforward_layernorm", "post_attention_layernorm"),
    ("post_feedforward_layernorm", "mlp_post_norm"),
)
_ONLY_POST_NORMS = (
    ("post_attention_layernorm", "attention_post_norm"),
    ("post_feedforward_layernorm", "mlp_post_norm"),
)
_QWEN2 = {**_LLAMA, "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}
_QWEN_ROUTER = (("mlp.gate", "mlp.router"),)
# What `transformers` 5 writes.
_QWEN_EXPERTS: Aliases = {"num_experts": ("num_local_experts",)}
_MISTRAL = {**_LLAMA, "sliding_window": 4096, "max_position_embeddings": 131072}
_COHERE = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
}
_GPT2_LAYER = (
    # Masks, which old files hold.
    ("attn.bias", ""),
    ("attn.masked_bias", ""),
    ("ln_1", "input_layernorm"),
    ("ln_2", "post_attention_layernorm"),
    ("attn.c_attn", "self_attn.qkv_proj"),
    ("attn.c_proj", "self_attn.o_proj"),
    # What EXL2 files of these models call the same.
    ("self_attn.c_attn", "self_attn.qkv_proj"),
    ("mlp.c_fc", "mlp.up_proj"),
    ("mlp.c_proj", "mlp.down_proj"),
)
_GPT2_OUTER = (
    ("transformer.wte", "model.embed_tokens"),
    ("transformer.wpe", "model.embed_positions"),
    ("transformer.ln_f", "model.norm"),
    ("model.wte", "model.embed_tokens"),
    ("model.wpe", "model.embed_positions"),
    ("wte", "model.embed_tokens"),
    ("wpe", "model.embed_positions"),
    ("ln_f", "model.norm"),
)
_GPT2_KEYS: Aliases = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "max_position_embeddings": ("n_positions", "n_ctx"),
    "intermediate_size": ("n_inner",),
}
_GPT2 = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 1024}

_FAMILY_OF_QWEN2 = Family(qkv_bias=True, output_bias=False, windows="upper", defaults=_QWEN2)
_FAMILY_OF_MISTRAL = Family(mlp_bias="mlp_bias", windows="all", defaults=_MISTRAL)
_FAMILY_OF_GEMMA3 = Family(
    layer_names=_POST_NORMS,
    norm_offset=1.0,
    norm_after=True,
    head_norms="rms",
    activation="hidden_activation",
    windows="period",
    window_period=6,
    scales="gemma query",
    softcaps="final",
    window_needed=True,
    fixed={"use_bidirectional_attention": False},
    defaults=_GEMMA3,
)
_FAMILY_OF_COHERE = Family(
    norm_kind="layer",
    parallel=True,
    eps="layer_norm_eps",
    interleaved=True,
    head_norms="layer",
    scales="cohere",
    defaults=_COHERE,
)
_FAMILY_OF_GLM = Family(
    interleaved=True,
    output_bias=False,
    defaults={
        **_LLAMA,
        "rms_norm_eps": 1.5625e-07,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "max_position_embeddings": 131072,
    },
)
_FAMILY_OF_GPT2 = Family(
    layer_names=_GPT2_LAYER,
    outer_names=_GPT2_OUTER,
    aliases=_GPT2_KEYS,
    norm_kind="layer",
    norm_bias=True,
    eps="layer_norm_epsilon",
    activation="activation_function",
    gated=False,
    learned_positions=True,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
    transposed=True,
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    defaults={**_GPT2, "activation_function": "gelu_new"},
)
_IN_LANGUAGE_MODEL = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
)
_QWEN2_WITH_IMAGES = Family(
    text_model="Qwen2ForCausalLM",
    outer_names=_IN_LANGUAGE_MODEL,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80},
)

FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(mlp_bias="mlp_bias", defaults=_LLAMA),
    "YiForCausalLM": Family(
        layer_names=(("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")),
        defaults={**_LLAMA, "rope_theta": 5e6},
    ),
    "MistralForCausalLM": _FAMILY_OF_MISTRAL,
    "MinistralForCausalLM": Family(qkv_bias=False, output_bias=False, windows="period", defaults=_MISTRAL),
    "Mistral3ForConditionalGeneration": Family(text_model="MistralForCausalLM", outer_names=_IN_LANGUAGE_MODEL),
    "LlavaForConditionalGeneration": Family(text_model="MistralForCausalLM", outer_names=_IN_LANGUAGE_MODEL),
    "MixtralForCausalLM": Family(
        layer_names=(
            ("block_sparse_moe.experts.*.w1", "mlp.experts.*.gate_proj"),
            ("block_sparse_moe.experts.*.w2", "mlp.experts.*.down_proj"),
            ("block_sparse_moe.experts.*.w3", "mlp.experts.*.up_proj"),
            ("block_sparse_moe.gate", "mlp.router"),
        ),
        qkv_bias=False,
        output_bias=False,
        windows="all",
        experts="mixtral",
        defaults={
            **_LLAMA,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "max_position_embeddings": 131072,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
    ),
    "Qwen2ForCausalLM": _FAMILY_OF_QWEN2,
    "Qwen2VLForConditionalGeneration": _QWEN2_WITH_IMAGES,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2_WITH_IMAGES,
    "Qwen2MoeForCausalLM": Family(
        layer_names=_QWEN_ROUTER,
        aliases=_QWEN_EXPERTS,
        qkv_bias="qkv_bias",
        output_bias=False,
        windows="upper",
        experts="qwen shared",
        defaults={
            **_QWEN2,
            "qkv_bias": True,
            "num_experts": 60,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
        },
    ),
    "Qwen3ForCausalLM": Family(
        head_norms="rms", windows="upper", defaults={**_QWEN2, "head_dim": 128, "max_position_embeddings": 32768}
    ),
    "Qwen3MoeForCausalLM": Family(
        layer_names=_QWEN_ROUTER,
        aliases=_QWEN_EXPERTS,
        head_norms="rms",
        windows="upper",
        experts="qwen",
        defaults={
            **_QWEN2,
            "max_window_layers": 0,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
    ),
    "GemmaForCausalLM": Family(
        norm_offset=1.0, scales="gemma", fixed={"use_bidirectional_attention": False}, defaults=_GEMMA
    ),
    "Gemma2ForCausalLM": Family(
        layer_names=_POST_NORMS,
        norm_offset=1.0,
        norm_after=True,
        activation="hidden_activation",
        windows="period",
        window_period=2,
        scales="gemma query",
        softcaps="both",
        window_needed=True,
        fixed={"use_bidirectional_attention": False},
        defaults=_GEMMA2,
    ),
    "Gemma3ForCausalLM": _FAMILY_OF_GEMMA3,
    "Gemma3ForConditionalGeneration": Family(text_model="Gemma3ForCausalLM", outer_names=_IN_LANGUAGE_MODEL),
    "Phi3ForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        windows="all",
        defaults={
            **_LLAMA,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
        },
    ),
    "CohereForCausalLM": _FAMILY_OF_COHERE,
    "Cohere2ForCausalLM": replace(
        _FAMILY_OF_COHERE,
        head_norms="none",
        windows="period",
        window_period=4,
        window_needed=True,
        positions="windows",
        defaults={**_COHERE, "rope_theta": 10000.0, "sliding_window": 4096},
    ),
    "GraniteForCausalLM": Family(
        mlp_bias="mlp_bias",
        scales="granite",
        defaults={
            **_LLAMA,
            "attention_multiplier": 1.0,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        },
    ),
    "GlmForCausalLM": _FAMILY_OF_GLM,
    "Glm4ForCausalLM": replace(
        _FAMILY_OF_GLM,
        layer_names=(
            ("post_self_attn_layernorm", "attention_post_norm"),
            ("post_mlp_layernorm", "mlp_post_norm"),
        ),
        norm_after=True,
    ),
    "InternLM2ForCausalLM": Family(
        layer_names=(
            ("attention_norm", "input_layernorm"),
            ("ffn_norm", "post_attention_layernorm"),
            ("attention.wqkv", "self_attn.qkv_proj"),
            ("attention.wo", "self_attn.o_proj"),
            ("feed_forward.w1", "mlp.gate_proj"),
            ("feed_forward.w2", "mlp.down_proj"),
            ("feed_forward.w3", "mlp.up_proj"),
            ("self_attn.wqkv", "self_attn.qkv_proj"),
        ),
        outer_names=(("output.", "lm_head."), ("model.tok_embeddings.", "model.embed_tokens.")),
        qkv_bias="bias",
        output_bias="bias",
        heads_by_group=True,
        defaults={**_LLAMA, "bias": True},
    ),
    "Starcoder2ForCausalLM": Family(
        layer_names=(("mlp.c_fc", "mlp.up_proj"), ("mlp.c_proj", "mlp.down_proj")),
        norm_kind="layer",
        norm_bias=True,
        eps="norm_epsilon",
        gated=False,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        windows="all",
        defaults={
            "norm_epsilon": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_theta": 10000.0,
            "use_bias": True,
            "tie_word_embeddings": True,
            "max_position_embeddings": 4096,
        },
    ),
    "Olmo2ForCausalLM": Family(
        layer_names=_ONLY_POST_NORMS,
        norm_before=False,
        norm_after=True,
        head_norms="joint",
        defaults={**_LLAMA, "rms_norm_eps": 1e-5},
    ),
    "SmolLM3ForCausalLM": Family(
        mlp_bias="mlp_bias",
        windows="without positions",
        positions="listed",
        defaults={
            **_LLAMA,
            "rope_theta": 2e6,
            "tie_word_embeddings": True,
            "no_rope_layer_interval": 4,
            "max_position_embeddings": 32768,
        },
    ),
    "ExaoneForCausalLM": Family(
        layer_names=(
            ("ln_1", "input_layernorm"),
            ("ln_2", "post_attention_layernorm"),
            ("attn.attention.q_proj", "self_attn.q_proj"),
            ("attn.attention.k_proj", "self_attn.k_proj"),
            ("attn.attention.v_proj", "self_attn.v_proj"),
            ("attn.attention.out_proj", "self_attn.o_proj"),
            ("mlp.c_fc_0", "mlp.gate_proj"),
            ("mlp.c_fc_1", "mlp.up_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
        ),
        outer_names=(("transformer.wte", "model.embed_tokens"), ("transformer.ln_f", "model.norm")),
        aliases={"num_hidden_layers": ("num_layers",)},
        eps="layer_norm_epsilon",
        activation="activation_function",
        qkv_bias=False,
        output_bias=False,
        defaults={
            "layer_norm_epsilon": 1e-5,
            "activation_function": "silu",
            "rope_theta": 10000.0,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
        },
    ),
    "Exaone4ForCausalLM": Family(
        layer_names=_ONLY_POST_NORMS,
        norm_before=False,
        norm_after=True,
        head_norms="rms",
        qkv_bias=False,
        output_bias=False,
        windows="period",
        window_period=4,
        positions="windows",
        defaults={**_LLAMA, "rms_norm_eps": 1e-5, "sliding_window": 4096},
    ),
    "SeedOssForCausalLM": Family(
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
        defaults={**_LLAMA, "head_dim": 128, "attention_bias": True, "max_position_embeddings": 524288},
    ),
    "GptOssForCausalLM": Family(
        windows="period",
        window_period=2,
        window_needed=True,
        sinks=True,
        experts="stacked",
        defaults={
            **_LLAMA,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "head_dim": 64,
            "attention_bias": True,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "swiglu_limit": 7.0,
            "swiglu_alpha": 1.702,
            "max_position_embeddings": 131072,
        },
    ),
    "MiniCPMForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        scales="minicpm",
        defaults={**_LLAMA, "tie_word_embeddings": True, "scale_emb": 1.0, "dim_model_base": 1, "scale_depth": 1.0},
    ),
    "OrionForCausalLM": Family(
        norm_kind="layer",
        norm_bias=True,
        qkv_bias=False,
        output_bias=False,
        defaults={**_LLAMA, "rms_norm_eps": 1e-5},
    ),
    "StableLmForCausalLM": Family(
        norm_kind="layer",
        norm_bias=True,
        eps="layer_norm_eps",
        qkv_bias="use_qkv_bias",
        output_bias=False,
        fixed={"qk_layernorm": False, "use_parallel_residual": False},
        defaults={
            "layer_norm_eps": 1e-5,
            "hidden_act": "silu",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.25,
            "max_position_embeddings": 4096,
        },
    ),
    "GPT2LMHeadModel": _FAMILY_OF_GPT2,
    "GPTBigCodeForCausalLM": replace(
        _FAMILY_OF_GPT2,
        transposed=False,
        heads_by_group=True,
        fixed={"scale_attn_weights": True, "add_cross_attention": False},
        defaults={**_GPT2, "activation_function": "gelu_pytorch_tanh", "multi_query": True},
    ),
}
SUPPORTED = tuple(FAMILIES)
# What models of images and text may hold one of, by `model_type` of their `text_config`.
_TEXT_MODELS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The row of a `config.json`, of the text part where that is what runs; `None` for what is not known."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None or family.text_model is None:
        return family
    text = config.get("text_config")
    kind = text.get("model_type") if isinstance(text, dict) else None
    own = _TEXT_MODELS.get(kind) if isinstance(kind, str) else None
    return FAMILIES[own or family.text_model]
