"""`config.json` -> which layers see a window only, and which turn queries and keys."""

from __future__ import annotations

from exlchat.engine.model.config_reader import ConfigReader, short
from exlchat.engine.model.family import Family

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
    """That no layer is listed as one with a window, where there is none."""
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
    """For each layer whether it has the window by the family's rule."""
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
