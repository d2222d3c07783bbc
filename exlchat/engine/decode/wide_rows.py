"""More sequences than a step takes rows, each in a place of its own: passes of them (`wide.py`) and draws behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from exlchat.engine.cards.split import current
from exlchat.engine.decode.captured import NO_MEMORY
from exlchat.engine.decode.draws import DecodeRow, ManyDraws
from exlchat.engine.decode.fit import why_not_wide
from exlchat.engine.decode.wide import MOST_ROWS, WidePasses, wide_bytes
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.engine.layers.transformer import Transformer
from exlchat.engine.placement import usable_memory
from exlchat.ext.chain import chain_bytes
from exlchat.ext.ops import Kernels
from exlchat.ext.products import MAX_ROWS
from exlchat.ext.sampling import TokenRing
from exlchat.llm.info import ModelError


class WideRows:
    """Takes memory when it is first wanted. All work is enqueued behind what is under way.

    Args:
        transformer, cache: of one model whose steps are captured.
        kernels: on the model's last card.
        splits: of the attention of a head, as in the step.

    What takes memory raises `ModelError` for want of it.
    """

    def __init__(self, transformer: Transformer, cache: KVCache, kernels: Kernels, *, splits: int) -> None:
        self._transformer, self._cache, self._kernels, self._splits = transformer, cache, kernels, splits
        self._device = transformer.split.devices[-1]
        self._why_not = why_not_wide(transformer)
        self._made: WidePasses | None = None
        self._draws: ManyDraws | None = None
        self._rows: list[KVSequence | None] = []
        self._most: tuple[tuple[bool, int], int] | None = None

    @property
    def most(self) -> int:
        """Rows of a pass: where memory is short no more than it surely holds, each drawn in whatever way."""
        if self._why_not is not None:
            return MAX_ROWS
        taken = self._made is not None, 0 if self._draws is None else self._draws.chains
        # Asked in every step; what other programs take meanwhile ends whoever then finds no memory.
        if self._most is None or self._most[0] != taken:
            self._most = taken, self._fitting(*taken)
        return self._most[1]

    def _fitting(self, made: bool, chains: int) -> int:
        spec = self._transformer.spec
        try:
            free = usable_memory(self._device) - (0 if made else wide_bytes(spec))
        except RuntimeError:  # a card that has failed: whoever has work there is told
            return MAX_ROWS
        rows = chains + free // chain_bytes(spec.vocab_size, self._cache.max_seq_len)
        return min(max(rows, MAX_ROWS), MOST_ROWS)

    def may_leave_places(self) -> bool:
        """Whether rows may be left empty, for which there has to be a page."""
        return self._passes.may_fill()

    @torch.inference_mode()
    def put(self, rows: Sequence[KVSequence | None], begun: Mapping[int, DecodeRow]) -> int:
        """The next pass is of these, each in its place.

        Args:
            rows: `None` where a place is empty.
            begun: those that do not go on from what they drew in the same place in the pass before.

        Returns:
            The number of the last pass; the draws of the next one report one more.
        """
        empty = [place for place, row in enumerate(rows) if row is None]
        with self._on_card():
            if self._draws is None:
                passes = self._passes
                ends = passes.logits, passes.token, passes.position
                self._draws = ManyDraws(*ends, self._cache.max_seq_len, self._kernels)
            self._draws.put(len(rows), begun, empty)
        self._rows = list(rows)
        return self._draws.passes

    @torch.inference_mode()
    def launch(self) -> None:
        """A pass of the rows that were put, each of which has room for the token that it feeds."""
        assert self._draws is not None
        with self._on_card():
            self._passes.forward(self._rows)
            self._draws.launch()

    def ring(self, place: int) -> TokenRing:
        """Where the draws in a place report."""
        assert self._draws is not None
        return self._draws.ring(place)

    def mu(self, place: int) -> float:
        """Mirostat's, of a place whose last pass has reported."""
        assert self._draws is not None
        with self._on_card():
            return self._draws.mu(place)

    @torch.inference_mode()
    def set_mask(self, place: int, words: Tensor) -> None:
        """What the next pass may draw in a place whose row was begun `masked`: see `ChainState.set_mask`."""
        assert self._draws is not None
        with self._on_card():
            self._draws.set_mask(place, words)

    def logits(self, place: int) -> Tensor:
        """float32 `[vocab]` on the device, of a place in the last pass; valid until the next one is launched."""
        return self._passes.logits[place]

    @torch.inference_mode()
    def feed(self, ids: Sequence[int], positions: Sequence[int], sequences: Sequence[KVSequence]) -> Tensor:
        """A token of each, drawn by the host: float32 `[rows, vocab]` on the device, valid until the next pass."""
        with self._on_card():
            self._passes.set(ids, positions)
            self._passes.forward(sequences)
        return self._passes.logits[: len(ids)]

    def rest(self) -> None:
        """Gives back the page of rows that only fill up."""
        if self._made is not None:
            self._made.close()

    @property
    def _passes(self) -> WidePasses:
        if self._made is None:
            self._made = WidePasses(self._transformer, self._cache, self._kernels, splits=self._splits)
        return self._made

    @contextmanager
    def _on_card(self) -> Iterator[None]:
        try:
            with current(self._device):
                yield
        except torch.OutOfMemoryError as error:
            raise ModelError(NO_MEMORY) from error
