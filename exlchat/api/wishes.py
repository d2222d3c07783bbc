"""What chat and text completions both may ask for: how tokens are drawn, how long an answer is, what ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from exlchat.api.constraints import constraint_of
from exlchat.api.errors import bad
from exlchat.api.fields import Fields
from exlchat.api.sampling_fields import read_sampling
from exlchat.api.voice import Voice
from exlchat.chat.answer_options import DRAFTS, AnswerOptions
from exlchat.llm.limits import LARGEST_SEED, MOST_ANSWERS
from exlchat.llm.request import Rank
from exlchat.llm.sampling import SamplingSettings

MOST_STOPS = 128
"""OpenAI has 4; SillyTavern sends a text for each name of a group, continue.dev those of a template and a language."""
MOST_TOP = 20
"""Likeliest tokens that are told of a place."""
_MOST_BANNED = 1_000
_MOST_TOKENS = 10**9
_LONGEST_OWNER = 100
_STOPS = ("stop", "stopping_strings", "stop_sequence", "stop_sequences")
_COUNTS = {
    "min_tokens": ("min_tokens", "min_length"),
    "thinking_budget": ("thinking_budget", "thinking_token_budget", "reasoning_budget_tokens"),
}
_FLAGS = {"heal": ("token_healing",), "stop_repeating": ()}
_MAX_TOKENS = ("max_completion_tokens", "max_tokens", "max_new_tokens", "max_length", "n_predict", "num_predict")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request says itself; what it leaves out is the voice's.

    Args:
        sampling: by the names of `SamplingSettings`.
        speech: by the names of `AnswerOptions`.
        max_tokens: the longest answer; `None` leaves it to the voice.
        to_the_end: an answer does not end by itself before its longest.
        seed: of the first answer; those behind it count up.
        answers: how many.
        top: so many of the likeliest tokens are told with each token; `None` tells no probabilities.
        stream: whether events are told as they come.
        include_usage: whether a stream ends with its counts.
        token_ids: whether ids are told, of the prompt and of each token.
        named_by_id: whether tokens are named by their ids where probabilities are told.
        owner: who asks, for the pages of the cache.
        rank: who goes first.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    speech: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None
    to_the_end: bool = False
    seed: int | None = None
    answers: int = 1
    top: int | None = None
    stream: bool = False
    include_usage: bool = False
    token_ids: bool = False
    named_by_id: bool = False
    owner: str = ""
    rank: Rank = Rank.API

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


def read_wishes(fields: Fields, *, top: int | None, usual_tokens: int | None = None) -> Wishes:
    """All that both endpoints name alike.

    Args:
        fields: of the body.
        top: as of `Wishes`; each endpoint has a name of its own for it.
        usual_tokens: the longest answer where nothing is said of it.

    Raises:
        ApiError: a field that cannot be.
    """
    answers = fields.whole("n", 1, 1, MOST_ANSWERS) or 1
    best_of = fields.whole("best_of", answers, 1) or answers
    if best_of != answers:
        raise bad("best_of", f"best_of is {best_of}; all {answers} answers are told, leave it out")
    seed = fields.whole(fields.first("seed", "sampler_seed"), None, -1, LARGEST_SEED)
    options = fields.nested("stream_options")
    return Wishes(
        sampling=read_sampling(fields),
        speech=_speech(fields),
        max_tokens=_max_tokens(fields, usual_tokens),
        to_the_end=fields.flag(fields.first("ignore_eos", "ban_eos_token", "ignore_eos_token")),
        # How several clients say "a fresh one".
        seed=None if seed == -1 else seed,
        answers=answers,
        top=top,
        stream=fields.flag("stream"),
        include_usage=options.flag("include_usage"),
        token_ids=fields.flag(fields.first("return_token_ids", "return_tokens")),
        named_by_id=fields.flag("return_tokens_as_token_ids"),
        owner=fields.text(fields.first("owner", "user"))[:_LONGEST_OWNER],
        rank=_rank(fields),
    )


def _rank(fields: Fields) -> Rank:
    """By vLLM's `priority`, where more means later. Nobody who asks from outside goes before the screen."""
    later = fields.whole("priority", 0, 0) or 0
    return Rank(min(Rank.API + later, Rank.IDLE))


def _max_tokens(fields: Fields, usual: int | None) -> int | None:
    """-1 is how some clients say "no bound"."""
    name = fields.first(*_MAX_TOKENS)
    found = fields.whole(name, usual, -1, _MOST_TOKENS)
    return None if found == -1 else found


def _speech(fields: Fields) -> dict[str, Any]:
    """What of `AnswerOptions` is said."""
    found: dict[str, Any] = {}
    if stop := _stops(fields):
        found["stop"] = stop
    if banned := (*fields.texts("banned_strings", _MOST_BANNED), *fields.texts("bad_words", _MOST_BANNED)):
        found["ban"] = banned
    constraint = constraint_of(fields)
    if constraint is not None:
        found["constraint"] = constraint
    found |= _counts(fields)
    for name, names in _FLAGS.items():
        key = fields.first(name, *names)
        if key in fields:
            found[name] = fields.flag(key)
    if negative := fields.text("negative_prompt"):
        found["negative"] = negative
    if draft := fields.text("draft"):
        if draft not in DRAFTS:
            raise fields.wrong("draft", f"there is no {draft!r}; it must be one of {', '.join(DRAFTS)}")
        found["draft"] = draft
    return found


def _counts(fields: Fields) -> dict[str, int]:
    """-1 is how some clients say nothing."""
    told = {name: fields.whole(fields.first(*names), -1, -1, _MOST_TOKENS) for name, names in _COUNTS.items()}
    return {name: count for name, count in told.items() if count is not None and count >= 0}


def _stops(fields: Fields) -> tuple[str | int, ...]:
    """Texts of all names together, each once, and ids of tokens."""
    ids = fields.listed("stop_token_ids") or []
    if not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in ids):
        raise fields.wrong("stop_token_ids", "it must be a list of ids of tokens")
    texts = dict.fromkeys(text for name in _STOPS for text in fields.texts(name, MOST_STOPS))
    if len(texts) > MOST_STOPS:
        raise fields.wrong("stop", f"there are {len(texts)} texts, and {MOST_STOPS} is most")
    return (*texts, *dict.fromkeys(ids))
