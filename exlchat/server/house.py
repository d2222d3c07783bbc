"""Which models there are and who speaks with them: what whoever starts a server tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from exlchat.api.voice import Voice
from exlchat.llm.info import LoadProgress
from exlchat.llm.port import Engine


class House(Protocol):
    """Everything here may take a while, and is called in a thread beside the loop."""

    def models(self) -> Sequence[str]:
        """Names of the models that may be asked for; the one of the start is the first."""

    def load(self, model: str, on_progress: Callable[[LoadProgress], None]) -> Engine:
        """Raises `ModelError`."""

    def variants(self) -> Sequence[str]:
        """What may stand behind a model's name: personas as `@name`, presets as `:name`."""

    def voice(self, model: str, variant: str) -> Voice:
        """How a model speaks; "" is without any variant. Raises `ApiError`: it cannot."""


@dataclass(frozen=True, slots=True)
class Name:
    """A model and a variant, as a request names them."""

    model: str
    variant: str

    def __str__(self) -> str:
        return self.model + self.variant


def parsed(name: str, models: Sequence[str], variants: Callable[[], Sequence[str]]) -> Name | None:
    """What a request means; `None` where there is nothing of the kind. Names of models may hold any sign.

    "" is the first model, and a variant alone goes with it.
    """
    if name in ("", *models):
        return Name(name or models[0], "")
    known = variants()
    for model in ("", *models):
        rest = name.removeprefix(model)
        if name.startswith(model) and rest in known:
            return Name(model or models[0], rest)
    return None
