"""What a model is: token ids in, token ids out. Knows no conversation.

Names are resolved on first use (PEP 562), so that importing this package, or `exlchat.engine.events`,
does not import torch: the first screen is painted before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exlchat.llm.events import Event, Finished, GenerationStats, PrefillProgress, TextDelta
from exlchat.llm.info import FitReport, LoadProgress, ModelCard, ModelError, ModelInfo
from exlchat.llm.request import GenerationRequest, RequestError
from exlchat.llm.sampling import GREEDY, SamplingSettings

if TYPE_CHECKING:
    from exlchat.engine.engine import load
    from exlchat.engine.local_engine import LocalEngine

__all__ = [
    "GREEDY",
    "Event",
    "Finished",
    "FitReport",
    "GenerationRequest",
    "GenerationStats",
    "LoadProgress",
    "LocalEngine",
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
    if name == "LocalEngine":
        from exlchat.engine.local_engine import LocalEngine

        return LocalEngine
    if name == "load":
        from exlchat.engine.engine import load

        return load
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
