"""Rows that are drawn by one launch for all of them, beside each of them drawn alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from exlchat.engine import GREEDY, SamplingSettings
from exlchat.engine.sampling.device import DeviceDraws
from exlchat.ext.chain import ChainKernels, ChainRules, ChainState, token_words
from exlchat.ext.job import Job
from exlchat.ext.library import Library
from exlchat.ext.many_draws import DrawnRow, DrawTable, ManyDrawKernels, RowKind
from exlchat.ext.sampling import SamplerKernels, SamplerMemory, SamplerState

ASKED = [
    GREEDY,
    SamplingSettings(0.8, top_k=40, top_p=0.95, min_p=0.05),
    SamplingSettings(1.2, repetition_penalty=1.3, frequency_penalty=0.4, dry_multiplier=0.8, dry_allowed_length=2),
    SamplingSettings(0.9, typical_p=0.9, xtc_probability=0.5, xtc_threshold=0.05),
    SamplingSettings(1.1, top_p=0.9),
    SamplingSettings(1.0, mirostat_tau=4.0),
    SamplingSettings(0.7, tfs=0.95, no_repeat_ngram=3),
]
"""Of rows one behind the other: nothing, plain, adjusted and chains."""
MASKED = 4
"""Every so many rows draw under a mask."""


class Rows:
    """So many rows of random logits, each with its own settings, seed, context and mask.

    Args:
        alone: has each drawn by launches of its own, as a single answer is.
        chains: that all draw at once, too; or each by a launch of its own.
    """

    def __init__(
        self,
        library: Library,
        count: int,
        vocab: int,
        launch: Callable[[Job], None],
        device: torch.device,
        *,
        alone: bool,
        chains: bool = True,
    ) -> None:
        draw = torch.Generator().manual_seed(count)
        memory = SamplerMemory(count, device)
        self._launch, self._alone, self._chains_at_once = launch, alone, chains
        self._logits = (torch.randn(count, vocab, generator=draw) * 3).to(device)
        self._tokens = torch.zeros(count, dtype=torch.int64, device=device)
        self._positions = torch.zeros(count, dtype=torch.int32, device=device)
        self._samplers = [SamplerState(device, (row, memory)) for row in range(count)]
        self._chains = [ChainState(vocab, 600, device) for _ in range(count)]
        self._many, self._table = ManyDrawKernels(library), DrawTable(count, device)
        self._one, self._chain = SamplerKernels(library), ChainKernels(library)
        self.kinds: list[RowKind] = []
        for row in range(count):
            context = torch.randint(vocab, (3 + 37 * row % 250,), generator=draw).tolist() * 2
            allowed = [token for token in range(vocab) if token % 3] if row % MASKED == 0 else None
            barred = {row % vocab: 2} if row % 5 == 0 and vocab > 8 else {}
            asked = DeviceDraws(ASKED[row % len(ASKED)], row, index=row % 3, rules=ChainRules(barred=barred))
            masked = allowed is not None and vocab > 8
            kind = "adjusted" if masked and asked.kind == "plain" else asked.kind
            self._samplers[row].set(asked.c_draw(100 + row))
            self._chains[row].set(asked.c_chain(), context, asked.rules)
            self._chains[row].set_mask(token_words(allowed, vocab) if masked and allowed else None)
            self._tokens[row], self._positions[row] = context[-1], len(context) - 1
            self.kinds.append(kind)

    @property
    def state(self) -> list[Tensor]:
        """What the next draw starts from."""
        draws = torch.stack([sampler.draw for sampler in self._samplers])
        return [self._tokens, self._positions, draws, torch.stack([chain.context for chain in self._chains])]

    def step(self, empty: Sequence[int] = ()) -> None:
        for job in self._jobs([kind if row not in empty else "none" for row, kind in enumerate(self.kinds)]):
            self._launch(job)

    def reports(self, number: int) -> list[tuple[int, int] | None]:
        return [sampler.ring.read(100 + row + number) for row, sampler in enumerate(self._samplers)]

    def _jobs(self, kinds: list[RowKind]) -> list[Job]:
        rows = [
            DrawnRow(
                self._logits[row],
                self._samplers[row],
                self._tokens[row : row + 1],
                self._positions[row : row + 1],
                chain,
            )
            for row, chain in enumerate(self._chains)
        ]
        if not self._alone:
            jobs = self._many.draw_rows(self._table, rows, kinds, chains=self._chains_at_once)
            apart = (
                [] if self._chains_at_once else [row for row, kind in zip(rows, kinds, strict=True) if kind == "chain"]
            )
            return [*jobs, *(self._of_one(row, "chain")[-1] for row in apart)]
        return [job for row, kind in zip(rows, kinds, strict=True) for job in self._of_one(row, kind)]

    def _of_one(self, row: DrawnRow, kind: RowKind) -> list[Job]:
        ends = {"token": row.token, "position": row.position}
        assert row.chain is not None
        if kind == "none":
            return []
        if kind == "plain":
            return [self._one.sample(row.logits, row.sampler, **ends)]
        adjust = self._chain.adjust(row.logits, row.chain, row.sampler, position=row.position)
        if kind == "chain":
            return [adjust, self._chain.draw_adjusted(row.chain, row.sampler, **ends)]
        known = {"context": row.chain.context, "numbers": row.chain.numbers}
        return [adjust, self._one.sample(row.chain.adjusted, row.sampler, **ends, **known)]


def check_alike(
    make: Callable[[bool], Rows], empty: Sequence[int], *, ended: Callable[[], None] = lambda: None
) -> None:
    """Three draws of all together, and of each alone; the second one leaves some out."""
    together, alone = make(False), make(True)
    for left_out in ((), empty, ()):
        together.step(left_out)
        alone.step(left_out)
    ended()
    assert [together.reports(number) for number in (1, 2, 3)] == [alone.reports(number) for number in (1, 2, 3)]
    assert all(report is not None for report in together.reports(2))
    for found, wanted in zip(together.state, alone.state, strict=True):
        assert torch.equal(found, wanted)
