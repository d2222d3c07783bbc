"""What `exl_adjust` computes, in plain Python: from logits to adjusted ones, in doubles that are rounded once."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from exlchat.ext.functions import DRY_MOST, CChain

_LARGEST = float(torch.finfo(torch.float32).max)


def adjusted(
    logits: Tensor,
    chain: CChain,
    context: Sequence[int],
    *,
    index: int = 0,
    bias: Mapping[int, float] | None = None,
    barred: Mapping[int, int] | None = None,
    breakers: Collection[int] = (),
    allowed: Collection[int] | None = None,
) -> Tensor:
    """float32 `[vocab]`.

    Args:
        logits: float32 `[vocab]`, numbers or -inf.
        context: prompt and answer so far.
        index: of the token that is drawn, in the answer.
        bias, barred, breakers: see `chain.TokenRules`, as ids.
        allowed: a mask; `None` allows all.
    """
    x = logits.double().tolist()
    if chain.penalties:
        _penalise(x, chain, context)
    out: set[int] = set()
    if chain.dry_on:
        window = context[-chain.dry_range :] if chain.dry_range else context
        for token, length in repetitions(window, breakers).items():
            if token < len(x):
                x[token] -= chain.dry[length - 1]
    if chain.ngram:
        out |= completing(context, chain.ngram)
    for token, added in (bias or {}).items():
        x[token] += float(torch.tensor(added, dtype=torch.float32))
    out |= {token for token, until in (barred or {}).items() if index < until}
    for token, value in enumerate(x):
        if token in out or (allowed is not None and token not in allowed):
            x[token] = -math.inf
        elif not math.isinf(value):
            x[token] = min(max(value, -_LARGEST), _LARGEST)
    return torch.tensor(x, dtype=torch.float64).float()


def _penalise(x: list[float], chain: CChain, context: Sequence[int]) -> None:
    """Repetition by the newest use, presence by its weight, frequency by the weights of all."""
    full, decay = (chain.penalty_range, chain.penalty_decay) if chain.penalty_range else (len(context), 0)
    newest: dict[int, float] = {}
    uses: dict[int, int] = {}
    for back, token in enumerate(reversed(context)):
        if back >= full + decay:
            break
        whole = max(decay, 1)
        weight = whole if back <= full else decay - (back - full)
        if 0 <= token < len(x):
            newest.setdefault(token, weight / whole)
            uses[token] = uses.get(token, 0) + weight
    for token, weight in newest.items():
        factor = chain.repetition + (1.0 - chain.repetition) * (1.0 - weight)
        x[token] = x[token] / factor if x[token] > 0 else x[token] * factor
        x[token] -= chain.presence * weight
        x[token] -= chain.frequency * (uses[token] / max(decay, 1))


def repetitions(context: Sequence[int], breakers: Collection[int]) -> dict[int, int]:
    """DRY (p-e-w 2024, github.com/oobabooga/text-generation-webui/pull/5677): a token -> how long the longest passage,
    of at most `DRY_MOST` tokens and without a breaker, is that ends the context and stood before that token."""
    found: dict[int, int] = {}
    last = len(context) - 1
    for at in range(last):
        length = 0
        while (
            length < min(DRY_MOST, at + 1)
            and context[at - length] == context[last - length]
            and context[at - length] not in breakers
        ):
            length += 1
        if length and context[at + 1] not in breakers:
            found[context[at + 1]] = max(found.get(context[at + 1], 0), length)
    return found


def completing(context: Sequence[int], n: int) -> set[int]:
    """The tokens behind which the context would end with n tokens, 2 or more, that it holds already."""
    if len(context) < n:
        return set()
    ending = list(context[1 - n :])
    return {context[at] for at in range(n - 1, len(context)) if list(context[at - n + 1 : at]) == ending}
