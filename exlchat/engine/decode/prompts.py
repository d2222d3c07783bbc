"""Short prompts on a card: what a layer computes between two attentions, captured as a graph.

The host launches some 15 operations a layer, which takes it longer than the card needs for up to 256 tokens. Captured,
they are one launch. The attention stays outside: how much it reads changes with every pass, and torch's kernels take
that from the host. Passes are filled up to one of a few sizes, so that few graphs are needed; what the rows behind the
last token come to is never looked at, and no row's product depends on another's.

A size is captured when it is asked for a second time: the first time its kernels may have to be loaded, which must not
fall into a capture. The graphs of all sizes share one pool of memory, as no two of them run together.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from exlchat.engine.decode.captured import captured, refusals_named
from exlchat.engine.decode.fit import why_no_prompts
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.quantized_linear import MAX_ROWS
from exlchat.engine.layers.transformer import Places, Stream, Transformer

# None above `quantized_linear.MEDIUM_ROWS`, where the card is busy for longer than the host. Up to `MAX_ROWS` tokens go
# through the transformer, whose layers then take the kernels of the decode step.
SIZES = (16, 32, 48, 64, 96, 128, 160, 192, 224, 256)


class PromptGraphs:
    """Prompts of a model through its graphs where they suit it, else through its transformer.

    What a pass gives depends on nothing that an earlier one computed but the cache.
    """

    def __init__(self, transformer: Transformer) -> None:
        self._transformer = transformer
        self._suited = why_no_prompts(transformer) is None
        self._buffers: _Buffers | None = None
        self._seen: set[int] = set()
        self._graphs: dict[int, list[torch.cuda.CUDAGraph]] = {}
        self._aside: torch.cuda.Stream | None = None
        """Where all is captured: memory of one stream is not used again by another."""
        self._first: torch.cuda.CUDAGraph | None = None
        """Has the pool of all."""

    @property
    def captured(self) -> tuple[int, ...]:
        """The sizes whose graphs there are."""
        return tuple(self._graphs)

    @torch.inference_mode()
    def features(self, ids: Tensor, cache: KVSequence, *, start: int, last_only: bool = False) -> Tensor:
        """As `Transformer.features`; valid until the next call.

        Raises:
            ModelError: the GPU refuses to capture.
            torch.OutOfMemoryError: no memory for it.
        """
        tokens = len(ids)
        captured = self._suited and tokens > MAX_ROWS
        size = next((size for size in SIZES if size >= tokens), None) if captured else None
        if size is None:
            return self._transformer.features(ids, cache, start=start, last_only=last_only)
        if self._buffers is None:
            self._buffers = _Buffers(self._transformer)
        self._buffers.fill(self._transformer, ids, start, size)
        if size in self._seen:
            self._replay(size, cache, start, tokens)
        else:
            self._compute(size, cache, start, tokens)
            self._seen.add(size)
        return self._buffers.out[tokens - 1 if last_only else 0 : tokens]

    def forward(self, ids: Tensor, cache: KVSequence, *, start: int) -> Tensor:
        """As `Transformer.forward`: float32 `[1, vocab]` behind the last token."""
        return self._transformer.logits(self.features(ids, cache, start=start, last_only=True))

    def _compute(self, size: int, cache: KVSequence, start: int, tokens: int) -> None:
        """The same as the graphs, one by one."""
        buffers = self._filled
        stream, places = buffers.of(size)
        for index in range(len(self._transformer.layers) + 1):
            self._part(index, size, stream, places)
            self._attend(index, cache, start, tokens)

    def _replay(self, size: int, cache: KVSequence, start: int, tokens: int) -> None:
        if size not in self._graphs:
            self._graphs[size] = self._capture(size)
        for index, graph in enumerate(self._graphs[size]):
            graph.replay()
            self._attend(index, cache, start, tokens)

    @property
    def _filled(self) -> _Buffers:
        assert self._buffers is not None
        return self._buffers

    def _part(self, index: int, size: int, stream: Stream, places: Places) -> None:
        """From one layer's attention to the next one's, or to the end."""
        transformer, buffers = self._transformer, self._filled
        if index:
            transformer.finish_layer(index - 1, stream, buffers.mixed[:size].flatten(1))
        if index < len(transformer.layers):
            buffers.rows[:size].copy_(transformer.heads(index, stream, places))
        else:
            buffers.out[:size].copy_(transformer.finish(stream))

    def _attend(self, index: int, cache: KVSequence, start: int, tokens: int) -> None:
        buffers = self._filled
        if index < len(self._transformer.layers):
            mixed = self._transformer.attend(index, buffers.rows[:tokens], cache, start)
            buffers.mixed[:tokens].copy_(mixed)

    def _capture(self, size: int) -> list[torch.cuda.CUDAGraph]:
        graphs: list[torch.cuda.CUDAGraph] = []
        stream, places = self._filled.of(size)
        if self._aside is None:
            self._aside = torch.cuda.Stream(self._transformer.device)  # type: ignore[no-untyped-call]
        with refusals_named("short prompts"), torch.cuda.stream(self._aside):
            for index in range(len(self._transformer.layers) + 1):
                graphs.append(captured(partial(self._part, index, size, stream, places), self._first))
                self._first = self._first or graphs[0]
        return graphs


class _Buffers:
    """What goes into the graphs and out of them, always at the same place.

    Args of `fill`: see `PromptGraphs.features`.
    """

    def __init__(self, transformer: Transformer) -> None:
        spec, most, dtype, device = transformer.spec, SIZES[-1], transformer.dtype, transformer.device
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self._hidden = torch.zeros(most, spec.hidden_size, device=device)
        first = transformer.places(0, 1)
        self._turns = [turn.new_zeros(most, *turn.shape[1:]) for turn in first.turns]
        self._scales = [None if scale is None else scale.new_zeros(most) for scale in first.scales]
        self.rows = torch.zeros(most, heads, spec.head_dim, dtype=dtype, device=device)
        """Queries, keys and values of the next attention."""
        self.mixed = torch.zeros(most, spec.num_heads, spec.head_dim, dtype=dtype, device=device)
        """What it gives."""
        self.out = torch.zeros(most, spec.hidden_size, dtype=dtype, device=device)
        """What the head reads."""

    def of(self, size: int) -> tuple[Stream, Places]:
        scales = [None if scale is None else scale[:size] for scale in self._scales]
        return Stream(self._hidden[:size]), Places([turn[:size] for turn in self._turns], scales)

    def fill(self, transformer: Transformer, ids: Tensor, start: int, size: int) -> None:
        tokens = len(ids)
        self._hidden[:tokens].copy_(transformer.embed(ids, start))
        # A pass adds to what stands here: left alone, the rows behind the last token would grow without bound.
        self._hidden[tokens:size].zero_()
        places = transformer.places(start, start + tokens)
        for turn, new in zip(self._turns, places.turns, strict=True):
            turn[:tokens].copy_(new)
        for scale, own in zip(self._scales, places.scales, strict=True):
            if scale is not None and own is not None:
                scale[:tokens].copy_(own)
