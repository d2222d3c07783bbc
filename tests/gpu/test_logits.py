"""Logits scaled and capped in place, against the definition."""

from __future__ import annotations

import pytest
import torch

from exlchat.ext.ops import Kernels
from tests.ext.reference_sampling import scale_logits


@pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
@pytest.mark.parametrize("vocab", [1, 3, 4, 1023, 1024, 1025, 32000, 151936, 256000, 262144])
@pytest.mark.parametrize(("scale", "softcap"), [(0.0625, 0.0), (1.0, 30.0), (0.25, 30.0), (-3.0, 1.5)])
def test_scaled_logits(kernels: Kernels, vocab: int, scale: float, softcap: float, dependent: bool) -> None:
    room = torch.full((vocab + 8,), -7.0, device="cuda")
    logits = room[:vocab]  # those of one row
    logits.copy_(torch.randn(vocab, device="cuda") * 40)
    wanted = scale_logits(logits, scale=scale, softcap=softcap)
    kernels.scale_logits(logits.view(1, -1), scale=scale, softcap=softcap).launch(dependent=dependent)
    beyond = (logits.double() - wanted).abs() - 2e-6 * wanted.abs() - 1e-6
    at = int(beyond.argmax())
    assert beyond[at] <= 0, f"logit {at} is {float(logits[at])}, not {float(wanted[at])}"
    assert bool((room[vocab:] == -7.0).all()), "what lies behind the logits has changed"


def test_what_is_not_a_number_stays_so(kernels: Kernels) -> None:
    """So that the sampler says it."""
    logits = torch.randn(1000, device="cuda")
    logits[7] = float("nan")
    kernels.scale_logits(logits.view(1, -1), scale=0.5, softcap=30.0).launch(dependent=False)
    assert logits.isnan().nonzero().flatten().tolist() == [7]
