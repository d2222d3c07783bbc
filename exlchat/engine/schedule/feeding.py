"""Tokens of the running sequence on their way through the decoder into the cache, and who may send them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import free_memory
from exlchat.engine.sampling import NotNumbersError
from exlchat.llm.info import ModelError
from exlchat.llm.request import RequestError

_Given = TypeVar("_Given")
_Computed = TypeVar("_Computed")


@dataclass(slots=True)
class _Runs:
    """The number of the newest request."""

    newest: int = 0


class Feeder:
    """Numbers the requests to one model: what an older one still wants is refused.

    Args:
        transformer, sequence: of one model.
    """

    def __init__(self, transformer: Transformer, sequence: KVSequence) -> None:
        self.transformer = transformer
        self.sequence = sequence
        self._runs = _Runs()

    def beside(self, sequence: KVSequence) -> Feeder:
        """Of another sequence of the same model, for the same requests."""
        other = Feeder(self.transformer, sequence)
        other._runs = self._runs
        return other

    def next_run(self) -> int:
        """The number of a new request."""
        self._runs.newest += 1
        return self._runs.newest

    def is_newest(self, run: int) -> bool:
        """Whether no other request has begun since."""
        return run == self._runs.newest

    def check(self, run: int) -> None:
        """Raises `RequestError` where a newer request has begun."""
        if not self.is_newest(run):
            raise RequestError("this answer was ended by a newer request to the same engine")

    def last_logits(self, ids: list[int], run: int) -> Tensor:
        """Adds tokens to the cache, which has room or gets it; float32 logits `[vocab]` behind the last."""
        return self.feed(ids, run, lambda new, start: self.transformer.forward(new, self.sequence, start=start))[-1]

    def row_logits(self, ids: list[int], run: int) -> Tensor:
        """The same for all of them: float32 `[tokens, vocab]`."""
        return self.feed(
            ids, run, lambda new, start: self.transformer.forward(new, self.sequence, start=start, last_only=False)
        )

    def again(self, ids: list[int]) -> None:
        """Adds tokens that were there before, whatever request is the newest."""
        self.last_logits(ids, self._runs.newest)

    def feed(self, ids: list[int], run: int, compute: Callable[[Tensor, int], _Computed]) -> _Computed:
        """What `compute` makes of new tokens, which stores them; takes ids on the device and the first one's place.

        Raises:
            RequestError: a newer request has begun.
            ModelError: memory ran out.
        """
        self.check(run)
        self.sequence.reserve(len(self.sequence) + len(ids))
        inputs = torch.tensor(ids, device=self.transformer.device)
        try:
            computed = compute(inputs, len(self.sequence))
        except torch.OutOfMemoryError as error:
            free = free_memory(self.transformer.device) / 2**30
            raise ModelError(
                f"no memory to compute {len(ids):,} tokens at once ({free:.2f} GiB are free beside weights and cache); "
                "load with a smaller --context or --kv-cache q4"
            ) from error
        self.sequence.extend(ids)
        return computed

    def explained(self, compute: Callable[[_Given], _Computed], given: _Given) -> _Computed:
        """What comes of it; logits that are no numbers are told in one line."""
        try:
            return compute(given)
        except NotNumbersError as error:
            raise ModelError(f"{error}; the weights are damaged or overflow in {self.transformer.dtype}") from error
