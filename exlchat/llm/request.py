"""What is asked of a model: an answer, or how likely a text is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from exlchat.llm.constraint import Constraint
from exlchat.llm.sampling import GREEDY, SamplingSettings
from exlchat.llm.thought_splitter import Thoughts

DraftKind = Literal["off", "auto", "ngram", "model"]


class Rank(IntEnum):
    """Who goes first where not all can: whoever is waited for by a person in front of the screen."""

    CHAT = 0
    API = 1
    BULK = 2
    IDLE = 3


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One answer to be generated.

    Args:
        prompt_ids: the whole prompt, at least one id. What the cache still holds of it is not computed again.
        sampling: how a token is drawn; greedy unless said otherwise.
        stop: strings that end the answer (never shown) and token ids that do, beside the model's own stop ids.
        max_new_tokens: at most this many tokens; `None` means until the context is full.
        seed: makes the draws reproducible; `None` takes a fresh seed, which the statistics report.
        owner: a label for the pages of the cache that it uses, shown by `CacheReport`.
        beginning: with so many of the prompt's first tokens other prompts begin as well, as with a system prompt: the
            cache keeps them longer.
        begun: so many of the prompt's last tokens are the answer so far: the text goes on behind theirs, in the middle
            of a line, or of a character.
        heal: the last of those `begun` tokens is taken back and drawn anew, among the tokens that begin with its text:
            a text that was cut within a word goes on as if it had not been. The text of the answer goes on behind it,
            and `Finished.healed` says which token it was.
        banned: strings that never come, in any case of their letters: where one is complete the answer goes back to
            before its first token, and another is drawn there.
        min_new_tokens: before so many tokens no stop token is drawn. Stop strings still end it.
        constraint: what the answer has to be.
        constraint_from: the constraint holds behind the first of these texts and tokens alone, as a call of a tool
            behind its opening mark; before it, and without it, anything may be said.
        thoughts: how they are marked, so that events tell them from the answer, and how long they may be.
        guidance_ids: the prompt to lean away from, for `sampling.guidance_scale`.
        stop_repeating: ends an answer that says the same over and over, with "repeating".
        alternatives: so many likeliest tokens are told of each place, with their probabilities; 0 tells none.
        draft: who guesses tokens ahead, which are all checked: the answer is the same. `ngram` guesses what stood
            behind the last tokens before, `model` asks the draft model; `auto` is `ngram` where a pass of several
            tokens costs little and computes the same bits as single ones.
        keep_pages: what was computed for it may be written to the disk, where the model keeps such pages. What lies
            there already is read in any case.
        rank: who goes first. An answer of a lower one may have to stand still for it, and is given up for it by none.
    """

    prompt_ids: Sequence[int]
    sampling: SamplingSettings = GREEDY
    stop: Sequence[str | int] = ()
    max_new_tokens: int | None = None
    seed: int | None = None
    owner: str = ""
    beginning: int = 0
    begun: int = 0
    heal: bool = False
    banned: Sequence[str] = ()
    min_new_tokens: int = 0
    constraint: Constraint | None = None
    constraint_from: Sequence[str | int] = ()
    thoughts: Thoughts | None = None
    guidance_ids: Sequence[int] = ()
    stop_repeating: bool = False
    alternatives: int = 0
    draft: DraftKind = "off"
    keep_pages: bool = True
    rank: Rank = Rank.CHAT


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A sequence whose tokens are to be told with their probabilities.

    Args:
        ids: the whole sequence.
        start: the first of its tokens that is asked about, from 1 on; `len(ids)` asks for what may follow alone.
        top: how many of the likeliest tokens are told at each place.
        owner, rank: as of `GenerationRequest`.
    """

    ids: Sequence[int]
    start: int
    top: int = 10
    owner: str = ""
    rank: Rank = Rank.CHAT


class RequestError(Exception):
    """A generation request that cannot be carried out; same one-line form."""
