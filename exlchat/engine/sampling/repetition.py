"""Passages that were said before: DRY lowers what would lengthen one, no_repeat_ngram forbids it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LONGEST = 50
"""Tokens of a passage that DRY looks at, as its author has it: a power of more would overflow."""


def matches(
    context: NDArray[np.int64], most: int, breakers: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the end of a context stands in it before.

    Args:
        context: ids; not empty.
        most: tokens of a match.
        breakers: bool by id; a match ends behind such a token and does not hold it. The last token is none.

    Returns:
        int64 `[n]`: the places before the last one that hold the last token, and how many tokens up to there are those
        up to the end, from 1 to `most`.
    """
    end = len(context) - 1
    places = np.flatnonzero(context[:end] == context[end])
    lengths = np.ones(len(places), np.int64)
    going = np.arange(len(places))
    for length in range(1, min(most, end + 1)):
        token = context[end - length]
        if breakers is not None and breakers[token]:
            break
        before = places[going] - length
        going = going[(before >= 0) & (context[before] == token)]
        if not len(going):
            break
        lengths[going] += 1
    return places, lengths


def dry(
    context: NDArray[np.int64],
    breakers: NDArray[np.bool_] | None,
    *,
    multiplier: float,
    base: float,
    allowed: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Tokens that would lengthen a repeated passage, each once, and what is taken off their logits.

    Of the passages that a token has followed, with n the length of the longest, if n >= allowed:

        penalty = multiplier * base ** (n - allowed)

    p-e-w 2024, "DRY: A modern repetition penalty that reliably prevents looping",
    https://github.com/oobabooga/text-generation-webui/pull/5677.

    Args:
        context: ids, as far back as is looked.
        breakers: bool by id; at those a passage ends.
    """
    nothing = np.empty(0, np.int64), np.empty(0, np.float64)
    if not len(context) or (breakers is not None and breakers[context[-1]]):
        return nothing
    places, lengths = matches(context, LONGEST, breakers)
    long = lengths >= allowed
    if breakers is not None:
        # Nothing lengthens a passage that it breaks; else the token that ends a turn would be held back.
        long &= ~breakers[context[places + 1]]
    if not long.any():
        return nothing
    tokens, which = np.unique(context[places[long] + 1], return_inverse=True)
    longest = np.zeros(len(tokens), np.int64)
    np.maximum.at(longest, which, lengths[long])
    return tokens, multiplier * base ** (longest - allowed).astype(np.float64)


def ngram_ends(context: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Tokens that would make the last `size` ones a run that the context has already; ids, perhaps several times.

    Paulus, Xiong, Socher 2017, "A deep reinforced model for abstractive summarization", arXiv:1705.04304, section 2.5.

    Args:
        context: ids.
        size: 2 or more.
    """
    if len(context) < size:
        return np.empty(0, np.int64)
    places, lengths = matches(context, size - 1)
    ends: NDArray[np.int64] = context[places[lengths == size - 1] + 1]
    return ends
