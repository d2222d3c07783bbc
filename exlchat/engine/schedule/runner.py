"""What computes tokens of a model: its transformer, its captured prompts and steps, or a pass of several rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from exlchat.engine.cards.split import current
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import free_memory
from exlchat.llm.info import ModelError
from exlchat.llm.limits import MOST_ANSWERS

if TYPE_CHECKING:
    from exlchat.engine.decode.graphs import DecodeGraphs

_Computed = TypeVar("_Computed")


class Runner:
    """Of one model.

    Args:
        graphs: compute short prompts and passes of several tokens, draw on the device and run ahead; without them the
            transformer computes and each token is drawn by the host.
    """

    def __init__(self, transformer: Transformer, graphs: DecodeGraphs | None = None) -> None:
        self.transformer = transformer
        self.step = graphs

    @property
    def most_rows(self) -> int:
        """Answers that are made together."""
        return MOST_ANSWERS if self.step is None else self.step.wide.most

    def checked(self, value: _Computed) -> _Computed:
        """What the host has read of the device. Raises what a failed card does."""
        self.transformer.check()
        return value

    def last_logits(self, sequence: KVSequence, ids: list[int]) -> Tensor:
        """Adds tokens to a sequence, which has room or gets it; float32 logits `[vocab]` behind the last.

        Raises:
            PoolFullError: there is no room.
            ModelError: memory ran out.
        """
        computes = self.transformer if self.step is None else self.step.prompts
        return self.feed(sequence, ids, lambda new, start: computes.forward(new, sequence, start=start))[-1]

    def next_logits(self, sequence: KVSequence, token: int) -> Tensor:
        """The same of one token, by the step where there is one; valid until the next."""
        if self.step is None:
            return self.last_logits(sequence, [token])
        logits = self.step.forward(sequence, token, len(sequence))
        sequence.extend([token])
        return logits

    def row_logits(self, sequence: KVSequence, ids: list[int]) -> Tensor:
        """Adds tokens; float32 `[tokens, vocab]` behind each."""
        if self.step is None:
            return self.feed(
                sequence, ids, lambda new, start: self.transformer.forward(new, sequence, start=start, last_only=False)
            )
        logits = self.step.verify(sequence, ids, len(sequence))
        sequence.extend(ids)
        return logits

    def best_of_rows(self, sequence: KVSequence, ids: list[int]) -> list[int]:
        """Adds tokens; the best one behind each, by a pass of rows."""
        assert self.step is not None
        best = self.step.greedy(sequence, ids, len(sequence))
        sequence.extend(ids)
        return best

    def cut(self, sequence: KVSequence, length: int) -> None:
        """So many tokens stay. What a layer with a window has lost of what the next one sees is computed again."""
        ids = sequence.ids[:length] if sequence.cache.has_windows else []
        there = sequence.cut(length)
        if there < length:
            self.last_logits(sequence, ids[there:])

    def feed(self, sequence: KVSequence, ids: list[int], compute: Callable[[Tensor, int], _Computed]) -> _Computed:
        """What `compute` makes of new tokens, which stores them; takes ids on the device and the first one's place.

        Raises: as `last_logits`.
        """
        sequence.reserve(len(sequence) + len(ids))
        device = self.transformer.device
        # From other memory a copy waits for all that is under way.
        inputs = torch.tensor(ids, pin_memory=device.type == "cuda").to(device, non_blocking=True)
        try:
            # Which card is the current one is a matter of the thread, and each answer may have one of its own.
            with current(device):
                computed = compute(inputs, len(sequence))
        except torch.OutOfMemoryError as error:
            free = min(map(free_memory, self.transformer.split.devices)) / 2**30
            raise ModelError(
                f"no memory to compute {len(ids):,} tokens at once ({free:.2f} GiB are free beside weights and cache); "
                "load with a smaller --context or --kv-cache q4"
            ) from error
        sequence.extend(ids)
        return computed
