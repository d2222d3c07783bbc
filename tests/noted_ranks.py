"""An engine that notes the ranks of all that it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exlchat.llm.port import Engine, Handle
from exlchat.llm.request import GenerationRequest, Rank, ScoreRequest


class NotedRanks:
    """An engine but for its type."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.ranks: list[Rank] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, request: GenerationRequest | ScoreRequest, sink: Callable[[Any], None]) -> Handle:
        self.ranks.append(request.rank)
        return self._engine.submit(request, sink)
