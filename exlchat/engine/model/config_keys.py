"""Keys of `config.json` that nothing has read: without effect, or a line that names them.

A key that changes what a model computes must not be passed over. A real file also has dozens that do not: how the model
was trained, how it is sampled from, what another program noted down, for whose names there is no list. So a key that
the architecture does not read is judged by its value and by its name: one that switches nothing on is let be, and of
the others one is refused that speaks of what a decoder is made of, unless it speaks of training, precision, speed or
images too. `transformers` takes any such key without a word, and runs a model that its makers did not mean.

Inside of rotary positions every key counts, as nothing else is written there.
"""

from __future__ import annotations

import re
from typing import Any

from exlchat.engine.model.config_reader import ConfigReader, short
from exlchat.llm.info import ModelError
from exlchat.untrusted.text import one_line

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
