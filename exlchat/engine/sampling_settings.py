"""How a token is drawn, as one immutable, checked value. No torch: the floors above build these."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """Applied in the order of the fields; each default switches its step off.

    Args:
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens whose probabilities sum to at least p
            (Holtzman et al. 2019, arXiv 1904.09751); 1 keeps all.
        min_p: keep tokens with at least this fraction of the best token's probability
            (Nguyen et al. 2024, arXiv 2407.01082); 0 keeps all.

    Raises:
        ValueError: a value out of range, in one line.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0.0):
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be 0 (off) or a positive whole number")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)")
        if not 0.0 <= self.min_p <= 1.0:
            raise ValueError(f"min_p is {self.min_p}; it must be from 0 (off) to 1")

    @property
    def greedy(self) -> bool:
        """Whether the draw is deterministic whatever the seed."""
        return self.temperature == 0.0 or self.top_k == 1


GREEDY = SamplingSettings(temperature=0.0)
