"""The models, personas and presets of this user, for a server: under which names, how loaded, how spoken to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from exlchat import paths
from exlchat.api.errors import ApiError
from exlchat.api.voice import Voice
from exlchat.app.library.choice import GUIDE
from exlchat.app.library.memory import ModelMemory
from exlchat.app.library.places import all_models
from exlchat.app.library.shelf import shown_name
from exlchat.app.options import AppOptions
from exlchat.app.runtime.model_loading import load_wanted
from exlchat.app.speaking import chosen_persona, with_persona
from exlchat.app.voice import voice_of
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.registry import PERSONAS
from exlchat.chat.presets.preset import SamplingPresetError
from exlchat.chat.presets.registry import PRESETS
from exlchat.config.files import Reading, SettingsError
from exlchat.config.layers import Layer, Resolved
from exlchat.llm.info import LoadProgress, ModelError
from exlchat.llm.port import Engine
from exlchat.untrusted.text import one_line

_T = TypeVar("_T")
_FRESH_SECONDS = 10.0
"""For so long what lies in folders is taken to be as it was."""
_LONGEST_NAME = 200


class UsersHouse:
    """Of one start.

    Args:
        options: of this start, with the model that it begins with.
        reading: the settings.
        others: whether the models of the library may be asked for, too.
    """

    def __init__(self, options: AppOptions, reading: Reading, *, others: bool) -> None:
        if options.model_path is None:
            raise ModelError("no model is there; give a model folder: exlchat serve FOLDER")
        self._options, self._reading, self._others = options, reading, others
        self._first = options.model_path
        self._memory = ModelMemory(paths.folders().model_memory)
        self._folders = _Fresh(self._look_around)
        self._variants = _Fresh(_variants)
        self._voices: dict[tuple[str, str], _Fresh[Voice]] = {}

    def models(self) -> Sequence[str]:
        return list(self._folders.value())

    def load(self, model: str, on_progress: Callable[[LoadProgress], None]) -> Engine:
        path = self._folders.value().get(model)
        if path is None:
            raise ModelError(f"{one_line(model, 80)}: is not in the library any more")
        return load_wanted(path, self._options, self._held(self._options, path), kept=True, on_progress=on_progress)

    def variants(self) -> Sequence[str]:
        return self._variants.value()

    def voice(self, model: str, variant: str) -> Voice:
        """What a request leaves out is as the chat has it."""
        known = self._voices.get((model, variant))
        if known is None:
            # Settings in their layers take a millisecond, and every request asks.
            known = self._voices[model, variant] = _Fresh(lambda: self._voice(model, variant))
        return known.value()

    def _voice(self, model: str, variant: str) -> Voice:
        path = self._folders.value().get(model, self._first)
        # Only what was listed is looked for: a name must not lead to a file.
        kind, name = variant[:1], variant[1:]
        try:
            options = self._options
            if kind == "@":
                # The same each time, so that prompts begin alike.
                persona = chosen_persona(name, seed=0, user=self._reading.settings.user_name)
                options = with_persona(options, persona)
            elif kind == ":":
                found = PRESETS.find(name)
                options = options.with_layer(Layer("preset", found.preset.overrides.decided(), found.source))
            return voice_of(self._held(options, path), path)
        except (PersonaError, SamplingPresetError, SettingsError, ValueError) as error:
            raise ApiError(400, str(error), param="model") from None

    def _held(self, options: AppOptions, path: Path) -> Resolved:
        return options.over(self._reading, self._memory.settings_of(path).layer)

    def _look_around(self) -> dict[str, Path]:
        """By name, the first model of all first."""
        found = {shown_name(self._first): self._first}
        if self._others:
            for one in all_models(self._reading.settings.model_folders, self._memory.used_models()):
                if one.problem is None and one.path.resolve() != self._first.resolve():
                    name = GUIDE if one.path == paths.bundled_model() else one_line(one.name, _LONGEST_NAME)
                    found.setdefault(name, one.path)
        return found


def _variants() -> list[str]:
    personas = [f"@{one.id}" for one in PERSONAS.all().entries]
    return [*personas, *(f":{one.id}" for one in PRESETS.all().entries)]


class _Fresh(Generic[_T]):
    """A value that is made anew when it is old."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._value = make()
        self._made = time.monotonic()

    def value(self) -> _T:
        if time.monotonic() - self._made > _FRESH_SECONDS:
            self._value, self._made = self._make(), time.monotonic()
        return self._value
