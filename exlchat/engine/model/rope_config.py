"""`config.json` -> the rotary positions of each layer, in whichever of its spellings.

Newer files have `rope_parameters`, one object or one for each kind of layer; older ones `rope_theta`, `rope_scaling`
and, for Gemma 3, `rope_local_base_freq`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from exlchat.engine.model.config_reader import ConfigReader, short
from exlchat.engine.model.spec import RopeSpec, RopeType
from exlchat.untrusted.text import one_line

_KINDS: dict[str, RopeType] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
    "longrope": "longrope",
    "su": "longrope",  # as the first files of Phi-3 call it
    "mrope": "default",  # Qwen2-VL's: text has the same position in all three parts
}

# Without a value these would mean other positions than the model was trained with.
_NEVER_NULL = ("rope_theta", "rope_type", "type", "original_max_position_embeddings", "partial_rotary_factor")


def read_ropes(
    reader: ConfigReader,
    head_dim: int,
    windows: Sequence[int],
    turned: Sequence[bool],
    *,
    query_scaled: bool = False,
) -> tuple[tuple[RopeSpec, ...], tuple[int | None, ...]]:
    """The kinds of rotary positions, and which of them each layer has.

    Args:
        head_dim: elements of a head.
        windows: for each layer its window, 0 where it has none.
        turned: for each layer whether it has positions.
        query_scaled: whether queries grow with them.

    Raises:
        ModelError: a key is missing or wrong.
    """
    old = reader.get("rope_scaling") is not None and not reader.has("rope_parameters")
    section = None if old else reader.section("rope_parameters")
    if section is not None:
        _check_one_scaling(reader, section)
    if section is not None and (section.has("full_attention") or section.has("sliding_attention")):
        full, local = (_needed(section, kind) for kind in ("full_attention", "sliding_attention"))
        ropes = [_read(reader, full, head_dim), _read(reader, local, head_dim, _local_theta(reader))]
    elif _has_local(reader):
        # Only full layers are stretched.
        ropes = [_read(reader, reader.section("rope_scaling"), head_dim)]
        ropes.append(RopeSpec("default", reader.number("rope_local_base_freq"), head_dim))
    else:
        section = section or reader.section("rope_scaling")
        ropes = [_read(reader, section, head_dim)]
        if query_scaled:
            ropes = [_query_scaled(reader, ropes[0], section or reader)]
    own = len(ropes) - 1
    layers = tuple((own if window else 0) if on else None for window, on in zip(windows, turned, strict=True))
    return tuple(ropes), layers


def _query_scaled(reader: ConfigReader, rope: RopeSpec, section: ConfigReader) -> RopeSpec:
    """The same with what Ministral 3 has of Llama 4, whichever kind the positions are."""
    beta, original = section.number("llama_4_scaling_beta"), _original(reader, section)
    return replace(rope, query_beta=beta, original_max_position_embeddings=original)


def _check_one_scaling(reader: ConfigReader, section: ConfigReader) -> None:
    """That `rope_scaling`, as files before `transformers` 5 have it, says nothing beside what `section` does."""
    scaling, full = reader.section("rope_scaling"), section.section("full_attention") or section
    if scaling is None:
        return
    for key, value in scaling.unread():
        if full.get("rope_type" if key == "type" else key) != value:
            raise reader.error(
                "rope_scaling",
                f"has {one_line(key, 80)} {short(value)}, which rope_parameters has not; keep one of them",
            )
        scaling.known(key)


def _needed(section: ConfigReader, kind: str) -> ConfigReader:
    found = section.section(kind)
    if found is None:
        raise section.error(kind, "is missing, the other kind of layer has its own; take the original model's file")
    return found


def _has_local(reader: ConfigReader) -> bool:
    return reader.has("rope_local_base_freq") or reader.get("rope_local_base_freq") is not None


def _local_theta(reader: ConfigReader) -> float | None:
    """The base of layers with a window, where it is one of its own."""
    return reader.number("rope_local_base_freq") if _has_local(reader) else None


def _read(
    reader: ConfigReader, section: ConfigReader | None, head_dim: int, own_theta: float | None = None
) -> RopeSpec:
    for holder in (reader,) if section is None else (reader, section):
        for key in _NEVER_NULL:
            if holder.has(key) and holder.get(key) is None:
                raise holder.error(key, "is null; take the file from the original model")
    theta, partial = reader.number("rope_theta", 10000.0), reader.number("partial_rotary_factor", 1.0)
    if section is None:
        return RopeSpec("default", theta, _dim(reader, head_dim, partial))
    theta = section.number("rope_theta", own_theta or theta)
    if theta <= 1:
        raise section.error("rope_theta", f"is {theta:g}; it must be more than 1")
    dim = _dim(section, head_dim, section.number("partial_rotary_factor", partial))
    name = section.text("rope_type", section.text("type", "default"))
    if name not in _KINDS:
        raise section.error("rope_type", f"is {short(name)}; this version knows {', '.join(_KINDS)}")
    kind = _KINDS[name]
    if kind == "default":
        return RopeSpec("default", theta, dim)
    if kind == "linear":
        return RopeSpec("linear", theta, dim, section.number("factor"))
    return _READERS[kind](reader, section, theta, dim)


def _dim(reader: ConfigReader, head_dim: int, partial: float) -> int:
    dim = int(head_dim * partial)
    if partial > 1 or dim < 2 or dim % 2:
        raise reader.error(
            "partial_rotary_factor", f"is {partial:g}; it must turn an even number of a head's {head_dim} elements"
        )
    return dim


def _dynamic(reader: ConfigReader, section: ConfigReader, theta: float, dim: int) -> RopeSpec:
    original = reader.integer("max_position_embeddings")
    return RopeSpec("dynamic", theta, dim, section.number("factor"), original_max_position_embeddings=original)


def _original(reader: ConfigReader, section: ConfigReader) -> int:
    """Phi-3 has it outside of the section; without any it is the whole context."""
    if reader.get("original_max_position_embeddings") is not None:
        return reader.integer("original_max_position_embeddings")
    if section.get("original_max_position_embeddings") is not None:
        return section.integer("original_max_position_embeddings")
    return reader.integer("max_position_embeddings")


def _llama3(reader: ConfigReader, section: ConfigReader, theta: float, dim: int) -> RopeSpec:
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    if high <= low:
        raise section.error("high_freq_factor", f"is {high:g}; it must exceed low_freq_factor, {low:g}")
    return RopeSpec(
        "llama3",
        theta,
        dim,
        section.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=_original(reader, section),
    )


def _yarn(reader: ConfigReader, section: ConfigReader, theta: float, dim: int) -> RopeSpec:
    original = _original(reader, section)
    if not section.has("factor"):
        raise section.error("factor", "is missing; take the file from the original model")
    factor = section.number("factor", reader.integer("max_position_embeddings", original) / original)
    attention = section.optional_number("attention_factor")
    if attention is None:
        mscale, all_dim = section.optional_number("mscale"), section.optional_number("mscale_all_dim")
        both = mscale is not None and all_dim is not None
        attention = _mscale(factor, mscale or 1.0) / (_mscale(factor, all_dim or 1.0) if both else 1.0)
        attention = attention if both else _mscale(factor, 1.0)
    return RopeSpec(
        "yarn",
        theta,
        dim,
        factor,
        beta_fast=section.number("beta_fast", 32.0),
        beta_slow=section.number("beta_slow", 1.0),
        truncate=section.flag("truncate", default=True),
        attention_factor=attention,
        original_max_position_embeddings=original,
    )


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _longrope(reader: ConfigReader, section: ConfigReader, theta: float, dim: int) -> RopeSpec:
    original = _original(reader, section)
    factor = section.number("factor", reader.integer("max_position_embeddings", original) / original)
    attention = section.optional_number("attention_factor")
    if attention is None:
        if original < 2:
            raise section.error("original_max_position_embeddings", f"is {original}; it must be more than 1")
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return RopeSpec(
        "longrope",
        theta,
        dim,
        factor,
        attention_factor=attention,
        short_factors=section.numbers("short_factor", dim // 2),
        long_factors=section.numbers("long_factor", dim // 2),
        original_max_position_embeddings=original,
    )


_READERS: dict[RopeType, Callable[[ConfigReader, ConfigReader, float, int], RopeSpec]] = {
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
