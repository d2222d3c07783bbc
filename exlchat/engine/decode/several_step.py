"""A pass of a token of each of several sequences with the draws behind it, as CUDA graphs: a `BatchedStep`.

What each row comes to is what a step alone gives, to the last bit. A number of rows is captured for each way of drawing
when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from exlchat.engine.decode.decode_step import NO_MEMORY, captured, launch_all
from exlchat.engine.decode.verify_step import CapturedRows
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.sampling.device import DrawKind
from exlchat.engine.schedule.batch import BatchRow
from exlchat.ext.chain import ChainState
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import SamplerState, TokenRing
from exlchat.llm.info import ModelError


class CapturedSeveral:
    """A `batch.BatchedStep`.

    Args:
        rows: whose passes these are; they share their tensors, so only one of both has work under way.
        kernels: on the model's device.
        room: tokens of the longest sequence.
    """

    def __init__(self, rows: CapturedRows, kernels: Kernels, *, room: int) -> None:
        self._rows = rows
        self._kernels = kernels
        self._room = room
        self._states: list[SamplerState] = []
        self._chains: dict[int, ChainState] = {}
        self._sequences: list[KVSequence] = []
        self._kinds: tuple[DrawKind, ...] = ()
        self._graphs: dict[tuple[DrawKind, ...], torch.cuda.CUDAGraph] = {}
        self._jobs: dict[tuple[DrawKind, ...], list[Launch]] = {}
        """They keep alive what the graphs point to."""

    @torch.inference_mode()
    def begin(self, rows: Sequence[BatchRow]) -> None:
        """See `BatchedStep`."""
        self._kinds = tuple(row.draws.kind for row in rows)
        chain = self._rows.plan
        try:
            self._open_slots()
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
        for slot, row in enumerate(rows):
            self._states[slot].ring.clear()
            self._states[slot].set(row.draws.c_draw())
            if self._kinds[slot] != "plain":
                self._chains[slot].set(row.draws.c_chain(), row.context, row.draws.rules)
        chain.token[: len(rows)].copy_(torch.tensor([row.context[-1] for row in rows]))
        chain.position[: len(rows)].copy_(torch.tensor([len(row.context) - 1 for row in rows]))
        self._sequences = [row.sequence for row in rows]

    @torch.inference_mode()
    def launch(self) -> None:
        """See `BatchedStep`."""
        self._rows.show(self._sequences)
        key = self._kinds
        if key in self._graphs:
            self._graphs[key].replay()
            return
        # CUDA loads kernels when they are first launched, which must not fall into a capture.
        jobs = self._jobs[key] = [*self._rows.plan.jobs(len(key), "own"), *self._draw_jobs()]
        launch_all(jobs, dependent=False)
        work = captured(self._rows.device, lambda: launch_all(jobs, dependent=self._rows.dependent))
        self._graphs[key] = work

    def ring(self, row: int) -> TokenRing:
        """See `BatchedStep`."""
        return self._states[row].ring

    def running(self) -> bool:
        """See `BatchedStep`."""
        return not torch.cuda.current_stream(self._rows.device).query()

    def _open_slots(self) -> None:
        device, vocab = self._rows.device, self._rows.plan.logits.shape[1]
        while len(self._states) < len(self._kinds):
            self._states.append(SamplerState(device))
        for slot, kind in enumerate(self._kinds):
            if kind != "plain" and slot not in self._chains:
                self._chains[slot] = ChainState(vocab, self._room, device)

    def _draw_jobs(self) -> list[Launch]:
        return [job for slot, kind in enumerate(self._kinds) for job in self._draw(slot, kind)]

    def _draw(self, slot: int, kind: DrawKind) -> list[Launch]:
        step, state = self._rows.plan, self._states[slot]
        logits, token, position = step.logits[slot], step.token[slot : slot + 1], step.position[slot : slot + 1]
        if kind == "plain":
            return [self._kernels.sample(logits, state, token=token, position=position)]
        chain = self._chains[slot]
        adjust = self._kernels.adjust(logits, chain, state, position=position)
        if kind == "chain":
            return [adjust, self._kernels.draw_adjusted(chain, state, token=token, position=position)]
        known = {"context": chain.context, "numbers": chain.numbers}
        return [adjust, self._kernels.sample(chain.adjusted, state, token=token, position=position, **known)]
