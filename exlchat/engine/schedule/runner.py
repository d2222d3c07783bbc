"""What computes tokens of a model: through its transformer, its captured step, or a pass of several rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import free_memory
from exlchat.engine.schedule.token_sources import DecodeStep
from exlchat.llm.info import ModelError

_Computed = TypeVar("_Computed")


class RowPasses(Protocol):
    """Passes of up to eight tokens, each to the last bit as alone: see `decode.graphs.DecodeGraphs`."""

    def verify(self, sequence: KVSequence, ids: Sequence[int], position: int) -> Tensor:
        """Logits `[len(ids), vocab]` of tokens that stand from `position` on."""

    def greedy(self, sequence: KVSequence, ids: Sequence[int], position: int) -> list[int]:
        """The best token behind each."""

    def feed_each(self, ids: Sequence[int], sequences: Sequence[KVSequence]) -> Tensor:
        """Logits `[len(ids), vocab]` behind one more token of each sequence."""


class Runner:
    """Of one model.

    Args:
        step: draws on the device and runs ahead; without one the transformer computes and each token is drawn by the
            host.
        rows: several tokens in one pass; without it they go through the transformer.
    """

    def __init__(self, transformer: Transformer, step: DecodeStep | None = None, rows: RowPasses | None = None) -> None:
        self.transformer = transformer
        self.step = step
        self.rows = rows

    def last_logits(self, sequence: KVSequence, ids: list[int]) -> Tensor:
        """Adds tokens to a sequence, which has room or gets it; float32 logits `[vocab]` behind the last.

        Raises:
            PoolFullError: there is no room.
            ModelError: memory ran out.
        """
        return self.feed(sequence, ids, lambda new, start: self.transformer.forward(new, sequence, start=start))[-1]

    def next_logits(self, sequence: KVSequence, token: int) -> Tensor:
        """The same of one token, by the step where there is one; valid until the next."""
        if self.step is None:
            return self.last_logits(sequence, [token])
        logits = self.step.forward(sequence, token, len(sequence))
        sequence.extend([token])
        return logits

    def row_logits(self, sequence: KVSequence, ids: list[int]) -> Tensor:
        """Adds tokens; float32 `[tokens, vocab]` behind each."""
        if self.rows is None:
            return self.feed(
                sequence, ids, lambda new, start: self.transformer.forward(new, sequence, start=start, last_only=False)
            )
        logits = self.rows.verify(sequence, ids, len(sequence))
        sequence.extend(ids)
        return logits

    def best_of_rows(self, sequence: KVSequence, ids: list[int]) -> list[int]:
        """Adds tokens; the best one behind each, by a pass of rows."""
        assert self.rows is not None
        best = self.rows.greedy(sequence, ids, len(sequence))
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
        inputs = torch.tensor(ids, device=self.transformer.device)
        try:
            computed = compute(inputs, len(sequence))
        except torch.OutOfMemoryError as error:
            free = free_memory(self.transformer.device) / 2**30
            raise ModelError(
                f"no memory to compute {len(ids):,} tokens at once ({free:.2f} GiB are free beside weights and cache); "
                "load with a smaller --context or --kv-cache q4"
            ) from error
        sequence.extend(ids)
        return computed
