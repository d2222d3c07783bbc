"""The chain of the sampler on the card: the same draws as by its reference, alone and inside captured steps."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from exlchat.engine import SamplingSettings
from exlchat.engine.decode.graphs import DecodeGraphs
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.sampling.device import DeviceDraws, c_chain
from exlchat.engine.schedule.token_sources import MaskedTokens, RunAheadTokens
from exlchat.ext.chain import FOREVER, ChainRules, token_words
from exlchat.ext.job import Job
from exlchat.ext.library import Library
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import DRAWN
from tests.ext.chain_cases import CASES, SEED, Bench, check_draws, random_chain, shapes
from tests.ext.reference_adjust import adjusted
from tests.ext.reference_chain import draw
from tests.ext.test_chain import HISTORIES, LOOKS
from tests.gpu.test_quantized_engine import EXL2, open_quantized
from tests.shared_data import needs_shared

CUDA = torch.device("cuda")
SPEAKS = SamplingSettings(
    1.3,
    top_k=200,
    mirostat_tau=5.0,
    xtc_probability=0.3,
    repetition_penalty=1.2,
    frequency_penalty=0.1,
    dry_multiplier=0.8,
    no_repeat_ngram=5,
)


def ended(job: Job) -> None:
    job.launch(dependent=True)


class GpuBench(Bench):
    """A `Bench` on the card."""

    def __init__(self, library: Library, vocab: int, room: int = 4096) -> None:
        super().__init__(library, vocab, ended, CUDA, room)

    def step(self) -> tuple[int, int]:
        for job in self.jobs:
            ended(job)
        torch.cuda.synchronize()
        self.sequence += 1
        word = self.sampler.ring.read(self.sequence)
        assert word is not None
        return word


@pytest.fixture
def bench(library: Library) -> Callable[[int], GpuBench]:
    return lambda vocab: GpuBench(library, vocab)


@pytest.mark.parametrize("vocab", [1, 100, 2049, 32000, 128256, 262208, 327680])
def test_each_step_draws_as_the_reference(bench: Callable[[int], GpuBench], vocab: int) -> None:
    made, different = bench(vocab), 0
    for name, settings in CASES.items():
        for shape, logits in shapes(vocab, torch.Generator().manual_seed(vocab)):
            different += check_draws(made, settings, logits, f"{name}, {shape}", draws=2)
    assert different <= 5


@pytest.mark.parametrize("vocab", [3000, 128256])
def test_random_chains_draw_as_the_reference(bench: Callable[[int], GpuBench], vocab: int) -> None:
    choice, made, different = random.Random(vocab), bench(vocab), 0
    for number in range(40):
        settings = random_chain(choice)
        for shape, logits in shapes(vocab, torch.Generator().manual_seed(number)):
            different += check_draws(made, settings, logits, f"{settings}, {shape}", draws=1)
    assert different <= 8


@pytest.mark.parametrize("name", ["everything", "typical", "nearly all first", "dynamic temperature"])
def test_a_hundred_runs_give_the_same_tokens(bench: Callable[[int], GpuBench], name: str) -> None:
    made = bench(128256)
    made.logits.copy_(torch.randn(128256, generator=torch.Generator().manual_seed(1)) * 2)
    runs = []
    for _ in range(100):
        made.begin(DeviceDraws(CASES[name], SEED, index=0), [0])
        runs.append([made.step() for _ in range(3)] + [made.sampler.mu()])
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize("history", HISTORIES)
def test_logits_are_adjusted_as_by_the_reference(bench: Callable[[int], GpuBench], history: str) -> None:
    vocab = 5000
    made, context = bench(vocab), HISTORIES[history]
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(1)) * 4
    breakers, bias, barred = [3, 40], {2: 0.1, 100: -5.0}, {30: FOREVER, 31: 5, 32: 4}
    rules = ChainRules(bias, barred, breakers=token_words(breakers, vocab))
    allowed = [token for token in range(vocab) if token % 5]
    for name, settings in LOOKS.items():
        for mask in (None, allowed):
            made.logits.copy_(logits)
            made.begin(DeviceDraws(settings, SEED, index=4, rules=rules), context)
            made.state.set_mask(None if mask is None else token_words(mask, vocab))
            assert made.step()[1] == DRAWN
            found = made.state.adjusted.cpu()
            wanted = adjusted(
                *(logits, c_chain(settings), context),
                index=4,
                bias=bias,
                barred=barred,
                breakers=breakers,
                allowed=None if mask is None else set(mask),
            )
            # Products and sums in one step may differ in the last bit.
            assert torch.equal(found.isinf(), wanted.isinf()), name
            assert torch.allclose(found.double(), wanted.double(), rtol=2e-7, atol=1e-7), name
            for counters in (made.state.counted, made.state.newest, made.state.repeated):
                assert not counters.any(), name


def test_a_graph_that_feeds_itself_draws_what_the_reference_draws(
    library: Library,
) -> None:
    """Each token's logits are a row of a table: 150 replays without a word from the host."""
    vocab = 32000
    table = torch.randn(64, vocab, generator=torch.Generator().manual_seed(2)) * 2.5
    on_card = table.cuda()
    made = GpuBench(library, vocab)
    row = torch.zeros(1, dtype=torch.int64, device=CUDA)
    context = [17, 3, 17]
    made.begin(DeviceDraws(SPEAKS, SEED, index=0), context)
    made.step()  # loads the kernels, which must not fall into a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.remainder(made.token, 64, out=row)
        torch.index_select(on_card, 0, row, out=made.logits.view(1, vocab))
        for index, job in enumerate(made.jobs):
            job.launch(dependent=index > 0)
    made.begin(DeviceDraws(SPEAKS, SEED, index=0), context)
    torch.cuda.synchronize()
    found = []
    for sequence in range(1, 151):
        graph.replay()
        while (word := made.sampler.ring.read(sequence)) is None:
            pass
        found.append(word[0])
    mu = 2 * SPEAKS.mirostat_tau
    for index, token in enumerate(found):
        changed = adjusted(table[context[-1] % 64], c_chain(SPEAKS), context, index=index)
        wanted, mu = draw(changed, c_chain(SPEAKS), seed=SEED, index=index, mu=mu)
        assert token == wanted, index
        context.append(token)
    assert made.sampler.mu() == pytest.approx(mu, abs=1e-6)
    assert made.state.context[: len(context)].tolist() == context


