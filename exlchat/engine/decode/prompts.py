"""Short prompts on a card, captured as graphs: a whole pass, or what a layer computes between two attentions.

The host launches some 15 operations a layer, which takes it longer than the card needs for up to 256 tokens. Captured,
they are one launch: with the attention a whole pass is (`chunk_attention.py`), which reads on the card how much there
is. Elsewhere it stays outside, between two graphs: torch's kernels take that from the host. Passes are filled up to one
of a few sizes, so that few graphs are needed; what the rows behind the last token come to is never looked at, and no
row's product depends on another's.

A size is captured when it is asked for a second time: the first time its kernels may have to be loaded, which must not
fall into a capture. The graphs of all sizes share one pool of memory, as no two of them run together.

Where layers lie on several cards, each has buffers, graphs and a pool of its own, and the residual stream is carried
from one to the next. Where each has a part of every layer, sums over them are in the graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from exlchat.engine.cards.split import current
from exlchat.engine.decode.captured import captured, refusals_named
from exlchat.engine.decode.chunk_attention import ChunkAttention
from exlchat.engine.decode.fit import why_no_prompts
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.kv.sizes import MOST_AT_ONCE
from exlchat.engine.layers.quantized_linear import MAX_ROWS, Launch
from exlchat.engine.layers.transformer import Places, Stream, Transformer
from exlchat.engine.parallel.sums import SumsOverCards, add_up
from exlchat.engine.parallel.transformer import ParallelTransformer

# None above `quantized_linear.MEDIUM_ROWS`, where the card is busy for longer than the host. Up to `MAX_ROWS` tokens go
# through the transformer, whose layers then take the kernels of the decode step.
SIZES = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)
# Several cards wait for the host that launches for all of them: of two H200 that compute an 8B together each worked
# 28 ms on 2,048 tokens, and the host took 65 ms. Where layers lie on one card each, only a whole chunk is taken: so
# the bits stay those of one card, whose products depend on how many rows there are.
_LARGE = (384, 512, 768, 1024, 1536, MOST_AT_ONCE)


_Step: TypeAlias = "tuple[int | None, int | None]"
"""From the attention of one layer to that of the next: `None` before the first, and behind the last."""


class PromptGraphs:
    """Prompts of a model through its graphs where they suit it, else through its transformer.

    What a pass gives depends on nothing that an earlier one computed but the cache.

    Args:
        attention: what graphs hold; without it, it stays between them.
    """

    def __init__(self, transformer: Transformer, attention: ChunkAttention | None = None) -> None:
        self._transformer, self._attention = transformer, attention
        self._suited = why_no_prompts(transformer) is None
        self._sums = transformer.sums if isinstance(transformer, ParallelTransformer) else ()
        self._large: tuple[int, ...] = _LARGE if len(transformer.split.devices) > 1 else ()
        self._cards: dict[int, list[_Card]] = {}
        """By the most tokens that their buffers hold."""
        self._seen: set[int] = set()

    @property
    def captured(self) -> tuple[int, ...]:
        """The sizes whose graphs there are."""
        return tuple(size for cards in self._cards.values() for size in cards[-1].graphs)

    @torch.inference_mode()
    def features(self, ids: Tensor, cache: KVSequence, *, start: int, last_only: bool = False) -> Tensor:
        """As `Transformer.features`; valid until the next call.

        Raises:
            ModelError: the GPU refuses to capture.
            torch.OutOfMemoryError: no memory for it.
        """
        self._transformer.check()
        tokens = len(ids)
        size = self._size(tokens)
        cards = None if size is None else self._ready(size)
        if size is None or cards is None:
            return self._through_transformer(ids, cache, start, last_only=last_only)
        self._fill(cards, ids, start, size)
        if self._attention is not None:
            self._attention.show(cache, start, tokens)
        if self._sums:
            self._run_together(cards, size, cache, start, tokens)
        else:
            self._run(cards, size, cache, start, tokens)
        return cards[-1].out[tokens - 1 if last_only else 0 : tokens]

    def _through_transformer(self, ids: Tensor, cache: KVSequence, start: int, *, last_only: bool) -> Tensor:
        try:
            return self._transformer.features(ids, cache, start=start, last_only=last_only)
        except torch.OutOfMemoryError:
            if not self._drop_large():
                raise
        return self._transformer.features(ids, cache, start=start, last_only=last_only)

    def forward(self, ids: Tensor, cache: KVSequence, *, start: int) -> Tensor:
        """As `Transformer.forward`: float32 `[1, vocab]` behind the last token."""
        return self._transformer.logits(self.features(ids, cache, start=start, last_only=True))

    def _size(self, tokens: int) -> int | None:
        if not self._suited or tokens <= MAX_ROWS:
            return None
        large = self._large if self._sums else tuple(size for size in self._large[-1:] if size == tokens)
        return next((size for size in (*SIZES, *large) if size >= tokens), None)

    def _ready(self, size: int) -> list[_Card] | None:
        """The cards, with graphs of a size that was asked for before; `None` where memory is short for a large one."""
        first, large = size not in self._seen, size > SIZES[-1]
        self._seen.add(size)
        try:
            cards = self._opened(self._large[-1] if large else SIZES[-1])
            if not first and size not in cards[-1].graphs:
                if large:
                    # What the same has taken without graphs, which cannot be given back while they are captured.
                    torch.cuda.empty_cache()
                self._capture(cards, size)
        except torch.OutOfMemoryError:
            if not large:
                raise
            self._drop_large()
            return None
        return cards

    def _drop_large(self) -> bool:
        """Such prompts go through the transformer from now on, as on one card; whether there were any."""
        had, self._large = bool(self._large), ()
        return self._cards.pop(MOST_AT_ONCE, None) is not None and had

    def _opened(self, most: int) -> list[_Card]:
        transformer = self._transformer
        if most not in self._cards and isinstance(transformer, ParallelTransformer):
            ranks = zip(transformer.ranks, self._sums, strict=True)
            self._cards[most] = [_Card(rank, 0, most, sums) for rank, sums in ranks]
        elif most not in self._cards:
            numbers = range(len(transformer.split.devices))
            self._cards[most] = [_Card(transformer, card, most, attention=self._attention) for card in numbers]
        return self._cards[most]

    def _fill(self, cards: Sequence[_Card], ids: Tensor, start: int, size: int) -> None:
        tokens = len(ids)
        for card in cards if self._sums else cards[:1]:
            with current(card.device):
                there = self._transformer.split.moved(ids, card.device)
                card.hidden[:tokens].copy_(card.transformer.embed(there, start))
                # A pass adds to what stands here: left alone, the rows behind the last token would grow without bound.
                card.hidden[tokens:size].zero_()
        for card in cards:
            with current(card.device):
                card.place(start, tokens)

    def _run_together(self, cards: Sequence[_Card], size: int, cache: KVSequence, start: int, tokens: int) -> None:
        """Part after part on all cards, by their graphs or the same one by one, and the attentions between them."""
        streams, captured = [card.of(size) for card in cards], size in cards[-1].graphs
        for part, ((before, behind),) in enumerate(cards[0].parts):
            if captured:
                for card in cards:
                    with current(card.device):
                        card.graphs[size][part].replay()
            else:
                self._compute_together(cards, before, behind, size, streams)
            if behind is None:
                break
            for card in cards:
                with current(card.device):
                    card.attend(behind, cache, start, tokens)

    def _compute_together(
        self,
        cards: Sequence[_Card],
        before: int | None,
        behind: int | None,
        size: int,
        streams: Sequence[tuple[Stream, Places]],
    ) -> None:
        """What a graph of each card does, up to a sum on all of them, and then on: see `add_up`."""
        own = list(zip(cards, streams, strict=True))
        halves = [] if before is None else [_Card.mix, _Card.feed]
        for half in halves:
            for card, (stream, _) in own:
                with current(card.device):
                    half(card, before or 0, size, stream)
            if half is _Card.feed or not self._transformer.spec.parallel:
                added = [stream.added.contiguous() for _, (stream, _) in own if stream.added is not None]
                add_up(self._sums, added)
                for (_, (stream, _)), total in zip(own, added, strict=True):
                    stream.added = total
        for card, (stream, places) in own:
            with current(card.device):
                card.lead(behind, size, stream, places)

    def _run(self, cards: Sequence[_Card], size: int, cache: KVSequence, start: int, tokens: int) -> None:
        """Part after part, each by its graph or the same one by one, and the attentions between them."""
        for number, card in enumerate(cards):
            with current(card.device):
                if number:
                    self._transformer.split.carry(cards[number - 1].hidden[:size], card.hidden[:size])
                graphs = card.graphs.get(size)
                stream, places = card.of(size)
                for part, pairs in enumerate(card.parts):
                    if graphs is None:
                        card.compute(pairs, size, stream, places)
                    else:
                        graphs[part].replay()
                    if (behind := pairs[-1][1]) is not None:
                        card.attend(behind, cache, start, tokens)

    def _capture(self, cards: Sequence[_Card], size: int) -> None:
        for card in cards:
            with current(card.device), refusals_named("short prompts"):
                card.capture(size)


class _Card:
    """The layers of one card: what goes into their graphs and out of them, always at the same place.

    Args:
        number: of the card.
        most: tokens of a pass.
        sums: over the cards, where this has a part of every layer.
        attention: see `PromptGraphs`.
    """

    def __init__(
        self,
        transformer: Transformer,
        number: int,
        most: int,
        sums: SumsOverCards | None = None,
        attention: ChunkAttention | None = None,
    ) -> None:
        spec, dtype = transformer.spec, transformer.dtype
        self.device = device = transformer.split.devices[number]
        self.transformer, self._number, self._sums, self._attention = transformer, number, sums, attention
        self._jobs: list[Launch] = []
        """They keep alive what the graphs point to."""
        layers = transformer.split.layers(number)
        steps: list[_Step] = list(pairwise([None, *layers, None]))
        self.parts: list[list[_Step]] = [steps] if attention is not None else [[step] for step in steps]
        """What a graph each holds."""
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self.hidden = torch.zeros(most, spec.hidden_size, device=device)
        first = transformer.places(0, 1, number)
        self._turns = [turn.new_zeros(most, *turn.shape[1:]) for turn in first.turns]
        self._scales = [None if scale is None else scale.new_zeros(most) for scale in first.scales]
        self.rows = torch.zeros(most, heads, spec.head_dim, dtype=dtype, device=device)
        """Queries, keys and values of the next attention, where it stays between two graphs."""
        self.mixed = torch.zeros(most, spec.num_heads, spec.head_dim, dtype=dtype, device=device)
        """What it gives."""
        self.out = torch.zeros(most, spec.hidden_size, dtype=dtype, device=device)
        """What the head reads; of the last card."""
        self.graphs: dict[int, list[torch.cuda.CUDAGraph]] = {}
        self._aside: torch.cuda.Stream | None = None
        """Where all is captured: memory of one stream is not used again by another."""
        self._first: torch.cuda.CUDAGraph | None = None
        """Has the pool of all."""

    def of(self, size: int) -> tuple[Stream, Places]:
        scales = [None if scale is None else scale[:size] for scale in self._scales]
        return Stream(self.hidden[:size]), Places([turn[:size] for turn in self._turns], scales)

    def place(self, start: int, tokens: int) -> None:
        """What the positions of the next pass do."""
        places = self.transformer.places(start, start + tokens, self._number)
        for turn, new in zip(self._turns, places.turns, strict=True):
            turn[:tokens].copy_(new)
        for scale, own in zip(self._scales, places.scales, strict=True):
            if scale is not None and own is not None:
                scale[:tokens].copy_(own)

    def compute(self, steps: Sequence[_Step], size: int, stream: Stream, places: Places) -> None:
        for before, behind in steps:
            if before is not None:
                self.mix(before, size, stream)
                exchanges = 0 if self.transformer.spec.parallel else self._add_up(stream, 0)
                self.feed(before, size, stream)
                exchanges = self._add_up(stream, exchanges)
                if self._sums is not None:
                    self._launch(self._sums.count(exchanges))
            if behind is not None and self._attention is not None:
                rows = self.transformer.heads(behind, stream, places)
                self._attention.attend(behind, rows, self.mixed[:size])
            else:
                self.lead(behind, size, stream, places)

    def mix(self, layer: int, size: int, stream: Stream) -> None:
        self.transformer.mix(layer, stream, self.mixed[:size].flatten(1))

    def feed(self, layer: int, _size: int, stream: Stream) -> None:
        self.transformer.feed(layer, stream)

    def lead(self, behind: int | None, size: int, stream: Stream, places: Places) -> None:
        """What the next attention reads, or the head, or the next card."""
        transformer = self.transformer
        if behind is not None:
            self.rows[:size].copy_(transformer.heads(behind, stream, places))
        elif self._number + 1 == len(transformer.split.devices):
            self.out[:size].copy_(transformer.finish(stream))
        else:
            # The norm of what the last layer gave lies on this card.
            transformer.settle(stream)

    def _add_up(self, stream: Stream, exchanges: int) -> int:
        """Sums over the cards, where this has a part of every layer; how many exchanges there are then."""
        if self._sums is None:
            return exchanges
        assert stream.added is not None
        stream.added = stream.added.contiguous()
        jobs = self._sums.jobs(stream.added, exchanges)
        self._launch(*jobs)
        return exchanges + len(jobs)

    def _launch(self, *jobs: Launch) -> None:
        self._jobs += jobs
        for job in jobs:
            job.launch(dependent=False)

    def attend(self, layer: int, cache: KVSequence, start: int, tokens: int) -> None:
        """What a graph behind it reads of what the one before it has left."""
        self.mixed[:tokens].copy_(self.transformer.attend(layer, self.rows[:tokens], cache, start))

    def capture(self, size: int) -> None:
        stream, places = self.of(size)
        if self._aside is None:
            self._aside = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        graphs: list[torch.cuda.CUDAGraph] = []
        with torch.cuda.stream(self._aside):
            for steps in self.parts:
                graphs.append(captured(partial(self.compute, steps, size, stream, places), self._first))
                self._first = self._first or graphs[0]
        self.graphs[size] = graphs
