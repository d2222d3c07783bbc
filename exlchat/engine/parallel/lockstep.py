"""One decoder computed by several cards half a layer at a time, one card after the other: the reference.

What attention and MLP add is a sum over the cards. Each gets the same one, added up in their order in float32, so that
their residual streams stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Stream, Transformer


class Lockstep:
    """Forward passes of what `cut_transformer` made.

    Args:
        ranks: one for each card.
    """

    def __init__(self, ranks: Sequence[Transformer]) -> None:
        self.ranks = ranks

    @torch.inference_mode()
    def forward(
        self, ids: Tensor, caches: Sequence[KVSequence] | None = None, *, start: int = 0, last_only: bool = True
    ) -> Tensor:
        """As `Transformer.forward`, with a sequence for each card, whose cache has that card's heads."""
        streams = [Stream(rank.embed(ids, start)) for rank in self.ranks]
        for _ in self.exchanges(streams, caches, start):
            pass
        if last_only:
            for stream in streams:
                stream.keep_last()
        parts = [rank.logits(rank.finish(stream)) for rank, stream in zip(self.ranks, streams, strict=True)]
        return torch.cat(parts, dim=-1)

    def exchanges(
        self, streams: Sequence[Stream], caches: Sequence[KVSequence] | None = None, start: int = 0
    ) -> Iterator[None]:
        """All layers, stopping behind each exchange."""
        tokens = len(streams[0].hidden)
        places = [rank.places(start, start + tokens) for rank in self.ranks]
        for index in range(len(self.ranks[0].layers)):
            for card, (rank, stream) in enumerate(zip(self.ranks, streams, strict=True)):
                rows = rank.heads(index, stream, places[card])
                mixed = rank.attend(index, rows, caches[card] if caches else None, start)
                rank.mix(index, stream, mixed.flatten(1))
            if not self.ranks[0].spec.parallel:
                _exchange(streams)
                yield
            for rank, stream in zip(self.ranks, streams, strict=True):
                rank.feed(index, stream)
            _exchange(streams)
            yield


def _exchange(streams: Sequence[Stream]) -> None:
    parts = [stream.added.float() for stream in streams if stream.added is not None]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    for stream in streams:
        stream.added = total
