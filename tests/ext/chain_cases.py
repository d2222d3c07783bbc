"""Distributions, settings and histories for the sampler's chain, and what works on them; on the CPU and on a GPU."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import pytest
import torch

from exlchat.engine.sampling.device import DeviceDraws
from exlchat.ext import chain, sampling
from exlchat.ext.job import Job
from exlchat.ext.library import Library
from exlchat.ext.philox import uniform_bits
from exlchat.ext.sampling import SamplerState
from exlchat.llm.controls import STEPS
from exlchat.llm.sampling import SamplingSettings
from tests.ext.reference_chain import Chain

SEED = 2**63 + 12345


def first(*steps: str) -> tuple[str, ...]:
    """An order that begins with some steps."""
    return (*steps, *(step for step in STEPS if step not in steps))


S = SamplingSettings
CASES = {
    "smoothing": S(smoothing_factor=0.3, smoothing_curve=2.0),
    "dynamic temperature": S(dynatemp_low=0.2, dynatemp_high=2.0, dynatemp_exponent=0.7),
    "top-n-sigma": S(top_n_sigma=1.5),
    "top-k before temperature": S(0.7, top_k=40, order=first("top_k")),
    "top-k of thousands first": S(1.3, top_k=3000, order=first("top_k")),
    "top-p before temperature": S(1.5, top_p=0.91, order=first("top_p")),
    "nearly all first": S(1.5, top_p=0.9999, order=first("top_p")),
    "top-a": S(top_a=0.2),
    "min-p before temperature": S(2.0, min_p=0.1, order=first("min_p")),
    "tail free": S(tfs=0.95),
    "typical": S(typical_p=0.51),
    "typical of a hundred": S(top_k=100, typical_p=0.9),
    "epsilon": S(epsilon_cutoff=0.0003),
    "eta": S(eta_cutoff=0.006),
    "mirostat": S(mirostat_tau=3.0),
    "xtc": S(top_k=500, xtc_probability=0.7, xtc_threshold=0.05),
    "xtc always": S(xtc_probability=1.0, xtc_threshold=0.02),
    "xtc early": S(
        top_k=300,
        top_p=0.95,
        tfs=0.97,
        typical_p=0.9,
        xtc_probability=1.0,
        xtc_threshold=0.02,
        order=first("xtc", "typical", "tfs", "top_k"),
    ),
    "everything": S(
        0.9,
        top_k=500,
        top_p=0.99,
        min_p=0.001,
        top_a=0.01,
        top_n_sigma=4.0,
        typical_p=0.97,
        tfs=0.99,
        epsilon_cutoff=0.0001,
        eta_cutoff=0.0002,
        mirostat_tau=5.0,
        xtc_probability=0.5,
        xtc_threshold=0.1,
        dynatemp_low=0.5,
        dynatemp_high=1.5,
        smoothing_factor=0.2,
    ),
}


def random_chain(choice: random.Random) -> SamplingSettings:
    """Any steps in any order."""
    order = list(STEPS)
    choice.shuffle(order)

    def maybe(on: float, off: float) -> float:
        return on if choice.random() < 0.4 else off

    return S(
        choice.choice([0.5, 0.8, 1.7]),
        top_k=int(maybe(choice.choice([2, 40, 700, 5000]), 0)),
        top_p=maybe(choice.uniform(0.3, 0.999), 1.0),
        min_p=maybe(choice.uniform(0.0001, 0.2), 0.0),
        top_a=maybe(choice.uniform(0.001, 0.5), 0.0),
        top_n_sigma=maybe(choice.uniform(0.5, 4.0), 0.0),
        typical_p=maybe(choice.uniform(0.3, 0.99), 1.0),
        tfs=maybe(choice.uniform(0.3, 0.99), 1.0),
        epsilon_cutoff=maybe(choice.uniform(1e-6, 0.01), 0.0),
        eta_cutoff=maybe(choice.uniform(1e-6, 0.01), 0.0),
        mirostat_tau=maybe(choice.uniform(1.0, 6.0), 0.0),
        xtc_probability=maybe(0.7, 0.0),
        xtc_threshold=choice.uniform(0.001, 0.2),
        dynatemp_low=0.3,
        dynatemp_high=maybe(2.0, 0.0) or 0.3,
        smoothing_factor=maybe(0.3, 0.0),
        smoothing_curve=choice.uniform(1.0, 3.0),
        order=tuple(order),
    )


def shapes(vocab: int, generator: torch.Generator) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and float32 `[vocab]`."""

    def bell() -> torch.Tensor:
        return torch.randn(vocab, generator=generator)

    yield "spread", bell() * 2.5
    yield "flat", bell() * 1e-3
    peaked = bell()
    peaked[torch.randint(vocab, (5,), generator=generator)] += 12
    yield "peaked", peaked
    yield "tied", (bell() * 2).round()
    yield "equal", torch.full((vocab,), -7.0)
    barred = bell() * 2.5
    barred[torch.rand(vocab, generator=generator) < 0.7] = -math.inf
    barred[vocab // 2] = 0.5
    yield "barred", barred
    one = torch.full((vocab,), -math.inf)
    one[vocab // 3] = -3.0
    yield "one", one


class Bench:
    """The sampler's jobs on one vocabulary, and what they write, poisoned.

    Args:
        launch: runs a job to its end.
    """

    def __init__(
        self, library: Library, vocab: int, launch: Callable[[Job], None], device: torch.device, room: int = 4096
    ) -> None:
        self.logits = torch.full((vocab,), math.nan, device=device)
        self.token = torch.full((1,), -99, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int32, device=device)
        self.sampler = SamplerState(device)
        self.state = chain.ChainState(vocab, room, device)
        self._launch = launch
        state, kernels = self.state, chain.ChainKernels(library)
        self.adjust = kernels.adjust(self.logits, state, self.sampler, position=self.position)
        self.chain = kernels.draw_adjusted(state, self.sampler, token=self.token, position=self.position)
        self.fours = sampling.SamplerKernels(library).sample(
            *(state.adjusted, self.sampler),
            token=self.token,
            position=self.position,
            context=state.context,
            numbers=state.numbers,
        )

    def begin(self, draws: DeviceDraws, context: Sequence[int]) -> None:
        self.sampler.ring.clear()
        self.sequence = 0
        self.jobs = [self.adjust, self.chain if draws.kind == "chain" else self.fours]
        self.sampler.set(draws.c_draw())
        self.state.set(draws.c_chain(), context, draws.rules)
        self.token.fill_(context[-1])
        self.position.fill_(len(context) - 1)

    def step(self) -> tuple[int, int]:
        """Token and status, as the host finds them."""
        for job in self.jobs:
            self._launch(job)
        self.sequence += 1
        word = self.sampler.ring.read(self.sequence)
        assert word is not None
        return word


def check_draws(bench: Bench, settings: SamplingSettings, logits: torch.Tensor, name: str, draws: int = 3) -> int:
    """Compares some draws with the reference; how many differ, which only rounding excuses."""
    vocab = len(logits)
    sheltered = torch.arange(vocab) % 7 == 3
    rules = chain.ChainRules(sheltered=chain.token_words(sheltered.nonzero()[:, 0].tolist(), vocab))
    asked = DeviceDraws(settings, SEED, index=3, attempt=1, rules=rules)
    bench.logits.copy_(logits)
    bench.begin(asked, [0])
    bench.jobs = [bench.adjust, bench.chain]  # whatever could be done with less
    mu, different = asked.c_draw().mu, 0
    for index in range(3, 3 + draws):
        token, status = bench.step()
        assert status == sampling.DRAWN, name
        coin = uniform_bits(SEED, index, attempt=1, coin=True) / 2**53
        left = Chain(logits, asked.c_chain(), mu=mu, coin=coin, sheltered=sheltered)
        cumulative = left.probabilities().cumsum(0)
        share = uniform_bits(SEED, index, attempt=1) / 2**53
        wanted = int(torch.searchsorted(cumulative, share * cumulative[-1], right=True))
        if token != wanted:
            different += 1
            # One token more or less at the end of what is kept moves all shares by its own weight.
            nearness = float(left.p.max() if len(left.order) > 1 else 0.0) + 1e-9
            end = float(cumulative[token])
            assert end - nearness - 1e-6 <= share <= end + 1e-6 + nearness, (name, index, token, wanted)
        if left.surprises:
            moved = mu - settings.mirostat_eta * (left.surprises.get(token, math.nan) - settings.mirostat_tau)
            assert token != wanted or bench.sampler.mu() == pytest.approx(moved, abs=1e-9), name
            mu = bench.sampler.mu()
    assert bench.token.tolist() == [token]
    assert bench.state.context[: draws + 1].tolist()[-1] == token
    return different


def unchecked(patch: pytest.MonkeyPatch, processors: int) -> None:
    """Lets jobs be made of tensors on the CPU, for a card of so many multiprocessors."""
    for module in (chain, sampling):
        patch.setattr(module, "check_on_gpu", lambda **_tensors: None)
    patch.setattr(chain, "_processors", lambda _device: processors)


class Functions:
    """A library of functions alone."""

    def __init__(self, functions: dict[str, Callable[..., int]]) -> None:
        self._functions = functions

    def function(self, name: str) -> Callable[..., int] | None:
        return self._functions.get(name)

    @property
    def library(self) -> Library:
        return cast(Library, self)
