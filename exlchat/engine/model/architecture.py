"""`config.json` -> `ModelSpec`: the row of the table of families, filled in with sizes and checked.

Layer by layer, too: which see a window only, and which turn queries and keys.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from exlchat.engine.model.config_reader import ConfigReader, refuse_unread, short
from exlchat.engine.model.families import FAMILIES, SUPPORTED, TEXT_MODELS, family_of
from exlchat.engine.model.family import Biases, Family
from exlchat.engine.model.rope_config import read_ropes
from exlchat.engine.model.spec import Activation, ExpertSpec, HeadNorms, ModelSpec, RopeSpec

_SLIDING, _FULL = "sliding_attention", "full_attention"


def read_windows(reader: ConfigReader, family: Family, layers: int) -> tuple[int, ...]:
    """What each layer sees; 0 is all. Newer Mistral models have no window (null).

    Raises:
        ModelError: a key is wrong, or two contradict each other.
    """
    if family.windows not in ("none", "all"):
        # `layer_types` comes before some of them, and where no window is used they say nothing.
        reader.known("sliding_window", "sliding_window_pattern", "max_window_layers")
    listed, window = _listed_windows(reader, layers), _window(reader, family)
    if window is None:
        _check_all_full(reader, listed)
        return (0,) * layers
    narrow = _narrow_layers(reader, family, layers) if listed is None or family.windows == "all" else listed
    if listed not in (None, narrow):
        raise reader.error("layer_types", f"lists {_FULL}, but all layers of this architecture have the sliding_window")
    return tuple(window if is_narrow else 0 for is_narrow in narrow)


def _window(reader: ConfigReader, family: Family) -> int | None:
    if family.windows == "none":
        _check_no_window(reader)
        return None
    if family.windows in ("upper", "without positions"):
        if not reader.flag("use_sliding_window", default=False):
            return None
        # As it stands where no window is used.
        if reader.get("sliding_window") == 0:
            raise reader.error(
                "use_sliding_window", "is true, but sliding_window is 0; take the file from the original model"
            )
    if family.window_needed:
        return reader.integer("sliding_window")
    return reader.optional_integer("sliding_window")


def _check_no_window(reader: ConfigReader) -> None:
    """That an architecture without windows is not given one shorter than the context."""
    if reader.get("use_sliding_window") is False or reader.get("sliding_window") in (None, 0):
        return
    window = reader.integer("sliding_window")
    if window < reader.integer("max_position_embeddings"):
        raise reader.error("sliding_window", f"is {window}, but layers of this architecture see everything")


def _check_all_full(reader: ConfigReader, listed: list[bool] | None) -> None:
    if listed is not None and any(listed):
        off = reader.get("sliding_window") is not None
        key, problem = ("use_sliding_window", "is not true") if off else ("sliding_window", "says none")
        raise reader.error(key, f"{problem}, but layer_types lists {_SLIDING}; take the file from the original model")


def _listed_windows(reader: ConfigReader, layers: int) -> list[bool] | None:
    """For each layer whether `layer_types` gives it the window; `None` where there is no such list."""
    types, known = reader.get("layer_types"), (_SLIDING, _FULL)
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != layers or any(kind not in known for kind in types):
        raise reader.error("layer_types", f"is {short(types)}; it must list {' or '.join(known)} for {layers} layers")
    return [kind == _SLIDING for kind in types]


def _narrow_layers(reader: ConfigReader, family: Family, layers: int) -> list[bool]:
    if family.windows == "all":
        return [True] * layers
    if family.windows == "upper":
        first = reader.count("max_window_layers")
        return [layer >= first for layer in range(layers)]
    if family.windows == "without positions":
        return [not listed for listed in _listed_positions(reader, layers)]
    period = _period(reader, family)
    return [not period or (layer + 1) % period != 0 for layer in range(layers)]


def _period(reader: ConfigReader, family: Family) -> int:
    pattern = reader.get("sliding_window_pattern")
    if isinstance(pattern, str) and pattern and set(pattern) == {"L", "G"} and pattern.find("G") == len(pattern) - 1:
        return len(pattern)  # as EXAONE 4 writes it: LLLG
    return reader.integer("sliding_window_pattern") if reader.has("sliding_window_pattern") else family.window_period


def layers_with_positions(reader: ConfigReader, family: Family, windows: tuple[int, ...]) -> list[bool]:
    """For each layer whether it turns queries and keys; `windows` are those of `read_windows`.

    Raises:
        ModelError: a key is wrong.
    """
    if family.positions == "windows":
        # Cohere 2 turns them where there is a window; so does EXAONE 4, but everywhere if `sliding_window` is null.
        everywhere = family.scales != "cohere" and _window(reader, family) is None
        return [everywhere or window > 0 for window in windows]
    if family.positions == "listed":
        return _listed_positions(reader, len(windows))
    return [True] * len(windows)


def _listed_positions(reader: ConfigReader, layers: int) -> list[bool]:
    listed = reader.get("no_rope_layers")
    reader.known("no_rope_layer_interval")
    if listed is None:
        interval = reader.integer("no_rope_layer_interval")
        return [(layer + 1) % interval != 0 for layer in range(layers)]
    if not isinstance(listed, list) or len(listed) != layers or any(flag not in (0, 1) for flag in listed):
        raise reader.error("no_rope_layers", f"is {short(listed)}; it must list 0 or 1 for each of {layers} layers")
    return [bool(flag) for flag in listed]


_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
}
_MOST_LAYERS = 1024
_CAUSAL = {"causal": True, "is_causal": True}


def read_spec(config: Mapping[str, Any], where: str) -> ModelSpec:
    """The specification of a supported model.

    Args:
        config: the content of `config.json`.
        where: the file's name, for error lines.

    Raises:
        ModelError: an architecture that is not supported, or a key that is missing or wrong.
    """
    architecture = _architecture(ConfigReader(config, where))
    outer, family = FAMILIES[architecture], family_of(config) or FAMILIES[architecture]
    if outer.text_model is not None:
        config = _text_part(config, where)
    defaults = {**family.defaults, **outer.defaults}
    reader = ConfigReader(config, where, aliases=family.aliases, defaults=defaults)
    _check_fixed(reader, family)
    hidden_size, layers = reader.integer("hidden_size"), reader.integer("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise reader.error("num_hidden_layers", f"is {layers}; no model has more than {_MOST_LAYERS}")
    num_heads = reader.integer("num_attention_heads")
    num_kv_heads = _kv_heads(reader, num_heads)
    head_dim = _head_dim(reader, family, hidden_size, num_heads)
    windows = read_windows(reader, family, layers)
    ropes, layer_ropes = _ropes(reader, family, head_dim, windows)
    embedding_scale, residual_scale, logit_scale, attention_scale = _scales(reader, family, hidden_size, layers)
    spec = ModelSpec(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_intermediate_size(reader, family, hidden_size),
        num_layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=reader.integer("max_position_embeddings"),
        windows=windows,
        ropes=ropes,
        layer_ropes=layer_ropes,
        attention_scale=attention_scale or head_dim**-0.5,
        norm_eps=reader.number(family.eps),
        norm_kind=family.norm_kind,
        norm_offset=family.norm_offset,
        norm_bias=family.norm_bias,
        norm_before=family.norm_before,
        norm_after=family.norm_after,
        parallel=family.parallel,
        head_norms=_head_norms(reader, family),
        interleaved=family.interleaved,
        learned_positions=family.learned_positions,
        sinks=family.sinks,
        attention_softcap=_softcap(reader, "attn_logit_softcapping", counts=family.softcaps == "both"),
        logit_softcap=_softcap(reader, "final_logit_softcapping", counts=family.softcaps != "none"),
        embedding_scale=embedding_scale,
        residual_scale=residual_scale,
        logit_scale=logit_scale,
        tied_head=reader.flag("tie_word_embeddings", default=False),
        qkv_bias=_has_bias(reader, family.qkv_bias),
        output_bias=_has_bias(reader, family.output_bias),
        mlp_bias=_has_bias(reader, family.mlp_bias),
        activation=_activation(reader, family),
        gated=family.gated,
        swiglu_limit=reader.number("swiglu_limit") if family.experts == "stacked" else 7.0,
        swiglu_alpha=reader.number("swiglu_alpha") if family.experts == "stacked" else 1.702,
        experts=_experts(reader, family, layers),
        transposed=family.transposed,
        heads_by_group=_heads_by_group(reader, family),
    )
    refuse_unread(reader, architecture)
    return spec


def _architecture(reader: ConfigReader) -> str:
    names = reader.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise reader.error("architectures", f"is {short(names)}; it must be a list with one name")
    if names[0] not in SUPPORTED:
        raise reader.error("architectures", f"names {short(names[0])}; this version runs {', '.join(SUPPORTED)}")
    return names[0]


def _text_part(config: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The keys of the part for text, which old files have beside those of the part for images."""
    section = ConfigReader(config, where).section("text_config")
    kind = None if section is None else section.optional_text("model_type")
    if section is not None and kind not in (None, *TEXT_MODELS):
        known = ", ".join(TEXT_MODELS)
        raise section.error("model_type", f"is {short(kind)}; this version runs models of images with {known}")
    merged = {**config, **(config.get("text_config") or {})}
    if "hidden_size" not in merged:
        raise ConfigReader(config, where).error(
            "text_config", "has no hidden_size; take the file from the original model"
        )
    return merged


