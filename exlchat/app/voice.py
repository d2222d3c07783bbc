"""How a model speaks where a request of another program, or a line of a file, does not say: as the chat has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exlchat.api.voice import Voice
from exlchat.app.generation_settings import at_start

if TYPE_CHECKING:
    from pathlib import Path

    from exlchat.config.layers import Resolved


def voice_of(held: Resolved, model: Path | None) -> Voice:
    """By the settings that hold for it. Raises `SettingsError`: they contradict each other."""
    usual = at_start(held, model)
    return Voice(
        sampling=usual.sampling,
        speech=usual.speech,
        seed=usual.seed,
        max_tokens=usual.max_tokens,
        template=held.value("template"),
        system=held.value("system") or "",
    )
