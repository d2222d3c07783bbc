"""What a model answers: progress, text, the end of an answer with its counts, probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop_token", "stop_string", "max_new_tokens", "context_full", "cancelled", "repeating"]

Channel = Literal["answer", "thought", "mark"]
"""What a text is: a mark stands around thoughts, with its white space, and is kept but not shown."""

DecodePath = Literal["synchronous", "run-ahead"]


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """Counts and times of one answer. Seconds are wall-clock floats.

    `time_to_first_token` runs from the call to the first sampled token; `decode_seconds` from there to the end,
    so a rate is `(new_tokens - 1) / decode_seconds`. `decode_path` says who drew the tokens: the host, each step
    waiting for it, or the device, with the host one step behind. Of `drafted` tokens, which were guessed ahead,
    `accepted` were right. `rewound` tokens were taken back because they led to a banned string. `rows` answers at most
    were made side by side, this one among them; `exact` says that it is surely what it would be alone, to the bit.
    """

    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    time_to_first_token: float
    prefill_seconds: float
    decode_seconds: float
    seed: int
    decode_path: DecodePath = "synchronous"
    drafted: int = 0
    accepted: int = 0
    rewound: int = 0
    rows: int = 1
    exact: bool = True

    @property
    def tokens_per_second(self) -> float:
        """Decode rate; 0.0 while fewer than two tokens exist."""
        if self.new_tokens < 2 or self.decode_seconds <= 0.0:
            return 0.0
        return (self.new_tokens - 1) / self.decode_seconds


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`done` of `total` prompt tokens are in the cache, `cached` of them without work."""

    done: int
    total: int
    cached: int


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that may be shown, and the ids decoded so far that were not yet reported.

    Text and ids of one event need not correspond: text is held back while it could be half a character
    or half a stop string, or of a mark of thoughts, and ids while they may be taken back. Summed over an answer they
    do, in all channels. `chances` are those of these ids, where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...] = ()
    chances: tuple[PlaceChances, ...] = ()
    channel: Channel = "answer"


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event. `token_ids` are all generated ids without the stop token; `text` is all text shown.

    `chances` are those of the ids, where they were asked for. `healed` tokens at the end of the prompt were replaced by
    the first ones of `token_ids`. `stop_id` is the token that ended it, where one was drawn.
    """

    reason: FinishReason
    stats: GenerationStats
    text: str
    token_ids: tuple[int, ...]
    chances: tuple[PlaceChances, ...] = ()
    healed: int = 0
    stop_id: int | None = None


Event = PrefillProgress | TextDelta | Finished


@dataclass(frozen=True, slots=True)
class OneOfSeveral:
    """An event of one of several answers to the same prompt, which are counted from 0."""

    index: int
    event: TextDelta | Finished


@dataclass(frozen=True, slots=True)
class TokenChance:
    """A token at some place. `log_probability` is the natural logarithm of the model's own, at temperature 1.

    `rank` is 1 for the likeliest; of equally likely ones the lower id comes first.
    """

    token_id: int
    log_probability: float
    rank: int


@dataclass(frozen=True, slots=True)
class PlaceChances:
    """One place of a sequence: the token that stands there, `None` behind the last one, and the likeliest ones."""

    taken: TokenChance | None
    top: tuple[TokenChance, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """The last event of a scoring: the places of `ids[start:]`, and the one behind them."""

    places: tuple[PlaceChances, ...]
