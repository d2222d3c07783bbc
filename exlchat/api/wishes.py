"""What chat and text completions both may ask for: how tokens are drawn, how long an answer is, what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exlchat.api.constraints import constraint_of
from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.api.voice import Voice
from exlchat.chat.answer_options import AnswerOptions
from exlchat.llm.controls import CONTROLS
from exlchat.llm.limits import LARGEST_SEED, MOST_ANSWERS
from exlchat.llm.sampling import SamplingSettings, checked_value

MOST_STOPS = 16
MOST_TOP = 20
"""Likeliest tokens that are told of a place."""
_MOST_TOKENS = 10**9
_LONGEST_OWNER = 100
_TOKEN_BIASES = "logit_bias"


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request says itself; what it leaves out is the voice's.

    Args:
        sampling: by the names of `SamplingSettings`.
        speech: by the names of `AnswerOptions`.
        max_tokens: the longest answer; `None` leaves it to the voice.
        seed: of the first answer; those behind it count up.
        answers: how many.
        top: so many of the likeliest tokens are told with each token; `None` tells no probabilities.
        stream: whether events are told as they come.
        include_usage: whether a stream ends with its counts.
        owner: who asks, for the pages of the cache.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    speech: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    seed: int | None = None
    answers: int = 1
    top: int | None = None
    stream: bool = False
    include_usage: bool = False
    owner: str = ""

    def with_voice(self, voice: Voice) -> tuple[SamplingSettings, AnswerOptions]:
        """Raises `ApiError`: values that contradict each other."""
        try:
            return replace(voice.sampling, **self.sampling), replace(voice.speech, **self.speech)
        except ValueError as error:
            raise bad(None, str(error)) from None

    def seeds(self, voice: Voice) -> list[int | None]:
        first = voice.seed if self.seed is None else self.seed
        return [None if first is None else (first + number) % (LARGEST_SEED + 1) for number in range(self.answers)]

    def most(self, voice: Voice) -> int | None:
        return voice.max_tokens if self.max_tokens is None else self.max_tokens


def read_wishes(fields: Fields, *, top: int | None, max_tokens: int | None) -> Wishes:
    """All that both endpoints name alike.

    Args:
        fields: of the body.
        top, max_tokens: as of `Wishes`; the endpoints have other names for them.

    Raises:
        ApiError: a field that cannot be.
    """
    answers = fields.whole("n", 1, 1, MOST_ANSWERS) or 1
    best_of = fields.whole("best_of", answers, 1) or answers
    if best_of != answers:
        raise bad("best_of", f"best_of is {best_of}; all {answers} answers are told, leave it out")
    seed = fields.whole("seed", None, -1, LARGEST_SEED)
    speech: dict[str, Any] = {}
    if stop := fields.texts("stop", MOST_STOPS):
        speech["stop"] = stop
    constraint = constraint_of(fields)
    if constraint is not None:
        speech["constraint"] = constraint
    stream = fields.flag("stream")
    options = fields.nested("stream_options")
    return Wishes(
        sampling=_sampling(fields),
        speech=speech,
        max_tokens=max_tokens,
        # How several clients say "a fresh one".
        seed=None if seed == -1 else seed,
        answers=answers,
        top=top,
        stream=stream,
        include_usage=options.flag("include_usage"),
        owner=fields.text("user")[:_LONGEST_OWNER],
    )


def read_max_tokens(fields: Fields, *names: str) -> int | None:
    """The first of some names for the longest answer. -1 is how some clients say "no bound"."""
    found = fields.whole(fields.first(*names), None, -1, _MOST_TOKENS)
    return None if found == -1 else found


def _sampling(fields: Fields) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in CONTROLS:
        if name in fields:
            value = _biases(fields) if name == _TOKEN_BIASES else _plain(name, fields.raw(name))
            try:
                found[name] = checked_value(name, value)
            except ValueError as error:
                raise bad(name, str(error)) from None
    return found


def _plain(name: str, value: Any) -> Any:
    if CONTROLS[name].kind == "whole" and isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _biases(fields: Fields) -> Any:
    """OpenAI's object of ids as texts; else a list of pairs, as ours."""
    value = fields.raw(_TOKEN_BIASES)
    if not isinstance(value, dict):
        return value
    if not all(token.isascii() and token.isdigit() and len(token) < 10 for token in value):
        raise fields.wrong(_TOKEN_BIASES, "a token is named by its id, as a text of digits")
    return [(int(token), bias) for token, bias in value.items()]
