"""Draws behind the rows of a decode step: what each answer asks for, and the operations that draw so on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.sampling.device import DeviceDraws, DrawKind
from exlchat.ext.chain import ChainState
from exlchat.ext.many_draws import DrawnRow, DrawTable, RowKind, sent
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import SamplerMemory, SamplerState, TokenRing


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One sequence of a pass that draws.

    Args:
        sequence: of the model.
        context: prompt and answer so far; all but its last token are in the sequence.
        draws: of the next token of the answer, and of those behind it.
        masked: whether each pass is told what may be drawn.
    """

    sequence: KVSequence
    context: Sequence[int]
    draws: DeviceDraws
    masked: bool = False

    @property
    def kind(self) -> DrawKind:
        return "adjusted" if self.masked and self.draws.kind == "plain" else self.draws.kind


class RowDraws:
    """Where tokens are drawn one after the other: logits, what is fed, the sampler's state.

    Args:
        logits: float32 `[vocab]`.
        token, position: `[1]`, of the next step.
        room: tokens of the longest sequence.
        among: of many, the number of this one and the memory of their samplers.
    """

    def __init__(
        self,
        logits: Tensor,
        token: Tensor,
        position: Tensor,
        room: int,
        among: tuple[int, SamplerMemory] | None = None,
    ) -> None:
        self.logits, self.token, self.position = logits, token, position
        self.sampler = SamplerState(logits.device, among)
        self._room = room
        self._chain: ChainState | None = None

    @property
    def chain(self) -> ChainState:
        if self._chain is None:
            self._chain = ChainState(len(self.logits), self._room, self.logits.device)
        return self._chain

    def begin(self, kind: DrawKind, context: Sequence[int], draws: DeviceDraws) -> None:
        """The next draws are these. All before have reported; the next reports as number 1."""
        self.sampler.ring.clear()
        self.sampler.set(draws.c_draw())
        if kind != "plain":
            self.chain.set(draws.c_chain(), context, draws.rules)

    @property
    def drawn(self) -> DrawnRow:
        """As `ManyDrawKernels` takes it; with a chain once one was asked for."""
        return DrawnRow(self.logits, self.sampler, self.token, self.position, self._chain)

    def jobs(self, kernels: Kernels, kind: DrawKind) -> list[Launch]:
        if kind == "plain":
            return [kernels.sample(self.logits, self.sampler, **self._fed)]
        chain = self.chain
        adjust = kernels.adjust(self.logits, chain, self.sampler, position=self.position)
        if kind == "chain":
            return [adjust, self.chain_job(kernels)]
        known = {"context": chain.context, "numbers": chain.numbers}
        return [adjust, kernels.sample(chain.adjusted, self.sampler, **self._fed, **known)]

    def chain_job(self, kernels: Kernels) -> Launch:
        """From logits that have been adjusted."""
        return kernels.draw_adjusted(self.chain, self.sampler, **self._fed)

    @property
    def _fed(self) -> dict[str, Tensor]:
        return {"token": self.token, "position": self.position}


def jobs_of_rows(
    kernels: Kernels, table: DrawTable, rows: Sequence[RowDraws], kinds: Sequence[DrawKind]
) -> list[Launch]:
    """Each row comes to what `RowDraws.jobs` gives: what rows have in common is launched once for all of them, and not
    chains, whose blocks add up doubles. The table has to show these rows and kinds whenever they run.
    """
    if len(rows) == 1:
        return rows[0].jobs(kernels, kinds[0])
    jobs = kernels.draw_rows(table, [row.drawn for row in rows], kinds, chains=False)
    return [*jobs, *(row.chain_job(kernels) for row, kind in zip(rows, kinds, strict=True) if kind == "chain")]


class ManyDraws:
    """Where the tokens of many rows are drawn by a launch for all of them. A row stays in its place while others go.

    All report the number of the pass, counted over all passes, so that nothing which an earlier row has left in a ring
    is taken for a report of the next one there.

    Args:
        logits: float32 `[rows, vocab]`.
        token, position: `[rows]`, of the next pass.
        room: tokens of the longest sequence.
    """

    def __init__(self, logits: Tensor, token: Tensor, position: Tensor, room: int, kernels: Kernels) -> None:
        self._logits, self._token, self._position, self._room = logits, token, position, room
        self._kernels = kernels
        self._memory = SamplerMemory(len(logits), logits.device)
        self._table = DrawTable(len(logits), logits.device)
        self._rows: list[RowDraws] = []
        self._kinds: list[RowKind] = []
        self._jobs: Sequence[Launch] = ()
        self.passes = 0
        """Launched; the next one reports one more."""

    def put(self, rows: int, begun: Mapping[int, DecodeRow], empty: Sequence[int]) -> None:
        """From the next pass on there are so many; all work is enqueued behind what is under way.

        Args:
            begun: by place; all others go on from what they have drawn.
            empty: places where nothing is drawn.

        Raises:
            ValueError: a rule for an id that is not in the vocabulary.
        """
        while len(self._rows) < rows:
            self._rows.append(self._row(len(self._rows)))
        none: list[RowKind] = ["none"] * rows
        kinds = [*self._kinds, *none][:rows]
        for place in empty:
            kinds[place] = "none"
        for place, row in begun.items():
            kinds[place] = kind = row.kind
            if kind != "plain":
                self._rows[place].chain.set(row.draws.c_chain(), row.context, row.draws.rules)
        self._set(self._token, [*begun, *empty], [*(row.context[-1] for row in begun.values()), *[0] * len(empty)])
        behind = [*(len(row.context) - 1 for row in begun.values()), *[0] * len(empty)]
        self._set(self._position, [*begun, *empty], behind)
        if begun:
            draws = b"".join(bytes(row.draws.c_draw(self.passes)) for row in begun.values())
            self._set(self._memory.draws, list(begun), list(draws))
        self._kinds = kinds
        self._jobs = self._kernels.draw_rows(self._table, [row.drawn for row in self._rows[:rows]], kinds)

    @property
    def chains(self) -> int:
        """Rows that have memory for draws from adjusted logits."""
        return sum(row.drawn.chain is not None for row in self._rows)

    def launch(self) -> None:
        for job in self._jobs:
            job.launch(dependent=False)
        self.passes += 1

    def ring(self, row: int) -> TokenRing:
        return self._rows[row].sampler.ring

    def mu(self, row: int) -> float:
        """See `SamplerState.mu`."""
        return self._rows[row].sampler.mu()

    def set_mask(self, row: int, words: Tensor) -> None:
        """What the next pass may draw there; its last one has reported. See `ChainState.set_mask`."""
        self._rows[row].chain.set_mask(words)

    def _row(self, number: int) -> RowDraws:
        ends = self._token[number : number + 1], self._position[number : number + 1]
        return RowDraws(self._logits[number], *ends, self._room, (number, self._memory))

    def _set(self, target: Tensor, places: Sequence[int], values: Sequence[int]) -> None:
        if places:
            index = sent(places, torch.empty(0, dtype=torch.int64, device=target.device))
            new = sent(values, target).view(len(places), *target.shape[1:])
            at = index.to(target.device, non_blocking=True)
            target.index_copy_(0, at, new.to(target.device, non_blocking=True))
