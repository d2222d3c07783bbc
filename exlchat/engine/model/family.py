"""What a row of the table of families says: how an architecture differs from Llama.

Its `config.json` leaves keys out that its configuration class has defaults for: those of `transformers` 5, and of
models that it does not have, of the code that lies beside their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from exlchat.engine.model.spec import NormKind

Renames = tuple[tuple[str, str], ...]
Biases = bool | str
Aliases = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture differs from Llama's.

    Args:
        layer_names: names of tensors inside a layer, and what `tensor_names` calls them; nothing for what is no weight.
            A `*` is a number.
        outer_names: the same for beginnings of names outside of layers.
        aliases: other names of keys of `config.json`.
        defaults: values of keys that are absent there.
        fixed: keys that can only have this value, because another one is another architecture.
        settled: keys that say nothing here, because the architecture or the tensors do.
        norm_kind, norm_offset, norm_bias, norm_before, norm_after, parallel, interleaved, learned_positions, sinks,
            gated, transposed, heads_by_group: see `ModelSpec`.
        eps: the key of the norms' epsilon.
        activation: the key of the activation.
        head_norms: see `ModelSpec`; `layer` only where `use_qk_norm` says so.
        qkv_bias, output_bias, mlp_bias: whether there are any, or the key that says so.
        windows: which layers see `sliding_window` tokens only, where the config has no `layer_types`: none; all; those
            from `max_window_layers` on, if `use_sliding_window`; all but every nth; those without positions.
        window_period: the n of every nth, 0 for none; `sliding_window_pattern` of the config comes before it.
        query_scaled: whether queries grow with their positions, by `llama_4_scaling_beta`.
        positions: which layers turn queries and keys: all; those with a window, if any has one; as `no_rope_layers`
            says.
        scales: which key or rule gives each of the model's factors.
        softcaps: whether `attn_logit_softcapping` and `final_logit_softcapping` count, or the last alone.
        window_needed: whether a model without `sliding_window` is damaged.
        experts: which layout a mixture of experts has, if the architecture is one.
        text_model: it is a model of images and text, of which the text part is this architecture, unless its
            `text_config` names another; its own `defaults` come before that one's.
    """

    layer_names: Renames = ()
    outer_names: Renames = ()
    aliases: Aliases = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    settled: tuple[str, ...] = ()
    query_scaled: bool = False
    norm_kind: NormKind = "rms"
    norm_offset: float = 0.0
    norm_bias: bool = False
    norm_before: bool = True
    norm_after: bool = False
    parallel: bool = False
    eps: str = "rms_norm_eps"
    activation: str = "hidden_act"
    head_norms: Literal["none", "rms", "layer", "joint"] = "none"
    interleaved: bool = False
    learned_positions: bool = False
    qkv_bias: Biases = "attention_bias"
    output_bias: Biases = "attention_bias"
    mlp_bias: Biases = False
    gated: bool = True
    transposed: bool = False
    heads_by_group: bool = False
    sinks: bool = False
    windows: Literal["none", "all", "upper", "period", "without positions"] = "none"
    window_period: int = 0
    positions: Literal["all", "windows", "listed"] = "all"
    scales: Literal["none", "gemma", "gemma query", "cohere", "granite", "minicpm"] = "none"
    softcaps: Literal["none", "both", "final"] = "none"
    window_needed: bool = False
    experts: Literal["none", "mixtral", "qwen", "qwen shared", "stacked"] = "none"
    text_model: str | None = None


Defaults = Mapping[str, Any]

LLAMA: Defaults = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 10000.0, "max_position_embeddings": 2048}
GEMMA: Defaults = {
    **LLAMA,
    "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 8192,
}
GEMMA2: Defaults = {
    **GEMMA,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
GEMMA3: Defaults = {
    **GEMMA,
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
}
QWEN2: Defaults = {**LLAMA, "sliding_window": 4096, "max_window_layers": 28, "max_position_embeddings": 32768}
MISTRAL: Defaults = {**LLAMA, "sliding_window": 4096, "max_position_embeddings": 131072}
COHERE: Defaults = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 500000.0,
    "tie_word_embeddings": True,
    "logit_scale": 0.0625,
    "max_position_embeddings": 8192,
}
GPT2: Defaults = {"layer_norm_epsilon": 1e-5, "tie_word_embeddings": True, "max_position_embeddings": 1024}
MINISTRAL3: Defaults = {
    **LLAMA,
    "rms_norm_eps": 1e-5,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}
GPT_OSS: Defaults = {
    **LLAMA,
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
}
GLM: Defaults = {
    **LLAMA,
    "rms_norm_eps": 1.5625e-07,
    "head_dim": 128,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "max_position_embeddings": 131072,
}
STARCODER2: Defaults = {
    "norm_epsilon": 1e-5,
    "hidden_act": "gelu_pytorch_tanh",
    "rope_theta": 10000.0,
    "use_bias": True,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
}
MIXTRAL: Defaults = {
    **LLAMA,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "max_position_embeddings": 131072,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN2_MOE: Defaults = {
    **QWEN2,
    "qkv_bias": True,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
}
QWEN3_MOE: Defaults = {
    **QWEN2,
    "max_window_layers": 0,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
GRANITE: Defaults = {
    **LLAMA,
    "attention_multiplier": 1.0,
    "embedding_multiplier": 1.0,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
}
SMOLLM3: Defaults = {
    **LLAMA,
    "rope_theta": 2e6,
    "tie_word_embeddings": True,
    "no_rope_layer_interval": 4,
    "max_position_embeddings": 32768,
}
STABLELM: Defaults = {
    "layer_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 4096,
}
EXAONE: Defaults = {
    "layer_norm_epsilon": 1e-5,
    "activation_function": "silu",
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
}
