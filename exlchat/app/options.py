"""What the command line asked for, as plain frozen values. Shared by the app and by pipe mode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from exlchat.chat.presets.overrides import WISHED, SamplingOverrides
from exlchat.config.layers import Layer, Resolved, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.chat.personas.frozen import FrozenPersona
    from exlchat.config.files import Reading
    from exlchat.remote.address import Remote

DeviceChoice = Literal["auto", "cpu", "cuda"]
_AT_SERVERS = Layer("default", {"min_p": 0.0})


@dataclass(frozen=True, slots=True)
class AppOptions:
    """One start of the program.

    Args:
        model_path: the model directory, already resolved; `None` when there is none at all (the app then says so).
        device: where the model runs; `auto` takes the GPU when there is one.
        layers: what stands over the settings in this start: typed, of a preset, of a persona.
        continue_last: open the most recent conversation.
        persona: who speaks in new conversations; its wishes are one of the layers.
        notices: lines to show once at the start, such as "the model used last is gone".
        first_message: taken as if it were typed as soon as the chat is there.
        incognito: nothing that is said in this start is kept.
        remote: the server that answers, in the place of a model that is loaded here.
        split: how many layers of `model_path` each card has; by what is free there unless given.
        tensor_parallel: how many cards compute every layer of `model_path` together.
    """

    model_path: Path | None
    device: DeviceChoice = "auto"
    layers: tuple[Layer, ...] = ()
    continue_last: bool = False
    persona: FrozenPersona | None = None
    notices: tuple[str, ...] = ()
    first_message: str | None = None
    incognito: bool = False
    remote: Remote | None = None
    split: tuple[int, ...] = ()
    tensor_parallel: int = 1

    def over(self, reading: Reading, remembered: Layer) -> Resolved:
        """What holds in this start: its own layers, the environment, what is remembered of a model, the file."""
        layers = (*self.layers, reading.environment, remembered, reading.file)
        # Our own default is not known to most servers, which would be refused for it.
        return resolve(*layers, *((_AT_SERVERS,) if self.remote is not None else ()))

    def given(self, key: str) -> Any:
        """What this start was given in the place of a setting; `None` if the setting holds."""
        started = resolve(*self.layers)
        return None if started.source(key) == "default" else started.value(key)

    def with_layer(self, layer: Layer) -> AppOptions:
        """With one layer more, or another in its place.

        Raises:
            ValueError: what it wishes for contradicts the other layers, in one line.
        """
        started = resolve(*self.layers).replace(layer)
        said = [name for name in WISHED if started.source(name) != "default"]
        SamplingOverrides(**{name: started.value(name) for name in said})
        return replace(self, layers=tuple(one for one in started.layers if one.place != "default"))
