"""Passes of more sequences than the kernels of the step take rows: a token of each of up to 128, captured by size.

The products are those of short prompts, the attention that of the step, each row over its own pages up to its own
length, in longer pieces than of a row alone: those would only wait for each other. What a row comes to depends on
nothing another one asks for, but its last bits are those of products of many rows, not those of a step alone.

A pass is filled up to one of a few sizes by rows of a sequence that nobody reads, which also stand where a row has
left, so that few graphs are needed. A size is computed one by one the first time, when its kernels may have to be
loaded, and captured the second time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.decode.captured import captured, refusals_named
from exlchat.engine.decode.kernels import StepKernels
from exlchat.engine.decode.parts import attention_rules
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.pool import PoolFullError
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.linear import permutation_of
from exlchat.engine.layers.quantized_linear import Permuted
from exlchat.engine.layers.transformer import Places, Stream, Transformer
from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import MAX_SPLITS, AttentionScratch
from exlchat.ext.functions import WIDE_ROWS
from exlchat.ext.kv_formats import PAGE_TOKENS

SIZES = (12, 16, 24, 32, 48, 64, 96, 128)
MOST_ROWS = SIZES[-1]
assert MOST_ROWS <= WIDE_ROWS
_SPARE_BYTES = 256 * 2**20
"""For what stands between the products, in the graphs' memory, and the samplers of all rows."""
_FEW_ROWS, _SHORT_PIECE, _LONG_PIECE = 16, 512, 2048
"""Cached tokens that a block of the attention takes at least. In short pieces few rows of 1,100 tokens fill a card; of
more rows there are enough blocks without: 64 take 2.9 instead of 3.7 ms on an H200."""


def filled_size(rows: int) -> int:
    """Rows of the pass that takes so many."""
    return next(size for size in SIZES if size >= rows)


def wide_bytes(spec: ModelSpec) -> int:
    """What wide passes surely do not exceed beside what each row's draws take."""
    pieces = MOST_ROWS * spec.num_heads * MAX_SPLITS * (spec.head_dim + 2) * 4
    return MOST_ROWS * spec.vocab_size * 4 + pieces + _SPARE_BYTES


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
        length = self._tables.longest * PAGE_TOKENS
        self._scratch = AttentionScratch(
            *(spec.num_heads, spec.num_kv_heads, spec.head_dim),
            min(splits, -(-length // _SHORT_PIECE)),
            self._device,
            rows=MOST_ROWS,
        )
        self._places = transformer.places(0, length)
        self._unturned = torch.zeros(length, 0, 2, device=self._device)
        self._shown = 0, 0
        self._seen: set[int] = set()
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._aside: torch.cuda.Stream | None = None

    @torch.inference_mode()
    def set(self, ids: Sequence[int], positions: Sequence[int]) -> None:
        """What the next pass feeds, a token of each sequence."""
        self.token[: len(ids)].copy_(torch.tensor(ids))
        self.position[: len(ids)].copy_(torch.tensor(positions, dtype=torch.int32))

    @torch.inference_mode()
    def forward(self, sequences: Sequence[KVSequence | None]) -> None:
        """Enqueues a pass of `token` at `position`; `logits` are behind it. Each sequence has room for its token.

        Args:
            sequences: `None` where nobody reads the row, whose position is 0; only where `may_fill`.

        Raises:
            ModelError: the GPU refuses to capture.
        """
        count = len(sequences)
        whole = count in SIZES and None not in sequences
        size = filled_size(count) if whole or self.may_fill() else count
        rows = [self._idle.row if sequence is None else sequence.row for sequence in sequences]
        self._tables.show(self._cache.tables, [*rows, *[self._idle.row] * (size - count)])
        if self._shown != (count, size):
            self.position[count:size].zero_()
            self._shown = count, size
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

    def may_fill(self) -> bool:
        """Whether there is the page that rows need which nobody reads."""
        try:
            self._idle.reserve(1)
        except PoolFullError:
            return False
        return True

    def _compute(self, size: int) -> None:
        transformer, spec = self._transformer, self._transformer.spec
        token, position = self.token[:size], self.position[:size]
        scales = [None if scales is None else scales[position] for scales in self._places.scales]
        places = Places(self._places.turns, scales)
        stream = Stream(transformer.embed(token, 0))
        width = spec.num_heads * spec.head_dim
        for index in range(len(transformer.layers)):
            rows = transformer.unturned_heads(index, stream, places).contiguous()
            mixed = torch.empty(size, width, dtype=rows.dtype, device=self._device)
            permutation = permutation_of(transformer.layers[index].output, size)
            self._attend(index, rows, mixed, permutation)
            transformer.finish_layer(index, stream, mixed if permutation is None else Permuted(mixed))
        self.logits[:size].copy_(transformer.logits(transformer.finish(stream)))

    def _attend(self, index: int, rows: Tensor, mixed: Tensor, permutation: Tensor | None) -> None:
        spec, size = self._transformer.spec, len(rows)
        rope = spec.layer_ropes[index]
        self._kernels.attention(
            rows,
            mixed,
            pages=self._cache.layer(index),
            page_table=self._tables.of(spec.windows[index] > 0)[:size],
            position=self.position[:size],
            turns=self._unturned if rope is None else self._places.turns[rope],
            rules=attention_rules(spec, index, self._transformer.layers[index]),
            scratch=self._scratch,
            scatter=permutation,
            least=_SHORT_PIECE if size <= _FEW_ROWS else _LONG_PIECE,
        ).launch(dependent=True)

    def _capture(self, size: int) -> torch.cuda.CUDAGraph:
        if self._aside is None:
            self._aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        with refusals_named("wide passes"), torch.cuda.stream(self._aside):
            return captured(lambda: self._compute(size), next(iter(self._graphs.values()), None))