def _check_fixed(reader: ConfigReader, family: Family) -> None:
    reader.known(*family.settled)
    for key, wanted in {**_CAUSAL, **family.fixed}.items():
        # Null is what `transformers` writes of a key that says nothing.
        found = reader.get(key)
        if found is not None and isinstance(wanted, bool):
            found = reader.flag(key, default=wanted)
        if found not in (None, wanted):
            shown = str(found).lower() if isinstance(found, bool) else short(found)
            raise reader.error(key, f"is {shown}, which this version does not run")


def _kv_heads(reader: ConfigReader, num_heads: int) -> int:
    if reader.has("multi_query") or reader.get("multi_query") is not None:
        return 1 if reader.flag("multi_query", default=True) else num_heads
    found = reader.integer("num_key_value_heads", num_heads)
    if num_heads % found:
        raise reader.error("num_key_value_heads", f"is {found}, which does not divide {num_heads} heads")
    return found


def _head_dim(reader: ConfigReader, family: Family, hidden_size: int, num_heads: int) -> int:
    if reader.get("head_dim") is None and hidden_size % num_heads:
        raise reader.error("hidden_size", f"is {hidden_size}, which {num_heads} heads do not divide")
    head_dim = reader.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2 and not family.learned_positions:
        raise reader.error("head_dim", f"is {head_dim}; rotary positions need an even number")
    return head_dim


