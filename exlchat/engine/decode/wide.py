"""Passes of more sequences than the kernels of the step take rows: a token of each of up to 128, captured by size.

The products are those of short prompts, the attention that of the step, eight rows a launch, each over its own pages up
to its own length. What a row comes to depends on nothing another one asks for, but its last bits are those of products
of many rows, not those of a step alone.

A pass is filled up to one of a few sizes by rows of a sequence that nobody reads, so that few graphs are needed. A size
is computed one by one the first time, when its kernels may have to be loaded, and captured the second time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.decode.captured import captured, refusals_named
from exlchat.engine.decode.kernels import StepKernels
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Places, Stream, Transformer
from exlchat.ext.attention import AttentionRules, AttentionScratch
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.products import MAX_ROWS

SIZES = (12, 16, 24, 32, 48, 64, 96, 128)
MOST_ROWS = SIZES[-1]


class WidePasses:
    """Of one model whose steps and short prompts are captured.

    Args:
        transformer, cache: of one model.
        kernels: on the model's device.
        splits: of the attention of a head, as in the step.

    Raises what torch raises when memory is short.
    """

    def __init__(self, transformer: Transformer, cache: KVCache, kernels: StepKernels, *, splits: int) -> None:
        spec, self._device = transformer.spec, transformer.device
        self._transformer, self._cache, self._kernels = transformer, cache, kernels
        self.token = torch.zeros(MOST_ROWS, dtype=torch.int64, device=self._device)
        """int64 `[rows]`: what the next pass feeds."""
        self.position = torch.zeros(MOST_ROWS, dtype=torch.int32, device=self._device)
        """int32 `[rows]`: how many tokens are before each."""
        self.logits = torch.zeros(MOST_ROWS, spec.vocab_size, device=self._device)
        """float32 `[rows, vocab]`, of the last pass."""
        self._tables = cache.tables.alike(MOST_ROWS)
        self._idle = KVSequence(cache)
        self._scratch = AttentionScratch(
            spec.num_heads, spec.num_kv_heads, spec.head_dim, splits, self._device, rows=MAX_ROWS
        )
        length = self._tables.longest * PAGE_TOKENS
        whole = transformer.places(0, length)
        self._turns, self._scales = whole.turns, whole.scales
        # The attention turns nothing: rows come turned.
        self._unturned = torch.zeros(length, 0, 2, device=self._device)
        self._seen: set[int] = set()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._aside: torch.cuda.Stream | None = None

    @torch.inference_mode()
    def set(self, ids: Sequence[int], positions: Sequence[int]) -> None:
        """What the next pass feeds, a token of each sequence."""
        self.token[: len(ids)].copy_(torch.tensor(ids))
        self.position[: len(ids)].copy_(torch.tensor(positions, dtype=torch.int32))

    @torch.inference_mode()
    def forward(self, sequences: Sequence[KVSequence]) -> None:
        """Enqueues a pass of `token` at `position`; `logits` are behind it. Each sequence has room for its token.

        Raises:
            ModelError: the GPU refuses to capture.
        """
        rows = [sequence.row for sequence in sequences]
        size = self._filled(len(rows))
        self._tables.show(self._cache.tables, [*rows, *[self._idle.row] * (size - len(rows))])
        self.position[len(rows) : size].zero_()
        if size in self._graphs:
            self._graphs[size].replay()
        elif size in self._seen:
            self._graphs[size] = self._capture(size)
            self._graphs[size].replay()
        else:
            self._compute(size)
            self._seen.add(size)

    def close(self) -> None:
        """Gives back the page of those rows that only fill up; the next pass takes one again."""
        self._idle.close()

    def _filled(self, rows: int) -> int:
        """The size of a pass; what fills it up needs a page, and without one it is as large as it is."""
        size = next(size for size in SIZES if size >= rows)
        if size > rows:
            try:
                self._idle.reserve(1)
            except PoolFullError:
                return rows
        return size

    def _compute(self, size: int) -> None:
        transformer, spec = self._transformer, self._transformer.spec
        token, position = self.token[:size], self.position[:size]
        places = Places(
            [turns[position] for turns in self._turns],
            [None if scales is None else scales[position] for scales in self._scales],
        )
        stream = Stream(transformer.embed(token, 0))
        width = spec.num_heads * spec.head_dim
        for index in range(len(transformer.layers)):
            rows = transformer.heads(index, stream, places).contiguous()
            mixed = torch.empty(size, width, dtype=rows.dtype, device=self._device)
            for first in range(0, size, MAX_ROWS):
                self._attend(index, rows, mixed, slice(first, min(first + MAX_ROWS, size)))
            transformer.finish_layer(index, stream, mixed)
        self.logits[:size].copy_(transformer.logits(transformer.finish(stream)))

    def _attend(self, index: int, rows: Tensor, mixed: Tensor, some: slice) -> None:
        spec, layer = self._transformer.spec, self._transformer.layers[index]
        self._kernels.attention(
            rows[some],
            mixed[some],
            pages=self._cache.layer(index),
            page_table=self._tables.of(spec.windows[index] > 0)[some],
            position=self.position[some],
            turns=self._unturned,
            rules=AttentionRules(
                scale=spec.attention_scale,
                window=spec.windows[index],
                softcap=spec.attention_softcap,
                sinks=None if layer.sinks is None else layer.sinks.float(),
            ),
            scratch=self._scratch,
        ).launch(dependent=False)

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        if self._aside is None:
            self._aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with refusals_named("wide passes"), torch.cuda.stream(self._aside):
            return captured(lambda: self._compute(size), next(iter(self._graphs.values()), None))
