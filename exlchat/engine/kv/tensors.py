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
        parts: keys, values, and where they are codes with scales those of both, each
            `[layers, kv_heads, pages, 256, row]`.
    """

    kind: CacheKind
    parts: tuple[Tensor, ...]

    @property
    def bytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def pages(self) -> int:
        return self.parts[0].shape[2]

    def layer(self, index: int) -> LayerPages:
        keys, values, *scales = (part[index] for part in self.parts)
        return LayerPages(self.kind, keys, values, *scales)

    def copy_rows(self, source: int, target: int, rows: int) -> None:
        for part in self.parts:
            part[:, :, target, :rows] = part[:, :, source, :rows]

    def read(self, slot: int, rows: int) -> tuple[Tensor, ...]:
        """A copy of the first rows of a page on the CPU, `[layers, kv_heads, rows, row]` a part.

        Never a view, whatever the shape: it is written to disk while the page may already hold something else.
        """
        views = (part[:, :, slot, :rows] for part in self.parts)
        return tuple(torch.empty(view.shape, dtype=view.dtype, device="cpu").copy_(view) for view in views)

    def write(self, slot: int, tensors: Sequence[Tensor]) -> None:
        """What `read` gave, into the first rows of a page."""
        for part, tensor in zip(self.parts, tensors, strict=True):
            part[:, :, slot, : tensor.shape[2]] = tensor.to(part.device, non_blocking=True)


def make_store(spec: ModelSpec, kind: CacheKind, layers: int, pages: int, device: torch.device) -> PageStore:
    """An empty store for so many of the model's layers. Raises what torch raises when memory is short."""
    elements, head_dim = (kind.key, kind.value), spec.head_dim
    rows = [(element.row(head_dim), element.dtype) for element in elements]
    rows += [(element.scales(head_dim), torch.float16) for element in elements if element.scaled]
    shape = (layers, spec.num_kv_heads, pages, PAGE_TOKENS)
    return PageStore(kind, tuple(torch.empty(*shape, row, dtype=dtype, device=device) for row, dtype in rows))
