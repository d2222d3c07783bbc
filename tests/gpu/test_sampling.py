"""The sampler against the distribution of `exlchat.engine.sampling`, and the ring by which the host hears of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from exlchat.engine import GREEDY, SamplingSettings
from exlchat.engine.sampling import Sampler, probabilities
from exlchat.ext.library import Library
from exlchat.ext.philox import uniform_bits
from exlchat.ext.sampling import DRAWN, NOT_NUMBERS, SamplerKernels, SamplerState, c_draw
from tests.ext.reference_sampling import draw, kept_weights

SEED = 2**63 + 12345
SETTINGS = {
    "greedy": GREEDY,
    "temperature": SamplingSettings(0.8),
    "hot": SamplingSettings(30.0),
    "top-k": SamplingSettings(1.0, top_k=40),
    "top-k of thousands": SamplingSettings(1.0, top_k=3000),
    "top-p": SamplingSettings(1.0, top_p=0.9),
    "nearly all": SamplingSettings(1.0, top_p=0.99999),
    "min-p": SamplingSettings(1.0, min_p=0.05),
    "all four": SamplingSettings(0.7, top_k=64, top_p=0.95, min_p=0.02),
    "wide": SamplingSettings(2.5, top_k=2000, top_p=0.9, min_p=0.0001),
    "cold": SamplingSettings(0.01, top_k=50, top_p=0.9),
}


def flat(vocab: int) -> torch.Tensor:
    return torch.randn(vocab, device="cuda") * 1e-3


def spread(vocab: int) -> torch.Tensor:
    return torch.randn(vocab, device="cuda") * 2.5


def peaked(vocab: int) -> torch.Tensor:
    logits = torch.randn(vocab, device="cuda")
    logits[torch.randint(vocab, (5,), device="cuda")] += 12
    return logits


def tied(vocab: int) -> torch.Tensor:
    return (torch.randn(vocab, device="cuda") * 2).round()


def equal(vocab: int) -> torch.Tensor:
    return torch.full((vocab,), -7.0, device="cuda")


def barred(vocab: int) -> torch.Tensor:
    logits = spread(vocab)
    logits[torch.rand(vocab, device="cuda") < 0.7] = -math.inf
    logits[vocab // 2] = 0.5
    return logits


SHAPES = [flat, spread, peaked, tied, equal, barred]


class Bench:
    """One sampler and what it writes, poisoned."""

    def __init__(self, library: Library, vocab: int, *, dependent: bool = True) -> None:
        device = torch.device("cuda")
        self.logits = torch.full((vocab,), math.nan, device=device)
        self.token = torch.full((1,), -99, dtype=torch.int64, device=device)
        self.position = torch.full((1,), 7, dtype=torch.int32, device=device)
        self.state = SamplerState(device)
        kernels = SamplerKernels(library)
        self._job = kernels.sample(self.logits, self.state, token=self.token, position=self.position)
        self._dependent = dependent
        self._sequence = 0

    def begin(self, settings: SamplingSettings, index: int, seed: int = SEED) -> None:
        torch.cuda.synchronize()
        first = c_draw(
            temperature=settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
            seed=seed,
            index=index,
            sequence=self._sequence,
        )
        self.state.set(first)

    def launch(self) -> None:
        self._job.launch(dependent=self._dependent)
        self._sequence += 1

    def step(self) -> tuple[int, int]:
        """Token and status, as the host finds them."""
        self.launch()
        torch.cuda.synchronize()
        word = self.state.ring.read(self._sequence)
        assert word is not None
        return word


def at(settings: SamplingSettings, index: int) -> Sampler:
    """The host's sampler before draw `index`."""
    sampler = Sampler(settings, SEED)
    for _ in range(index):
        sampler.accept(0)
    return sampler


def in_integers(logits: torch.Tensor, settings: SamplingSettings, index: int) -> int:
    """The token of the kernels' own reference, in which a sum that just reaches p is exact."""
    steepness = math.log2(math.e) / settings.temperature
    deepest = -math.log2(settings.min_p) if settings.min_p else math.inf
    kept = kept_weights(logits, steepness, top_k=settings.top_k, top_p=settings.top_p, deepest=deepest)
    return draw(kept, SEED, index)


def agrees(token: int, logits: torch.Tensor, settings: SamplingSettings, index: int) -> bool:
    """Whether rounding alone can have led to this token: the drawn share falls within 1e-4 of its own."""
    p = probabilities(logits, settings)
    through = p.cumsum(0)
    share = uniform_bits(SEED, index) / 2**53
    end = float(through[token])
    return end - float(p[token]) - 1e-4 <= share <= end + 1e-4


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("vocab", [1, 100, 1023, 1025, 4096, 128256, 256000, 262208, 327680])
def test_tokens_are_those_that_the_host_would_draw(
    library: Library, vocab: int, shape: Callable[[int], torch.Tensor]
) -> None:
    torch.manual_seed(vocab)
    bench = Bench(library, vocab)
    different = []
    for name, settings in SETTINGS.items():
        for index in range(6):
            bench.logits.copy_(shape(vocab))
            bench.begin(settings, index)
            token, status = bench.step()
            assert status == DRAWN, name
            wanted = at(settings, index).draw(bench.logits)
            if token != wanted:
                different.append((name, index, token, wanted))
                assert not settings.greedy
                exact = in_integers(bench.logits, settings, index)
                assert token == exact or agrees(token, bench.logits, settings, index), (different, exact)
    # Rounding decides where a token weighs no more than the rounding of a sum: some 1e-7 of all.
    assert len(different) <= (3 if vocab < 100000 else 20), different


