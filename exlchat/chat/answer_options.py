"""What an answer is asked to say and not to say, beside how its tokens are drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

from exlchat.llm.constraint import Constraint
from exlchat.llm.limits import MOST_LOGPROBS
from exlchat.llm.request import DraftKind

DraftChoice = Literal["auto", "off", "ngram", "model"]
DRAFTS: tuple[DraftChoice, ...] = get_args(DraftChoice)
MOST_TEXTS = 10_000
MOST_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How an answer has to be. The defaults ask for nothing.

    Args:
        stop: strings and token ids that end it, beside those of model and format.
        ban: strings that never come, in any case of their letters.
        min_tokens: it does not end by itself before so many.
        begin: text that it begins with, which the model goes on from.
        constraint: what it has to match, behind its thoughts.
        think: whether the model is to think first, where its format can be told; `None` leaves it to who speaks, and to
            the format.
        thinking_budget: tokens of thoughts, after which they are closed; `None` lets them be as long as they want.
        negative: the system prompt to lean away from, where `guidance_scale` is on; empty leans away from the
            conversation without one.
        heal: whether a text that goes on takes its last token back and draws it anew, because it may have been cut
            within a word.
        stop_repeating: whether it ends when it says the same over and over.
        logprobs: so many of the likeliest tokens are kept with each token; 0 keeps none.
        draft: who guesses tokens ahead, which changes nothing but the speed: `auto` takes the draft model where one is
            loaded, else what the conversation has said before.

    Raises:
        ValueError: out of range, in one line.
    """

    stop: tuple[str | int, ...] = ()
    ban: tuple[str, ...] = ()
    min_tokens: int = 0
    begin: str = ""
    constraint: Constraint | None = None
    think: bool | None = None
    thinking_budget: int | None = None
    negative: str = ""
    heal: bool = True
    stop_repeating: bool = True
    logprobs: int = 0
    draft: DraftChoice = "auto"

    def __post_init__(self) -> None:
        for name in ("stop", "ban"):
            texts = getattr(self, name)
            if "" in texts:
                raise ValueError(f"{name} holds an empty text, which is everywhere; leave it out")
            if len(texts) > MOST_TEXTS:
                raise ValueError(f"{name} holds {len(texts):,} texts; there can be {MOST_TEXTS:,}")
        _require_count("min_tokens", self.min_tokens, MOST_TOKENS)
        _require_count("logprobs", self.logprobs, MOST_LOGPROBS)
        if self.thinking_budget is not None:
            _require_count("thinking_budget", self.thinking_budget, MOST_TOKENS)
        if self.draft not in DRAFTS:
            raise ValueError(f"draft is {self.draft!r}; it must be one of {', '.join(DRAFTS)}")

    def drafted_by(self, *, draft_model: bool) -> DraftKind:
        if self.draft != "auto":
            return self.draft
        return "model" if draft_model else "auto"

    def changed(self) -> dict[str, Any]:
        """What is not as usual, by name, as JSON has it.

        So what is usual never changes: it is what the records of all answers until now mean by what they leave out.
        """
        told = asdict(self)
        return {one.name: told[one.name] for one in fields(self) if getattr(self, one.name) != one.default}


def _require_count(name: str, value: Any, most: int) -> None:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from 0 to {most:,}")


PLAIN = AnswerOptions()
"""Asks for nothing."""


def unpack_answer_options(content: Mapping[str, Any]) -> AnswerOptions:
    """The inverse of `AnswerOptions.changed`; names that this program does not know are left out.

    Raises:
        ValueError, TypeError, LookupError: values that make no sense.
    """
    known = {one.name: content[one.name] for one in fields(AnswerOptions) if one.name in content}
    for name in ("stop", "ban"):
        known[name] = tuple(known.get(name, ()))
    if known.get("constraint") is not None:
        known["constraint"] = Constraint(known["constraint"]["kind"], known["constraint"]["text"])
    speech = replace(PLAIN, **known)
    if not _is_sound(speech):
        raise ValueError("answer options of other kinds")
    return speech


def _is_sound(speech: AnswerOptions) -> bool:
    return (
        all(type(one) in (str, int) for one in speech.stop)
        and all(type(one) is str for one in (*speech.ban, speech.begin, speech.negative))
        and all(type(one) is bool for one in (speech.heal, speech.stop_repeating))
        and speech.think in (None, True, False)
    )
