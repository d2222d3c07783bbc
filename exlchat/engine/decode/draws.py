"""Draws behind the rows of a decode step: what each answer asks for, and the operations that draw so on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import Launch
from exlchat.engine.sampling.device import DeviceDraws, DrawKind
from exlchat.ext.chain import ChainState
from exlchat.ext.ops import Kernels
from exlchat.ext.sampling import SamplerState


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One sequence of a pass that draws.

    Args:
        sequence: of the model.
        context: prompt and answer so far; all but its last token are in the sequence.
        draws: of the next token of the answer, and of those behind it.
    """

    sequence: KVSequence
    context: Sequence[int]
    draws: DeviceDraws


class RowDraws:
    """Where tokens are drawn one after the other: logits, what is fed, the sampler's state.

    Args:
        logits: float32 `[vocab]`.
        token, position: `[1]`, of the next step.
        room: tokens of the longest sequence.
    """

    def __init__(self, logits: Tensor, token: Tensor, position: Tensor, room: int) -> None:
        self.logits, self.token, self.position = logits, token, position
        self.sampler = SamplerState(logits.device)
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

    def jobs(self, kernels: Kernels, kind: DrawKind) -> list[Launch]:
        fed = {"token": self.token, "position": self.position}
        if kind == "plain":
            return [kernels.sample(self.logits, self.sampler, **fed)]
        chain = self.chain
        adjust = kernels.adjust(self.logits, chain, self.sampler, position=self.position)
        if kind == "chain":
            return [adjust, kernels.draw_adjusted(chain, self.sampler, **fed)]
        known = {"context": chain.context, "numbers": chain.numbers}
        return [adjust, kernels.sample(chain.adjusted, self.sampler, **fed, **known)]
