"""The architectures that run, one row each: how they differ from Llama.

Sources of the differences: the models' own code and cards. What absent keys mean is in `family`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from exlchat.engine.model.family import (
    COHERE,
    EXAONE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GLM,
    GPT2,
    GPT_OSS,
    GRANITE,
    LLAMA,
    MINISTRAL3,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3_MOE,
    SMOLLM3,
    STABLELM,
    STARCODER2,
    Aliases,
    Family,
)

_POST_NORMS = (
    ("post_attention_layernorm", "attention_post_norm"),
    ("pre_feedforward_layernorm", "post_attention_layernorm"),
    ("post_feedforward_layernorm", "mlp_post_norm"),
)
_ONLY_POST_NORMS = (
    ("post_attention_layernorm", "attention_post_norm"),
    ("post_feedforward_layernorm", "mlp_post_norm"),
)
_QWEN_ROUTER = (("mlp.gate", "mlp.router"),)
# What `transformers` 5 writes.
_QWEN_EXPERTS: Aliases = {"num_experts": ("num_local_experts",)}
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

_FAMILY_OF_QWEN2 = Family(
    qkv_bias=True, output_bias=False, windows="upper", settled=("attention_bias", "qkv_bias"), defaults=QWEN2
)
_FAMILY_OF_MISTRAL = Family(mlp_bias="mlp_bias", windows="all", defaults=MISTRAL)
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
    defaults=GEMMA3,
)
_FAMILY_OF_COHERE = Family(
    norm_kind="layer",
    parallel=True,
    eps="layer_norm_eps",
    interleaved=True,
    head_norms="layer",
    scales="cohere",
    defaults=COHERE,
)
_FAMILY_OF_GLM = Family(
    interleaved=True,
    output_bias=False,
    defaults=GLM,
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
    defaults={**GPT2, "activation_function": "gelu_new"},
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
    "LlamaForCausalLM": Family(mlp_bias="mlp_bias", defaults=LLAMA),
    "YiForCausalLM": Family(
        layer_names=(("ln1", "input_layernorm"), ("ln2", "post_attention_layernorm")),
        defaults={**LLAMA, "rope_theta": 5e6},
    ),
    "MistralForCausalLM": _FAMILY_OF_MISTRAL,
    "Ministral3ForCausalLM": replace(
        _FAMILY_OF_MISTRAL,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        query_scaled=True,
        defaults=MINISTRAL3,
    ),
    "MinistralForCausalLM": Family(qkv_bias=False, output_bias=False, windows="period", defaults=MISTRAL),
    "Mistral3ForConditionalGeneration": Family(text_model="MistralForCausalLM", outer_names=_IN_LANGUAGE_MODEL),
    "LlavaForConditionalGeneration": Family(text_model="LlamaForCausalLM", outer_names=_IN_LANGUAGE_MODEL),
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
        defaults=MIXTRAL,
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
        defaults=QWEN2_MOE,
    ),
    "Qwen3ForCausalLM": Family(
        head_norms="rms", windows="upper", defaults={**QWEN2, "head_dim": 128, "max_position_embeddings": 32768}
    ),
    "Qwen3MoeForCausalLM": Family(
        layer_names=_QWEN_ROUTER,
        aliases=_QWEN_EXPERTS,
        head_norms="rms",
        windows="upper",
        experts="qwen",
        fixed={"use_qk_norm": True},
        defaults=QWEN3_MOE,
    ),
    "GemmaForCausalLM": Family(
        norm_offset=1.0, scales="gemma", fixed={"use_bidirectional_attention": False}, defaults=GEMMA
    ),
    "Gemma2ForCausalLM": Family(
        layer_names=_POST_NORMS,
        aliases={"sliding_window": ("sliding_window_size",)},
        norm_offset=1.0,
        norm_after=True,
        activation="hidden_activation",
        windows="period",
        window_period=2,
        scales="gemma query",
        softcaps="both",
        window_needed=True,
        fixed={"use_bidirectional_attention": False},
        defaults=GEMMA2,
    ),
    "Gemma3ForCausalLM": _FAMILY_OF_GEMMA3,
    "Gemma3ForConditionalGeneration": Family(text_model="Gemma3ForCausalLM", outer_names=_IN_LANGUAGE_MODEL),
    "Phi3ForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        windows="all",
        defaults={
            **LLAMA,
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
        # As Cohere's own programs spell it.
        fixed={
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
            "rotary_pct": 1.0,
            "use_gated_activation": True,
            "use_parallel_block": True,
        },
        defaults={**COHERE, "rope_theta": 10000.0, "sliding_window": 4096},
    ),
    "GraniteForCausalLM": Family(
        mlp_bias="mlp_bias",
        scales="granite",
        defaults=GRANITE,
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
        defaults={**LLAMA, "bias": True},
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
        fixed={"norm_type": "layer_norm", "mlp_type": "default", "scale_attn_weights": True},
        defaults=STARCODER2,
    ),
    "Olmo2ForCausalLM": Family(
        layer_names=_ONLY_POST_NORMS,
        norm_before=False,
        norm_after=True,
        head_norms="joint",
        defaults={**LLAMA, "rms_norm_eps": 1e-5},
    ),
    "Olmo3ForCausalLM": Family(
        layer_names=_ONLY_POST_NORMS,
        # Layers with a window have the same base, and nothing of the `rope_scaling` of older files.
        aliases={"rope_local_base_freq": ("rope_theta",)},
        norm_before=False,
        norm_after=True,
        head_norms="joint",
        windows="period",
        window_period=4,
        defaults={
            **LLAMA,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "rope_local_base_freq": 500000.0,
            "sliding_window": 4096,
        },
    ),
    "SmolLM3ForCausalLM": Family(
        mlp_bias="mlp_bias",
        windows="without positions",
        positions="listed",
        defaults=SMOLLM3,
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
        defaults=EXAONE,
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
        defaults={**LLAMA, "rms_norm_eps": 1e-5, "sliding_window": 4096},
    ),
    "SeedOssForCausalLM": Family(
        output_bias="attention_out_bias",
        mlp_bias="mlp_bias",
        defaults={**LLAMA, "head_dim": 128, "attention_bias": True, "max_position_embeddings": 524288},
    ),
    "Ernie4_5ForCausalLM": Family(
        interleaved=True,
        qkv_bias="use_bias",
        output_bias="use_bias",
        mlp_bias="use_bias",
        defaults={
            **LLAMA,
            "rms_norm_eps": 1e-5,
            "head_dim": 128,
            "rope_theta": 500000.0,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
        },
    ),
    "GptOssForCausalLM": Family(
        windows="period",
        window_period=2,
        window_needed=True,
        sinks=True,
        experts="stacked",
        aliases={"num_experts_per_tok": ("experts_per_token",)},
        defaults=GPT_OSS,
    ),
    "MiniCPMForCausalLM": Family(
        qkv_bias=False,
        output_bias=False,
        scales="minicpm",
        defaults={**LLAMA, "tie_word_embeddings": True, "scale_emb": 1.0, "dim_model_base": 1, "scale_depth": 1.0},
    ),
    "OrionForCausalLM": Family(
        norm_kind="layer",
        norm_bias=True,
        qkv_bias=False,
        output_bias=False,
        defaults={**LLAMA, "rms_norm_eps": 1e-5},
    ),
    "StableLmForCausalLM": Family(
        norm_kind="layer",
        norm_bias=True,
        eps="layer_norm_eps",
        qkv_bias="use_qkv_bias",
        output_bias=False,
        fixed={"qk_layernorm": False, "use_parallel_residual": False},
        defaults=STABLELM,
    ),
    "GPT2LMHeadModel": _FAMILY_OF_GPT2,
    "GPTBigCodeForCausalLM": replace(
        _FAMILY_OF_GPT2,
        transposed=False,
        heads_by_group=True,
        fixed={"scale_attn_weights": True, "add_cross_attention": False},
        defaults={**GPT2, "activation_function": "gelu_pytorch_tanh", "multi_query": True},
    ),
}
SUPPORTED = tuple(FAMILIES)
TEXT_MODELS = {
    "gemma3_text": "Gemma3ForCausalLM",
    "llama": "LlamaForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_vl": "Qwen2ForCausalLM",
    "qwen2_vl_text": "Qwen2ForCausalLM",
    "qwen2_5_vl": "Qwen2ForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""What models of images and text may hold one of, by `model_type` of their `text_config`."""


def family_of(config: Mapping[str, Any]) -> Family | None:
    """The row of a `config.json`, of the text part where that is what runs; `None` for what is not known."""
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and len(names) == 1 else None
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None or family.text_model is None:
        return family
    text = config.get("text_config")
    kind = text.get("model_type") if isinstance(text, dict) else None
    own = TEXT_MODELS.get(kind) if isinstance(kind, str) else None
    return FAMILIES[own or family.text_model]
