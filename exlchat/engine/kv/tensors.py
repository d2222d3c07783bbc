"""The memory of a model's pages: keys and values of all layers as they are stored, plain or in few bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from exlchat.engine.model.spec import ModelSpec
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, CacheKind


@dataclass(frozen=True, slots=True)
class PageStore:
    """Room for a number of pages of 256 tokens. What a page holds before tokens are stored is undefined.

    The pages of a head lie one behind the other, so that plain torch reads neighbours as one view; the kernels take
    any strides.

    Args:
        kind: how keys and values are stored.
        cards: of each card keys, values, and where they are codes with scales those of both, each
            `[layers, kv_heads, pages, 256, row]` of the layers or of the heads that lie there.
        together: whether each has some heads of all layers.
    """

    kind: CacheKind
    cards: tuple[tuple[Tensor, ...], ...]
    together: bool = False

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for parts in self.cards for part in parts)

    @property
    def layers(self) -> int:
        """Of a page."""
        counts = [len(parts[0]) for parts in self.cards]
        return counts[0] if self.together else sum(counts)

    @property
    def heads(self) -> int:
        """Of a page."""
        counts = [parts[0].shape[1] for parts in self.cards]
        return sum(counts) if self.together else counts[0]

    def layer(self, index: int, card: int = 0) -> LayerPages:
        """`card`: where each has some heads of it, whose."""
        for parts in self.cards[card:] if self.together else self.cards:
            if index < len(parts[0]):
                keys, values, *scales = (part[index] for part in parts)
                return LayerPages(self.kind, keys, values, *scales)
            index -= len(parts[0])
        raise IndexError(index)

    def copy_rows(self, source: int, target: int, rows: int) -> None:
        for parts in self.cards:
            for part in parts:
                part[:, :, target, :rows] = part[:, :, source, :rows]

    def read(self, slot: int, rows: int) -> tuple[Tensor, ...]:
        """A copy of the first rows of a page on the CPU, `[layers, kv_heads, rows, row]` a part.

        Never a view, whatever the shape: it is written to disk while the page may already hold something else.
        """
        return tuple(self._read([part[:, :, slot, :rows] for part in same]) for same in zip(*self.cards, strict=True))

    def write(self, slot: int, tensors: Sequence[Tensor]) -> None:
        """What `read` gave, into the first rows of a page."""
        for same, tensor in zip(zip(*self.cards, strict=True), tensors, strict=True):
            for part, piece in zip(same, self._by_card(tensor, same), strict=True):
                part[:, :, slot, : tensor.shape[2]] = piece.to(part.device, non_blocking=True)

    def _read(self, views: Sequence[Tensor]) -> Tensor:
        found = torch.empty(self.layers, self.heads, *views[0].shape[2:], dtype=views[0].dtype, device="cpu")
        for piece, view in zip(self._by_card(found, views), views, strict=True):
            piece.copy_(view)
        return found

    def _by_card(self, page: Tensor, parts: Sequence[Tensor]) -> Sequence[Tensor]:
        """What of `[layers, kv_heads, ...]` of all cards belongs to each."""
        along = 1 if self.together else 0
        found: Sequence[Tensor] = torch.split(page, [part.shape[along] for part in parts], along)
        return found


def make_store(
    spec: ModelSpec,
    kind: CacheKind,
    cards: Sequence[tuple[torch.device, int]],
    pages: int,
    *,
    kv_heads: Sequence[int] = (),
) -> PageStore:
    """An empty store.

    Args:
        cards: each, and how many layers of this store lie there.
        kv_heads: of each card, where all of them have every layer.

    Raises what torch raises when memory is short.
    """
    elements, head_dim = (kind.key, kind.value), spec.head_dim
    rows = [(element.row(head_dim), element.dtype) for element in elements]
    rows += [(element.scales(head_dim), torch.float16) for element in elements if element.scaled]
    heads = kv_heads or (spec.num_kv_heads,) * len(cards)
    return PageStore(
        kind,
        tuple(
            tuple(torch.empty(layers, here, pages, PAGE_TOKENS, row, dtype=dtype, device=device) for row, dtype in rows)
            for (device, layers), here in zip(cards, heads, strict=True)
        ),
        together=bool(kv_heads),
    )
