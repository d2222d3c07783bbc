"""What is told of answers beside their text, in both kinds of replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exlchat.api.logprobs import Chances, TokenNames, speller
from exlchat.api.wishes import Wishes
from exlchat.llm.events import Finished, FinishReason, TextDelta
from exlchat.llm.port import TextModel

_FINISH_REASONS: dict[FinishReason, str] = {
    "stop_token": "stop",
    "stop_string": "stop",
    "repeating": "stop",
    "max_new_tokens": "length",
    "context_full": "length",
    "cancelled": "stop",
}
"""By our own words. Nobody reads of a cancelled one."""


@dataclass(frozen=True, slots=True)
class Telling:
    """What a client wants to be told.

    Args:
        model: whose tokens.
        names: what tokens are called where their probabilities are told; `None` tells none.
        token_ids: whether ids are told.
        include_usage: whether a stream ends with its counts.
        stops: texts that end an answer.
        stop_ids: tokens that do, as the client has named them.
    """

    model: TextModel
    names: TokenNames | None = None
    token_ids: bool = False
    include_usage: bool = False
    stops: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()

    def ending(self, finished: Finished | None) -> dict[str, Any]:
        """Why an answer has ended; nothing of one that goes on."""
        if finished is None:
            return {"finish_reason": None}
        found: dict[str, Any] = {"finish_reason": _FINISH_REASONS[finished.reason]}
        if finished.reason == "repeating":
            found["stop_reason"] = "repeating"
        elif finished.reason == "stop_string":
            found["stop_reason"] = self._stop(finished)
        elif finished.stop_id in self.stop_ids:
            found["stop_reason"] = finished.stop_id
        return found

    def _stop(self, finished: Finished) -> str | None:
        """The text that came first, behind what was shown."""
        said = self.model.decode(finished.token_ids, special=True)
        places = {said.find(stop, max(len(finished.text) - len(stop), 0)): stop for stop in self.stops if stop in said}
        return places[min(places)] if places else None


def telling(model: TextModel, wishes: Wishes, stops: Sequence[str | int]) -> Telling:
    names = None if wishes.top is None else TokenNames(speller(model), wishes.top, by_id=wishes.named_by_id)
    texts = tuple(one for one in stops if isinstance(one, str))
    ids = frozenset(one for one in wishes.speech.get("stop", ()) if isinstance(one, int))
    return Telling(model, names, wishes.token_ids, wishes.include_usage, texts, ids)


def chances_of(delta: TextDelta) -> Chances:
    """The tokens of a piece, with how likely each was."""
    return list(zip(delta.token_ids, delta.chances, strict=False))
