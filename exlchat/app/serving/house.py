"""The models, personas and presets of this user, for a server: under which names, how loaded, how spoken to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from exlchat import paths
from exlchat.api.errors import ApiError
from exlchat.api.voice import Voice
from exlchat.app.library.choice import GUIDE
from exlchat.app.library.shelf import Shelf, shown_name
from exlchat.app.options import AppOptions
from exlchat.app.speaking import chosen_persona, with_persona
from exlchat.app.voice import voice_of
from exlchat.chat.personas.persona import PersonaError
from exlchat.chat.personas.registry import PERSONAS
from exlchat.chat.presets.preset import SamplingPresetError
from exlchat.chat.presets.registry import PRESETS
from exlchat.config.files import SettingsError
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
        shelf: the models and settings of this start.
        offered: the folders of the models that may be asked for, by their names, the first of all first.
    """

    def __init__(self, shelf: Shelf, offered: Callable[[], Mapping[str, Path]]) -> None:
        self._shelf, self._offered = shelf, offered
        self._variants = _Fresh(_variants)
        self._voices: dict[tuple[str, str], _Fresh[Voice]] = {}

    def models(self) -> Sequence[str]:
        return list(self._offered())

    def load(self, model: str, on_progress: Callable[[LoadProgress], None]) -> Engine:
        path = self._offered().get(model)
        if path is None:
            raise ModelError(f"{one_line(model, 80)}: is not in the library any more")
        return self._shelf.loader(path)(on_progress)

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
        path = self._offered().get(model)
        if path is None:
            raise ApiError(404, f"{one_line(model, 80)}: is not here any more", param="model", code="model_not_found")
        # Only what was listed is looked for: a name must not lead to a file.
        kind, name = variant[:1], variant[1:]
        try:
            options = self._shelf.options
            if kind == "@":
                # The same each time, so that prompts begin alike.
                persona = chosen_persona(name, seed=0, user=self._shelf.settings.user_name)
                options = with_persona(options, persona)
            elif kind == ":":
                found = PRESETS.find(name)
                options = options.with_layer(Layer("preset", found.preset.overrides.decided(), found.source))
            return voice_of(self._held(options, path), path)
        except (PersonaError, SamplingPresetError, SettingsError, ValueError) as error:
            raise ApiError(400, str(error), param="model") from None

    def _held(self, options: AppOptions, path: Path) -> Resolved:
        return options.over(self._shelf.reading, self._shelf.memory.settings_of(path).layer)


def one_or_library(shelf: Shelf, first: Path, *, others: bool) -> Callable[[], Mapping[str, Path]]:
    """What is offered where models are loaded for requests: the first one, and with `others` those of the library."""

    def look_around() -> dict[str, Path]:
        found = {shown_name(first): first}
        for one in shelf.found() if others else ():
            if one.problem is None and one.path.resolve() != first.resolve():
                name = GUIDE if one.path == paths.bundled_model() else one_line(one.name, _LONGEST_NAME)
                found.setdefault(name, one.path)
        return found

    return _Fresh(look_around).value


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
