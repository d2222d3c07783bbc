"""What a model is: token ids in, token ids out. Knows no conversation.

Names are resolved on first use (PEP 562), so that importing this package, or `exlchat.engine.events`,
does not import torch: the first screen is painted before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exlchat.engine.events import (
    Event,
    Finished,
    FitReport,
    GenerationRequest,
    GenerationStats,
    LoadProgress,
    ModelCard,
    ModelError,
    ModelInfo,
    PrefillProgress,
    RequestError,
    TextDelta,
)
from exlchat.engine.sampling_settings import GREEDY, SamplingSettings

if TYPE_CHECKING:
    from exlchat.engine.engine import Engine, load

__all__ = [
    "GREEDY",
    "Engine",
    "Event",
    "Finished",
    "FitReport",
    "GenerationRequest",
    "GenerationStats",
    "LoadProgress",
    "ModelCard",
    "ModelError",
    "ModelInfo",
    "PrefillProgress",
    "RequestError",
    "SamplingSettings",
    "TextDelta",
    "load",
]


def __getattr__(name: str) -> Any:
    if name in ("Engine", "load"):
        from exlchat.engine import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
