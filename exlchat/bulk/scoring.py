"""How likely a text is, as a line of a run: a body with a text -> what the engine is asked, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from exlchat.api.asked import Asked, FindSpeaker
from exlchat.api.completion_plan import prompt_ids_of
from exlchat.api.errors import bad, context_exceeded
from exlchat.api.fields import Fields
from exlchat.api.plan import require_readable
from exlchat.llm.events import Event, Scored
from exlchat.llm.port import CanScore
from exlchat.llm.request import ScoreRequest


class ScoreReply:
    """Of one text. Log-probabilities are natural, at temperature 1; the first token, which nothing stands before, has
    none.
    """

    def __init__(self, model: str, tokens: int) -> None:
        self._model, self._tokens = model, tokens
        self._logprobs: list[float] = []
        self.ended = False

    def first(self) -> Iterator[str]:
        yield from ()

    def feed(self, index: int, event: Event | Scored) -> Iterator[str]:
        del index  # there is one text
        if isinstance(event, Scored):
            # The last place is that behind the text.
            self._logprobs = [one.taken.log_probability for one in event.places if one.taken is not None]
            self.ended = True
        yield from ()

    def last(self) -> Iterator[str]:
        yield from ()

    def whole(self) -> dict[str, Any]:
        total = math.fsum(self._logprobs)
        return {
            "object": "score",
            "model": self._model,
            "logprob": total,
            "perplexity": math.exp(-total / len(self._logprobs)) if self._logprobs else None,
            "token_logprobs": self._logprobs,
            "usage": {"prompt_tokens": self._tokens},
        }


def ask_score(fields: Fields, find: FindSpeaker) -> Asked:
    """Raises `ApiError` or `RequestError` as `ask_chat` does."""
    speaker, text = find(""), fields.text("text")
    engine = speaker.model.engine
    if not isinstance(engine, CanScore):
        raise bad("text", "this model does not tell how likely a text is; load one here")
    require_readable(engine, "text", len(text))
    ids = prompt_ids_of(engine, text, bos=True)
    if len(ids) > engine.info.max_seq_len:
        raise context_exceeded("text", len(ids), engine.info.max_seq_len)
    if len(ids) < 2:
        raise bad("text", "the text is one token; there is nothing before it that could make it likely")
    reply = ScoreReply(speaker.name, len(ids))
    return Asked(speaker, (ScoreRequest(ids, 1, 1, "run"),), reply, False, fields.ignored)
