"""logits -> token: the definition in float64, on any device, of what `SamplingSettings` say.

`adjustments` (guidance, penalties, bans) come first, then the steps of `distribution`; `sampler` keeps what one answer
has to remember between its draws.
"""

from __future__ import annotations

from exlchat.engine.sampling.adjustments import check_sampling
from exlchat.engine.sampling.distribution import probabilities
from exlchat.engine.sampling.errors import NothingAllowedError, NotNumbersError
from exlchat.engine.sampling.sampler import Sampler
from exlchat.engine.sampling.vocabulary import TokenTexts

__all__ = ["NotNumbersError", "NothingAllowedError", "Sampler", "TokenTexts", "check_sampling", "probabilities"]
