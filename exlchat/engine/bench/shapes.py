"""Sizes of models that benchmarks speak of. No torch."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a Llama; `rope_factor` is how far its rotary positions are stretched (1: not at all)."""

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int = 128256
    positions: int = 131072
    rope_factor: float = 8.0

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads, and of all value heads."""
        return self.kv_heads * self.head_dim

    def config(self) -> dict[str, Any]:
        """As `config.json` has it. Without an EOS, so that no answer ends by itself."""
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float16",
            "hidden_act": "silu",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "max_position_embeddings": self.positions,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "tie_word_embeddings": False,
        }
        if self.rope_factor > 1:
            config["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": self.rope_factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        return config


# Llama 3.2 1B, Llama 3.1 8B and 70B as their config.json say; `tiny` is for trying things out on a CPU.
_SHAPES = {
    "tiny": Shape("tiny", 256, 512, 4, 4, 2, 64, vocab=512, positions=4096, rope_factor=1.0),
    "llama-1b": Shape("llama-1b", 2048, 8192, 16, 32, 8, 64, rope_factor=32.0),
    "llama-8b": Shape("llama-8b", 4096, 14336, 32, 32, 8, 128),
    "llama-70b": Shape("llama-70b", 8192, 28672, 80, 64, 8, 128),
}
_CUT = re.compile(r"(?P<name>.+)-(?P<layers>[1-9]\d{0,2})layers")


def named_shape(name: str) -> Shape:
    """The shape of that name; `-Nlayers` behind it gives the model N layers, as in `llama-70b-10layers`.

    Raises:
        ValueError: there is none, in one line.
    """
    cut = _CUT.fullmatch(name)
    shape = _SHAPES.get(cut["name"] if cut else name)
    if shape is None:
        raise ValueError(f"{name!r} is no shape; there are {', '.join(_SHAPES)}, and each with -Nlayers behind it")
    return replace(shape, name=name, layers=int(cut["layers"])) if cut else shape
