"""Typed look-ups in the JSON files of a model; every error names the file, the key and what was found.

A key that changes what a model computes must not be passed over. A real file also has dozens that do not: how the model
was trained, how it is sampled from, what another program noted down, for whose names there is no list. So a key that
the architecture does not read is judged by its value and by its name: one that switches nothing on is let be, and of
the others one is refused that speaks of what a decoder is made of, unless it speaks of training, precision, speed or
images too. `transformers` takes any such key without a word, and runs a model that its makers did not mean.

Inside of rotary positions every key counts, as nothing else is written there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

MOST = 2**31 - 1
"""No size of a model is larger."""


_LEAST, _MOST = 1e-20, 1e20
"""Of positive numbers: no model has any beyond, and products of such would be none."""


class ConfigReader:
    """Look-ups in one JSON object, which remembers what was looked up.

    Args:
        config: the object.
        where: the file's name, and the object's in it, for error lines.
        aliases: other names under which a key may stand; the first that is there counts.
        defaults: values of keys that are absent. A key that is null is not absent, but has no value.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str,
        *,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        self._config = config
        self._where = where
        self._aliases = aliases or {}
        self._defaults = defaults or {}
        self._read: set[str] = set()
        self._sections: dict[str, ConfigReader] = {}

    def error(self, key: str, problem: str) -> ModelError:
        names = (self._name(key),) if self.has(key) else (key, *self._aliases.get(key, ()))
        return ModelError(f"{self._where}: {' or '.join(names)} {problem}")

    def integer(self, key: str, default: int | None = None) -> int:
        """A positive whole number; `1.0` counts as one."""
        return self._whole(key, self._value(key, default), least=1)

    def count(self, key: str, default: int | None = None) -> int:
        """A whole number, 0 included."""
        return self._whole(key, self._value(key, default), least=0)

    def optional_integer(self, key: str) -> int | None:
        """A positive whole number, or `None` where the key is null, or absent and has no default."""
        value = self.get(key)
        return None if value is None else self._whole(key, value, least=1)

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number."""
        return self._positive(key, self._value(key, default))

    def optional_number(self, key: str) -> float | None:
        """A positive number, or `None` where the key is null, or absent and has no default."""
        value = self.get(key)
        return None if value is None else self._positive(key, value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false; null is neither."""
        value = self.get(key)
        value = default if value is None and not self.has(key) else value
        if not isinstance(value, bool):
            raise self.error(key, f"is {short(value)}; it must be true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"is {short(value)}; it must be a string")
        return value

    def optional_text(self, key: str) -> str | None:
        """A string, or `None` where the key is null, or absent and has no default."""
        return None if self.get(key) is None else self.text(key)

    def numbers(self, key: str, count: int) -> tuple[float, ...]:
        """A list of so many positive numbers."""
        value = self._value(key, None)
        if not isinstance(value, list) or len(value) != count:
            raise self.error(key, f"is {short(value)}; it must be a list of {count} numbers")
        return tuple(self._positive(key, item) for item in value)

    def section(self, key: str) -> ConfigReader | None:
        """A nested object, or its default or `None` where the key is absent or null."""
        value = self.get(key)
        value = self._defaults.get(key) if value is None else value
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, f"is {short(value)}; it must be an object")
        if key not in self._sections:
            self._sections[key] = ConfigReader(value, f"{self._where}: {key}")
        return self._sections[key]

    def sections(self) -> Iterator[ConfigReader]:
        """All nested objects that were looked up, those inside of others too."""
        for section in self._sections.values():
            yield section
            yield from section.sections()

    def known(self, *keys: str) -> None:
        """Counts keys as read that another one decides about, or the tensors."""
        self._read.update(keys)

    def unread(self) -> list[tuple[str, Any]]:
        return [(key, value) for key, value in self._config.items() if key not in self._read]

    def has(self, key: str) -> bool:
        """Whether the key is there, null or not."""
        return self._name(key) in self._config

    def get(self, key: str) -> Any:
        """The raw value or its default; `None` where there is neither."""
        name = self._name(key)
        return self._config[name] if name in self._config else self._defaults.get(key)

    def _name(self, key: str) -> str:
        names = (key, *self._aliases.get(key, ()))
        self._read.update(names)
        return next((name for name in names if name in self._config), key)

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            problem = "is null" if self.has(key) else "is missing"
            raise self.error(key, f"{problem}; take the file from the original model")
        return value

    def _whole(self, key: str, value: Any, *, least: int) -> int:
        # A whole number in JSON may be past every float.
        number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
        if isinstance(value, bool) or not number or value != int(value) or value < least:
            kind = "a positive whole number" if least else "a whole number from 0 on"
            raise self.error(key, f"is {short(value)}; it must be {kind}")
        if value > MOST:
            raise self.error(key, f"is {short(value)}; no model is that large")
        return int(value)

    def _positive(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST <= value <= _MOST:
            raise self.error(key, f"is {short(value)}; it must be a positive number, and no extreme one")
        return float(value)


def short(value: Any) -> str:
    """A JSON value for an error line, which may come from anywhere and be of any length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# What a decoder is made of, as the configurations of `transformers` name it.
_OF_THE_COMPUTATION = re.compile(
    "|".join(
        (
            r"scal|multiplier|(?<!de)norm(?!al)|bias|residual|soft_?cap|clamp|clip_|_clip|swiglu|spars|mlp_",
            r"att(n|ention)|bidirectional|causal|sink|window|sliding|head_dim|kv_shared|lora_rank|(^|_)qk",
            r"(?<![pu])rope|rotary|theta|ntk|yarn|alibi|nope|interleav|pos_emb|position_(embedding|encoding|bias)|positional",
            r"expert|moe|rout(e|er|ed|ing)(_|$)|(^|_)(gate|gated|gating)(_|$)|topk|scoring|n_group|dense_replace",
            r"(layer|block)_types?$|layers?_(block|pattern|period|offset|interval|step)|every_n_|per_layer",
            r"parallel_(attn|block|residual)|mamba|ssm|linear_(num|conv|allow)|index(er)?_|altup|laurel|kda_|sinusoidal",
            r"(^|_)mup(_|$)|^use_",
        )
    )
)
# What only says how the model was trained, how exactly and how fast it is computed, or what it sees.
_HARMLESS = re.compile(
    "|".join(
        (
            r"^_|pdrop|(^|_)(drop|loss|grad|jitter|init)|lora(?!_rank)|peft",
            r"eps(ilon)?$|fp32|float16|bf16|tf32|dtype|upcast",
            r"implementation$|backend$|flash_?att|fused|sdpa|xformers|^use_(cache|kernel|liger|safetensors|fast$|auth_)",
            r"_token_(id|ids|index)$|(^|_)(vision|visual|image|video|audio|mm|multimodal|projector|summary|classifier)_",
            r"^output_(attentions|router_logits)$|^use_(return_dict|embedding_sharing|parallel_embedding)$",
            # Beside windows, which are read; vLLM's, for contexts beyond the model's own; of MiniCPM's training.
            r"^(max_window_layers|dual_chunk_attention_config|mup_denominator)$",
        )
    )
)
_NOTHING: tuple[Any, ...] = (None, False, 0, 1, "", "default", "none", [], {})
# Rotary positions: what other kinds need, what text has no use for, and a note.
_HARMLESS_POSITIONS = re.compile(r"original_max_position_embeddings|max_position_embeddings|mrope_\w+|finetuned")


def refuse_unread(reader: ConfigReader, architecture: str) -> None:
    """Sees that nothing was passed over which changes what the model computes.

    Args:
        reader: of a `config.json` from which everything has been read.
        architecture: for the line.

    Raises:
        ModelError: a key changes it.
    """
    for key, value in reader.unread():
        if not _says_nothing(value) and _OF_THE_COMPUTATION.search(key.lower()) and not _HARMLESS.search(key.lower()):
            raise _refused(reader, key, value, f"for {architecture}")
    for section in reader.sections():
        kind = section.get("rope_type") or section.get("type")
        for key, value in section.unread():
            if not _says_nothing(value) and not _HARMLESS_POSITIONS.fullmatch(key):
                raise _refused(section, key, value, f"where rope_type is {short(kind) if kind else 'missing'}")


def _says_nothing(value: Any) -> bool:
    """Whether a switch is off, a number leaves things as they are, a list is empty."""
    return value is not True and any(value == nothing for nothing in _NOTHING)


def _refused(reader: ConfigReader, key: str, value: Any, where: str) -> ModelError:
    return reader.error(
        one_line(key, 80),
        f"is {short(value)}, which this version does not compute {where}; take config.json from the "
        "original model, or the key out of it if the model does without",
    )
