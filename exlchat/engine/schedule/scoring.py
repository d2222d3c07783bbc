"""Logits -> how likely the token that stands at each place was, and which others were likeliest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from exlchat.engine.sampling import NotNumbersError
from exlchat.llm.events import PlaceChances, TokenChance

# Logits that are held at once, 32 places of a vocabulary of 262,144: 32 MiB in float32, and twice that to add them up.
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
    peaks = logits.amax(dim=-1)
    if not bool(peaks.isfinite().all()):
        raise NotNumbersError
    sums = (logits - peaks[:, None]).exp().sum(dim=-1, dtype=torch.float64).log() + peaks.double()
    ids, values = _likeliest(logits, min(top, logits.shape[1]))
    likeliest = (values.double() - sums[:, None]).tolist()
    found: list[PlaceChances] = []
    for row, (token, others, known) in enumerate(zip(taken, ids.tolist(), likeliest, strict=True)):
        best = tuple(TokenChance(*pair, rank) for rank, pair in enumerate(zip(others, known, strict=True), 1))
        own = next((one for one in best if one.token_id == token), None)
        if token is not None and own is None:
            chance = float(logits[row, token].double() - sums[row])
            own = TokenChance(token, chance, _rank(logits[row], token))
        found.append(PlaceChances(own, best))
    return found


def _rank(logits: Tensor, token: int) -> int:
    """Of a token among `[vocab]`. Counting takes longer than all else, so only what is not among the likeliest is."""
    likelier = int((logits > logits[token]).count_nonzero())
    return likelier + int((logits[:token] == logits[token]).count_nonzero()) + 1


def _likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and values `[places, count]` of the largest; of equal ones the lower ids, which `topk` does not promise."""
    values, ids = logits.topk(min(count + 1, logits.shape[1]), dim=-1)
    # Sorting a whole vocabulary takes fifty times as long, so ties are looked for and only those rows put in order.
    tied = (values[:, 1:] == values[:, :-1]).any(dim=-1)
    values, ids = values[:, :count].clone(), ids[:, :count].clone()
    for row in tied.nonzero()[:, 0].tolist():
        candidates = (logits[row] >= values[row, -1]).nonzero()[:, 0]
        order = logits[row, candidates].sort(descending=True, stable=True).indices[:count]
        ids[row] = candidates[order]
        values[row] = logits[row, ids[row]]
    return ids, values