@pytest.mark.parametrize("dependent", [False, True], ids=["plain", "dependent"])
@pytest.mark.parametrize("name", ["greedy", "temperature", "top-p", "all four"])
def test_a_hundred_runs_give_the_same_tokens(library: Library, name: str, dependent: bool) -> None:
    bench = Bench(library, 128256, dependent=dependent)
    bench.logits.copy_(spread(128256))
    runs = []
    for _ in range(100):
        bench.begin(SETTINGS[name], 3)
        runs.append([bench.step() for _ in range(4)])
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("name", ["temperature", "top-p", "all four"])
def test_draws_follow_the_distribution(library: Library, name: str) -> None:
    logits = (torch.randn(1500, generator=torch.Generator().manual_seed(1)) * 2).to("cuda")
    bench = Bench(library, 1500)
    bench.logits.copy_(logits)
    bench.begin(SETTINGS[name], 0)
    batches, batch = 400, 50
    counts = torch.zeros(1500, dtype=torch.float64)
    for done in range(0, batches * batch, batch):
        for _ in range(batch):
            bench.launch()
        torch.cuda.synchronize()
        for sequence in range(done + 1, done + batch + 1):
            word = bench.state.ring.read(sequence)
            assert word is not None
            counts[word[0]] += 1
    expected = probabilities(logits, SETTINGS[name]).cpu() * batches * batch
    assert (counts[expected == 0] == 0).all()
    often = expected >= 5
    seen, wanted = [*counts[often].tolist()], [*expected[often].tolist()]
    if (rest := float(expected[~often].sum())) >= 5:
        seen.append(float(counts[~often].sum()))
        wanted.append(rest)
    chi_square = sum((a - b) ** 2 / b for a, b in zip(seen, wanted, strict=True))
    degrees = len(seen) - 1
    # Mean and deviation of chi-square are its degrees of freedom and the root of twice those.
    assert chi_square < degrees + 5 * math.sqrt(2 * degrees)


def test_a_step_counts_on_and_feeds_the_next(library: Library) -> None:
    bench = Bench(library, 5000)
    bench.logits.copy_(spread(5000))
    bench.begin(SETTINGS["all four"], index=11)
    tokens = [bench.step()[0] for _ in range(5)]
    assert int(bench.token) == tokens[-1]
    assert int(bench.position) == 7 + 5
    assert tokens == [at(SETTINGS["all four"], 11 + place).draw(bench.logits) for place in range(5)]


@pytest.mark.parametrize("name", ["greedy", "temperature", "all four"])
@pytest.mark.parametrize("wrong", [math.nan, -math.nan, math.inf, "all barred"])
@pytest.mark.parametrize("vocab", [1, 3000, 128256])
def test_what_is_no_number_is_said_and_the_next_step_is_right(
    library: Library, name: str, wrong: float | str, vocab: int
) -> None:
    bench = Bench(library, vocab)
    good = spread(vocab)
    for _ in range(3):
        bench.logits.copy_(good)
        if isinstance(wrong, str):
            bench.logits.fill_(-math.inf)
        else:
            bench.logits[vocab * 2 // 3] = wrong
        bench.begin(SETTINGS[name], 0)
        assert bench.step() == (0, NOT_NUMBERS)
        assert int(bench.token) == 0
        bench.logits.copy_(good)
        bench.begin(SETTINGS[name], 0)
        assert bench.step() == (Sampler(SETTINGS[name], SEED).draw(good), DRAWN)


def test_a_graph_that_feeds_itself_draws_what_the_host_draws(library: Library) -> None:
    """A step of which each token's logits are a row of a table: 200 replays without a word from the host."""
    vocab, settings = 32000, SETTINGS["all four"]
    table = torch.randn(64, vocab, device="cuda") * 2.5
    bench = Bench(library, vocab)
    row = torch.zeros(1, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.remainder(bench.token, 64, out=row)
        torch.index_select(table, 0, row, out=bench.logits.view(1, vocab))
        bench.launch()
    bench.begin(settings, 0)
    bench.token.fill_(17)
    torch.cuda.synchronize()
    bench.state.ring.clear()
    bench.begin(settings, 0)
    first = bench._sequence + 1
    found = []
    for sequence in range(first, first + 200):
        graph.replay()
        while (word := bench.state.ring.read(sequence)) is None:
            pass
        found.append(word[0])
    sampler, token, wanted = Sampler(settings, SEED), 17, []
    for _ in range(200):
        token = sampler.draw(table[token % 64])
        sampler.accept(token)
        wanted.append(token)
    assert found == wanted