@needs_shared
@pytest.mark.parametrize("settings", [SPEAKS, SamplingSettings(0.9, top_p=0.95, repetition_penalty=1.3)])
def test_a_captured_step_draws_by_the_answer_so_far(kernels: Kernels, settings: SamplingSettings) -> None:
    transformer = open_quantized(EXL2, kernels)
    vocab, context = transformer.spec.vocab_size, [5, 6, 7, 5, 6]
    logits: list[torch.Tensor] = []

    def answer(draws: DeviceDraws, mask: torch.Tensor | None = None) -> list[int]:
        cache = KVCache(transformer.spec, "fp16", torch.float16, CUDA, 256)
        step, sequence = DecodeGraphs(transformer, cache, kernels), KVSequence(cache)
        sequence.reserve(len(context))
        transformer.forward(torch.tensor(context[:-1], device=CUDA), sequence, start=0)
        sequence.extend(context[:-1])
        if mask is None:
            source: RunAheadTokens | MaskedTokens = RunAheadTokens(step, sequence, context, draws, most=1)
        else:
            source = MaskedTokens(step, sequence, context, draws, lambda _token: mask)
        tokens = [context[-1]]
        for index in range(30):
            tokens.append(source.follow(tokens[-1]))
            logits.append(step.logits[0].cpu())
            if mask is None:  # one step at a time, so that its logits can be looked at
                draws = DeviceDraws(settings, SEED, index + 1, mu=step.mu())
                source = RunAheadTokens(step, sequence, [*context, *tokens[1:]], draws, most=1)
        source.close()
        return tokens[1:]

    allowed = set(range(0, vocab, 3))
    for mask in (None, token_words(sorted(allowed), vocab)):
        logits.clear()
        found = answer(DeviceDraws(settings, SEED, index=0), mask)
        so_far, mu = list(context), 2 * settings.mirostat_tau
        for index, token in enumerate(found):
            changed = adjusted(
                *(logits[index], c_chain(settings), so_far), index=index, allowed=None if mask is None else allowed
            )
            wanted, mu = draw(changed, c_chain(settings), seed=SEED, index=index, mu=mu)
            assert token == wanted, index
            so_far.append(token)
        if mask is not None:
            assert allowed.issuperset(found)
