"""What a row of the table of families says: how an architecture differs from Llama."""

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