def _intermediate_size(reader: ConfigReader, family: Family, hidden_size: int) -> int:
    """GPT-2 leaves it out where it is four times the width."""
    return reader.integer("intermediate_size", 4 * hidden_size if family.learned_positions else None)


def _has_bias(reader: ConfigReader, biases: Biases) -> bool:
    return reader.flag(biases, default=False) if isinstance(biases, str) else biases


def _heads_by_group(reader: ConfigReader, family: Family) -> bool:
    """With one key-value head for all there is nothing to sort."""
    return family.heads_by_group and not reader.get("multi_query")


def _head_norms(reader: ConfigReader, family: Family) -> HeadNorms:
    if family.head_norms == "layer" and not reader.flag("use_qk_norm", default=False):
        return "none"
    return family.head_norms


def _activation(reader: ConfigReader, family: Family) -> Activation:
    if family.experts == "stacked":
        return "swiglu_oai"
    key = family.activation
    name = reader.text(key)
    if family.scales.startswith("gemma") and name == "gelu":
        # The first files of Gemma say so; the models were trained with the approximation.
        return "gelu_tanh"
    if name not in _ACTIVATIONS:
        raise reader.error(key, f"is {short(name)}; this version knows {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _softcap(reader: ConfigReader, key: str, *, counts: bool) -> float:
    return (reader.optional_number(key) or 0.0) if counts else 0.0


def _ropes(
    reader: ConfigReader, family: Family, head_dim: int, windows: tuple[int, ...]
) -> tuple[tuple[RopeSpec, ...], tuple[int | None, ...]]:
    """The kinds of rotary positions there are, and which of them each layer has."""
    if family.learned_positions:
        return (), (None,) * len(windows)
    turned = layers_with_positions(reader, family, windows)
    return read_ropes(reader, head_dim, windows, turned, query_scaled=family.query_scaled)


def _scales(
    reader: ConfigReader, family: Family, hidden_size: int, layers: int
) -> tuple[float, float, float, float | None]:
    """Of the embedding, what a layer adds, the logits, and the products of query and key if not by the head's size."""
    match family.scales:
        case "gemma":
            return math.sqrt(hidden_size), 1.0, 1.0, None
        case "gemma query":
            return math.sqrt(hidden_size), 1.0, 1.0, reader.integer("query_pre_attn_scalar") ** -0.5
        case "cohere":
            return 1.0, 1.0, reader.number("logit_scale"), None
        case "granite":
            return (
                reader.number("embedding_multiplier"),
                reader.number("residual_multiplier"),
                1.0 / reader.number("logits_scaling"),
                reader.number("attention_multiplier"),
            )
        case "minicpm":
            depth = reader.number("scale_depth") / math.sqrt(layers)
            return reader.number("scale_emb"), depth, reader.number("dim_model_base") / hidden_size, None
        case "none":
            return 1.0, 1.0, 1.0, None


def _experts(reader: ConfigReader, family: Family, layers: int) -> ExpertSpec | None:
    if family.experts == "none":
        return None
    is_qwen = family.experts.startswith("qwen")
    count = reader.integer("num_experts" if is_qwen else "num_local_experts")
    chosen = reader.integer("num_experts_per_tok")
    if chosen > count:
        raise reader.error("num_experts_per_tok", f"is {chosen}, more than the {count} experts there are")
    if not is_qwen:
        inner, stacked = reader.integer("intermediate_size"), family.experts == "stacked"
        return ExpertSpec((True,) * layers, count, chosen, inner, renormalise=True, bias=stacked, stacked=stacked)
    return ExpertSpec(
        layers=_sparse_layers(reader, layers),
        count=count,
        chosen=chosen,
        inner=reader.integer("moe_intermediate_size"),
        renormalise=reader.flag("norm_topk_prob", default=False),
        shared_inner=reader.integer("shared_expert_intermediate_size") if family.experts == "qwen shared" else 0,
    )


def _sparse_layers(reader: ConfigReader, layers: int) -> tuple[bool, ...]:
    dense = reader.get("mlp_only_layers")
    dense = [] if dense is None else dense
    if not isinstance(dense, list) or any(not isinstance(layer, int) or isinstance(layer, bool) for layer in dense):
        raise reader.error("mlp_only_layers", f"is {short(dense)}; it must be a list of layers")
    step = reader.integer("decoder_sparse_step", 1)
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers))
