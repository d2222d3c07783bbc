"""Logits -> how likely the token that stands at each place was, and which others were likeliest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from exlchat.engine.events import PlaceChances, TokenChance
from exlchat.engine.sampling import NotNumbersError

# Logits that are held at once: 32 MiB in float32, 64 MiB more in float64; 32 places of a vocabulary of 262,144.
_MOST_LOGITS = 2**23


def score_features(
    features: Tensor, logits: Callable[[Tensor], Tensor], vocab: int, taken: Sequence[int | None], top: int
) -> Iterator[PlaceChances]:
    """The chances at places whose features are known; as many at once as memory allows.

    Args:
        features: `[places, hidden]`, behind which each token stands.
        logits: makes float `[rows, vocab]` of some of them.
        vocab: how many logits that gives.
        taken: the token of each place.
        top: how many of the likeliest ones.

    Raises:
        NotNumbersError: the logits of a place are none.
    """
    rows = max(_MOST_LOGITS // vocab, 1)
    for first in range(0, len(taken), rows):
        yield from chances(logits(features[first : first + rows]), taken[first : first + rows], top)


@torch.inference_mode()
def chances(logits: Tensor, taken: Sequence[int | None], top: int) -> list[PlaceChances]:
    """What float `[places, vocab]` say of the token at each place, and of the `top` likeliest.

    Raises:
        NotNumbersError: of a place one is NaN or +inf, or all are -inf.
    """
    if not bool(logits.max(dim=-1).values.isfinite().all()):
        raise NotNumbersError
    sums = logits.double().logsumexp(dim=-1)
    ids, values = _likeliest(logits, min(top, logits.shape[1]))
    likeliest = (values.double() - sums[:, None]).tolist()
    places = torch.tensor([0 if token is None else token for token in taken], device=logits.device)[:, None]
    own = logits.gather(1, places)
    lower = torch.arange(logits.shape[1], device=logits.device) < places
    ranks = ((logits > own) | ((logits == own) & lower)).sum(dim=-1) + 1
    found = zip(taken, (own[:, 0].double() - sums).tolist(), ranks.tolist(), ids.tolist(), likeliest, strict=True)
    return [
        PlaceChances(
            None if token is None else TokenChance(token, chance, rank),
            tuple(TokenChance(*pair, at) for at, pair in enumerate(zip(row, others, strict=True), 1)),
        )
        for token, chance, rank, row, others in found
    ]


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and values `[places, count]` of the largest; of equal ones the lower ids, which `topk` does not promise."""
    values, ids = logits.topk(count, dim=-1)
    # Sorting a whole vocabulary takes fifty times as long, so ties are looked for and only those rows put in order.
    tied = ((logits >= values[:, -1:]).sum(dim=-1) > count) | (values[:, 1:] == values[:, :-1]).any(dim=-1)
    for row in tied.nonzero()[:, 0].tolist():
        candidates = (logits[row] >= values[row, -1]).nonzero()[:, 0]
        order = logits[row, candidates].sort(descending=True, stable=True).indices[:count]
        ids[row] = candidates[order]
        values[row] = logits[row, ids[row]]
    return ids, values
