"""What the sampler's kernels cost a step on a GPU: `python -m benchmarks.sampler [--only "full chain"]`.

Times of one sampler in a graph of 20, each waiting for the one before, the logits in L2 as the head's product leaves
them; per cent of a step of an 8B model (4.1 bpw), which takes 1.55 ms on an H200 (`benchmarks.rows`). Contexts have
8,192 tokens.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.compiled import compiled_library
from benchmarks.timing import event_seconds
from exlchat.engine import GREEDY, SamplingSettings
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.ext.chain import ChainState
from exlchat.ext.job import Job
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import SamplerState
from exlchat.llm.controls import STEPS as SAMPLING_STEPS

VOCABULARIES = {"32k": 32000, "128k": 128256, "256k": 262144}
STEP_SECONDS = 1.546e-3
COPIES, CONTEXT, ROOM = 20, 8192, 16384
LOOKS_BACK = {
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "dry_multiplier": 0.8,
    "no_repeat_ngram": 8,
}
STEPS = {
    "smoothing_factor": 0.2,
    "dynatemp_low": 0.5,
    "dynatemp_high": 1.5,
    "top_n_sigma": 5.0,
    "top_p": 0.99,
    "min_p": 0.001,
    "top_a": 0.01,
    "typical_p": 0.97,
    "tfs": 0.99,
    "epsilon_cutoff": 1e-4,
    "eta_cutoff": 2e-4,
    "mirostat_tau": 5.0,
    "xtc_probability": 0.5,
}
FOUR = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}
BOUNDS = ("min_p", "top_a", "epsilon_cutoff", "eta_cutoff", "mirostat_tau")
SORTED = ("top_p", "tfs", "typical_p", "xtc_probability")
FIRST_200 = {"top_k": 200, "order": ("top_k", *(step for step in SAMPLING_STEPS if step != "top_k"))}
"""The grid does little here, then one block goes on: two lines differ by what some steps cost there."""
TEMPERATURE_LAST = (*(step for step in SAMPLING_STEPS if step != "temperature"), "temperature")
SETTINGS = {
    "fast: greedy": GREEDY,
    "fast: temperature 1": SamplingSettings(),
    "fast: temperature, top-k, top-p, min-p": SamplingSettings(**FOUR),
    "those, adjusted (penalties, DRY, n-grams)": SamplingSettings(**FOUR, **LOOKS_BACK),
    "temperature 1, adjusted": SamplingSettings(**LOOKS_BACK),
    "chain: smoothing alone (grid: best, draw)": SamplingSettings(smoothing_factor=0.2),
    "chain: sigma alone (grid: best, sums, draw)": SamplingSettings(top_n_sigma=5.0),
    "chain: top-k 200 (grid: best, bins, list; block: draw)": SamplingSettings(0.8, **FIRST_200),
    "chain: sigma, top-k 200 (grid: and sums)": SamplingSettings(top_k=200, top_n_sigma=5.0),
    "chain: top-k 200, in the block bounds": SamplingSettings(
        0.8, **FIRST_200, **{name: STEPS[name] for name in BOUNDS}
    ),
    "chain: top-k 200, in the block top-p, tail free, typical, XTC": SamplingSettings(
        0.8, **FIRST_200, **{name: STEPS[name] for name in SORTED}
    ),
    "chain: top-k 200, in the block all": SamplingSettings(**FIRST_200, **STEPS),
    "chain: top-k 2000, in the block all": SamplingSettings(**{**FIRST_200, "top_k": 2000}, **STEPS),
    "chain: mirostat alone": SamplingSettings(mirostat_tau=5.0),
    "chain: temperature last": SamplingSettings(0.8, min_p=0.02, order=TEMPERATURE_LAST),
    "full chain, top-k 200": SamplingSettings(top_k=200, **STEPS, **LOOKS_BACK),
    "full chain, top-k 200, no sigma": SamplingSettings(top_k=200, **{**STEPS, "top_n_sigma": 0.0}, **LOOKS_BACK),
    "full chain, no top-k": SamplingSettings(**STEPS, **LOOKS_BACK),
    "chain: typical alone (sorts all)": SamplingSettings(typical_p=0.95),
    "chain: tail free alone (sorts all)": SamplingSettings(tfs=0.95),
}


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="those whose name holds this")
    typed = parser.parse_args()
    kernels = Kernels(compiled_library())
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}; us, and per cent of {STEP_SECONDS * 1e3} ms\n")
    print(f"| sampler | {' | '.join(VOCABULARIES)} |\n|---|{'--:|' * len(VOCABULARIES)}")
    for name, settings in SETTINGS.items():
        if typed.only not in name:
            continue
        times = [seconds_of(kernels, vocab, settings) for vocab in VOCABULARIES.values()]
        shown = " | ".join(f"{seconds * 1e6:.1f} ({seconds / STEP_SECONDS:.1%})" for seconds in times)
        print(f"| {name} | {shown} |", flush=True)


def logits_like_a_model(vocab: int) -> torch.Tensor:
    """float32 `[vocab]`: a broad bell, and a few tokens far above it."""
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(vocab, generator=generator) * 2
    logits[torch.randint(vocab, (40,), generator=generator)] += 8
    return logits.cuda()


class Sampler:
    """One sampler over fixed logits."""

    def __init__(self, kernels: Kernels, vocab: int) -> None:
        device = torch.device("cuda")
        self.state, self.chain = SamplerState(device), ChainState(vocab, ROOM, device)
        token = torch.zeros(1, dtype=torch.int64, device=device)
        self.position = torch.full((1,), CONTEXT - 1, dtype=torch.int32, device=device)
        logits, state, chain = logits_like_a_model(vocab), self.state, self.chain
        adjust = kernels.adjust(logits, chain, state, position=self.position)
        four = kernels.sample(
            *(chain.adjusted, state), token=token, position=self.position, context=chain.context, numbers=chain.numbers
        )
        self.jobs: dict[str, list[Job]] = {
            "plain": [kernels.sample(logits, state, token=token, position=self.position)],
            "adjusted": [adjust, four],
            "chain": [adjust, kernels.draw_adjusted(chain, state, token=token, position=self.position)],
        }
        """What a captured step launches behind the head."""

    def begin(self, draws: DeviceDraws) -> None:
        """The next draw is the first."""
        self.state.set(draws.c_draw())
        context = torch.randint(2000, (CONTEXT,), generator=torch.Generator().manual_seed(1)).tolist()
        self.chain.set(draws.c_chain(), context, draws.rules)
        self.position.fill_(CONTEXT - 1)


def seconds_of(kernels: Kernels, vocab: int, settings: SamplingSettings) -> float:
    """Median time of one sampler."""
    draws, sampler = DeviceDraws(settings, seed=1, index=0), Sampler(kernels, vocab)
    jobs = sampler.jobs[draws.kind]
    sampler.begin(draws)
    for job in jobs:  # loads the kernels, which a capture must not do
        job.launch(dependent=False)
    torch.cuda.synchronize()
    sampler.begin(draws)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for job in jobs * COPIES:
            job.launch(dependent=True)
    return event_seconds(graph.replay, repeat=30) / COPIES


if __name__ == "__main__":
    main()
