"""What is remembered of each model: when it was used last, how the user wants it loaded, and what was said of it."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exlchat import paths
from exlchat.config.layers import Layer
from exlchat.llm.limits import KV_CACHES
from exlchat.untrusted.files import UntrustedFileError
from exlchat.untrusted.json_reader import read_json_file

if TYPE_CHECKING:
    from exlchat.llm.limits import KvCacheChoice

NAMES = ("context", "kv_cache", "template", "system")
_FORGET = ("none", "off")
_NOT_SET = ("used", "told")
"""What the program notes by itself."""
_MOST_TOLD = 8
"""Lines of one model."""
_LARGEST = 16_000_000
"""Bytes of the file; a model takes some hundred."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model is loaded and spoken to; `None` leaves a value to settings.toml."""

    context: int | None = None
    kv_cache: KvCacheChoice | None = None
    template: str | None = None
    system: str | None = None

    def with_value(self, name: str, text: str) -> ModelSettings:
        """A copy with one value changed, as typed after `/model set`; "none" forgets it.

        Raises:
            ValueError: unknown name or impossible value, in one line.
        """
        if name not in NAMES:
            nearest = difflib.get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there are {', '.join(NAMES)}"
            raise ValueError(f"a model has no setting {name}; {hint}")
        if text.lower() in _FORGET:
            return replace(self, **{name: None})
        match name:
            case "context":
                if not text.isdecimal() or int(text) < 1:
                    raise ValueError(f"context is {text!r}; it must be a whole number, 1 or more, or none")
                return replace(self, context=int(text))
            case "kv_cache":
                kind = next((one for one in KV_CACHES if one == text), None)
                if kind is None:
                    raise ValueError(f"kv_cache is {text!r}; it must be one of {', '.join(KV_CACHES)}, or none")
                return replace(self, kv_cache=kind)
            case "template":
                return replace(self, template=text)
        return replace(self, system=text)

    @property
    def layer(self) -> Layer:
        return Layer("remembered", {name: value for name, value in asdict(self).items() if value is not None})

    def describe(self) -> str:
        """What is set, in one line; empty when nothing is."""
        return " · ".join(f"{name} {value}" for name, value in self.layer.values.items())


class ModelMemory:
    """By the real path of the model, in a file that is read anew each time: other programs write it as well.

    A broken file counts as an empty one. `None` for the path keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def settings_of(self, model: Path | None) -> ModelSettings:
        """What the user set for a model, if for any; a value that makes no sense is as if it were not set."""
        settings = ModelSettings()
        if model is None:
            return settings
        for name, value in self._read().get(_key(model), {}).items():
            if name in NAMES and isinstance(value, str | int):
                try:
                    settings = settings.with_value(name, str(value))
                except ValueError:
                    continue
        return settings

    def last_used(self) -> dict[str, float]:
        """Real path of a model -> when it was loaded last, in seconds since the epoch."""
        used = {model: values.get("used") for model, values in self._read().items()}
        return {model: float(when) for model, when in used.items() if isinstance(when, int | float)}

    def used_models(self) -> list[Path]:
        return [Path(model) for model in self.last_used()]

    def keep(self, model: Path, settings: ModelSettings) -> None:
        """Remember how a model is wanted.

        Raises:
            FolderError: the file cannot be written.
        """
        values = settings.layer.values
        self._write(model, lambda old: {**{key: old[key] for key in _NOT_SET if key in old}, **values})

    def mark_used(self, model: Path) -> None:
        """Note that a model was loaded now.

        Raises:
            FolderError: the file cannot be written.
        """
        self._write(model, lambda old: {**old, "used": int(time.time())})

    def is_news(self, model: Path, line: str) -> bool:
        """Whether a line about a model was never told before; it is remembered as told, unless the file cannot be."""
        told = self._read().get(_key(model), {}).get("told")
        told = [one for one in told if isinstance(one, str)] if isinstance(told, list) else []
        if line in told:
            return False
        with contextlib.suppress(paths.FolderError):
            self._write(model, lambda old: {**old, "told": [*told, line][-_MOST_TOLD:]})
        return True

    def _write(self, model: Path, change: Any) -> None:
        if self._path is None:
            return
        content = self._read()
        content[_key(model)] = change(content.get(_key(model), {}))
        models = {key: values for key, values in content.items() if values}
        paths.atomic_write(self._path, json.dumps(models, ensure_ascii=False, indent=1) + "\n")

    def _read(self) -> dict[str, dict[str, Any]]:
        if self._path is None:
            return {}
        try:
            content = read_json_file(self._path, largest=_LARGEST, kind="memory of models")
        except UntrustedFileError:
            return {}
        if not isinstance(content, dict):
            return {}
        return {key: values for key, values in content.items() if isinstance(values, dict)}


def _key(model: Path) -> str:
    return os.path.realpath(model)
