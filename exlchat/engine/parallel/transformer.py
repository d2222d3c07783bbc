"""One decoder computed by several cards, each of which has a part of every layer.

What attention and MLP add is a sum over the cards. Each gets the same one, added up in their order in float32, so that
their residual streams stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from exlchat.engine.cards.split import LayerSplit, current
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Stream, Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.engine.parallel.sums import SumsOverCards, add_up
from exlchat.ext.exchange import PATIENCE, silent_card


class ParallelTransformer(Transformer):
    """Its cards' parts, one after the other half a layer at a time.

    Args:
        spec: of the whole.
        ranks: the part of each card: all with the whole embedding, each with some columns of the head, in order.
        split: whose devices those are.
        sums: of each card, by kernels; by copies from card to card unless given.
    """

    def __init__(
        self,
        spec: ModelSpec,
        ranks: Sequence[Transformer],
        split: LayerSplit,
        sums: Sequence[SumsOverCards] = (),
    ) -> None:
        super().__init__(spec, ranks[0].ends, ranks[0].layers, split=split)
        self.ranks, self.sums = ranks, sums

    @property
    def bytes(self) -> int:
        return sum(rank.bytes for rank in self.ranks)

    @property
    def bytes_per_token(self) -> int:
        return sum(rank.bytes_per_token for rank in self.ranks)

    def check(self) -> None:
        silent = silent_card([sums.peers for sums in self.sums])
        if silent is not None:
            raise torch.AcceleratorError(f"{self.split.devices[silent]} did not answer for {PATIENCE:.0f} s")

    @torch.inference_mode()
    def features(
        self, ids: Tensor, cache: KVSequence | None = None, *, start: int = 0, last_only: bool = False
    ) -> Tensor:
        self.check()
        streams = []
        for rank, device in zip(self.ranks, self.split.devices, strict=True):
            with current(device):
                streams.append(Stream(rank.embed(self.split.moved(ids, device), start)))
        for _ in self.exchanges(streams, cache, start):
            pass
        with current(self.split.last):
            if last_only:
                streams[-1].keep_last()
            return self.ranks[-1].finish(streams[-1])

    def scores(self, x: Tensor) -> Tensor:
        parts = []
        for rank, device in zip(self.ranks, self.split.devices, strict=True):
            with current(device):
                parts.append(rank.scores(self.split.moved(x, device)))
        return torch.cat([self.split.moved(part, self.split.last) for part in parts], dim=-1)

    def exchanges(self, streams: Sequence[Stream], cache: KVSequence | None = None, start: int = 0) -> Iterator[None]:
        """All layers, stopping behind each exchange."""
        end, devices, parallel = start + len(streams[0].hidden), self.split.devices, self.spec.parallel
        places = [rank.places(start, end) for rank in self.ranks]
        for index in range(self.spec.num_layers):
            for number, (rank, stream, device) in enumerate(zip(self.ranks, streams, devices, strict=True)):
                with current(device):
                    rows = rank.heads(index, stream, places[number])
                    rank.mix(index, stream, rank.attend(index, rows, cache, start).flatten(1))
            if not parallel:
                self._exchange(streams)
                yield
            for rank, stream, device in zip(self.ranks, streams, devices, strict=True):
                with current(device):
                    rank.feed(index, stream)
            self._exchange(streams)
            yield

    def _exchange(self, streams: Sequence[Stream]) -> None:
        parts = [stream.added.contiguous() for stream in streams if stream.added is not None]
        if self.sums and parts[0].dtype == torch.float16 and not self.split.staged:
            add_up(self.sums, parts)
            for stream, part in zip(streams, parts, strict=True):
                stream.added = part
            return
        for stream, device in zip(streams, self.split.devices, strict=True):
            with current(device):
                first, *others = (self.split.moved(part, device) for part in parts)
                total = first.float()
                for other in others:
                    total = total + other.float()
                stream.added = total.to(first.dtype)
