"""`config.json` -> `ModelSpec`: sizes and knobs, checked, under the names the field uses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from exlchat.engine.events import ModelError

RopeType = Literal["default", "linear", "llama3"]


@dataclass(frozen=True, slots=True)
class Family:
    """How an architecture differs from Llama's.

    Args:
        qkv_bias: whether queries, keys and values have biases and nothing else of the attention has; else
            `attention_bias` of the config decides for all of it.
        head_norms: whether queries and keys are normed head by head before they are turned.
        windows: `all`: `sliding_window` of the config holds for every layer; `upper`: where `use_sliding_window` says
            so, for those from `max_window_layers` on; `none`: there are none.
    """

    qkv_bias: bool = False
    head_norms: bool = False
    windows: Literal["none", "all", "upper"] = "none"


FAMILIES = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(windows="all"),
    "Qwen2ForCausalLM": Family(qkv_bias=True, windows="upper"),
    "Qwen3ForCausalLM": Family(head_norms=True, windows="upper"),
}
SUPPORTED = tuple(FAMILIES)


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary positions: base frequency and how it is stretched for longer contexts."""

    type: RopeType
    theta: float
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What a decoder is, whatever its weights are stored as.

    `windows` has for each layer how many tokens it sees, the new one included; 0 sees all.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    max_position_embeddings: int
    tied_head: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    head_norms: bool
    windows: tuple[int, ...]


class ConfigReader:
    """Typed look-ups in a `config.json`. Every error names the file, the key and what was found."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where

    def error(self, key: str, problem: str) -> ModelError:
        """A `ModelError` about one key."""
        return ModelError(f"{self._where}: {key} {problem}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number; `1.0` counts as one."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value <= 0:
            raise self.error(key, f"is {value!r}; it must be a positive whole number")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(key, f"is {value!r}; it must be a positive number")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.error(key, f"is {value!r}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}; it must be a string")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """A nested object, or `None` where the key is absent or null."""
        value = self._config.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"is {value!r}; it must be an object")
        return ConfigReader(value, f"{self._where}: {key}")

    def get(self, key: str) -> Any:
        """The raw value, or `None`."""
        return self._config.get(key)

    def _value(self, key: str, default: Any) -> Any:
        value = self._config.get(key)
        if value is not None:
            return value
        if default is None:
            raise self.error(key, "is missing; take the file from the original model")
        return default


def read_spec(config: Mapping[str, Any], where: str) -> ModelSpec:
    """The specification of a supported model.

    Args:
        config: the content of `config.json`.
        where: the file's name, for error lines.

    Raises:
        ModelError: an architecture that is not supported, or a key that is missing or wrong.
    """
    reader = ConfigReader(config, where)
    hidden_size = reader.integer("hidden_size")
    num_heads = reader.integer("num_attention_heads")
    num_kv_heads = reader.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise reader.error("num_key_value_heads", f"is {num_kv_heads}, which does not divide {num_heads} heads")
    if config.get("head_dim") is None and hidden_size % num_heads:
        raise reader.error("hidden_size", f"is {hidden_size}, which {num_heads} heads do not divide")
    head_dim = reader.integer("head_dim", hidden_size // num_heads)
    if head_dim % 2:
        raise reader.error("head_dim", f"is {head_dim}; rotary positions need an even number")
    activation = reader.text("hidden_act", "silu")
    if activation != "silu":
        raise reader.error("hidden_act", f"is {activation!r}; a Llama with another activation than silu is not known")
    architecture, num_layers = _architecture(reader), reader.integer("num_hidden_layers")
    family = FAMILIES[architecture]
    bias = reader.flag("attention_bias", default=False)
    return ModelSpec(
        architecture=architecture,
        vocab_size=reader.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=_read_rope(reader),
        max_position_embeddings=reader.integer("max_position_embeddings", 2048),
        tied_head=reader.flag("tie_word_embeddings", default=False),
        qkv_bias=family.qkv_bias or bias,
        output_bias=bias and not family.qkv_bias,
        mlp_bias=reader.flag("mlp_bias", default=False),
        head_norms=family.head_norms,
        windows=_windows(reader, family, num_layers),
    )


def _windows(reader: ConfigReader, family: Family, layers: int) -> tuple[int, ...]:
    """What each layer sees. Newer Mistral models have no window (null)."""
    if family.windows == "none" or reader.get("sliding_window") is None:
        return (0,) * layers
    first = 0
    if family.windows == "upper":
        if not reader.flag("use_sliding_window", default=False):
            return (0,) * layers
        first = reader.integer("max_window_layers", 28) if reader.get("max_window_layers") != 0 else 0
    window = reader.integer("sliding_window")
    return tuple(window if layer >= first else 0 for layer in range(layers))


def _architecture(reader: ConfigReader) -> str:
    names = reader.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise reader.error("architectures", f"is {names!r}; it must be a list with one name")
    if names[0] not in SUPPORTED:
        raise reader.error("architectures", f"names {names[0]}; this version runs {', '.join(SUPPORTED)}")
    return names[0]


def _read_rope(reader: ConfigReader) -> RopeSpec:
    """From `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling` (before)."""
    section = reader.section("rope_parameters") or reader.section("rope_scaling")
    theta = reader.number("rope_theta", 10000.0)
    if section is None:
        return RopeSpec("default", theta)
    theta = section.number("rope_theta", theta)
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return RopeSpec("default", theta)
    if kind == "linear":
        return RopeSpec("linear", theta, section.number("factor"))
    if kind == "llama3":
        low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
        if high <= low:
            raise section.error("high_freq_factor", f"is {high:g}; it must exceed low_freq_factor, {low:g}")
        original = section.integer("original_max_position_embeddings")
        return RopeSpec("llama3", theta, section.number("factor"), low, high, original)
    raise section.error("rope_type", f"is {kind!r}; this version knows default, linear and llama3")
