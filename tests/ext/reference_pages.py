"""The operations of `pages.py` in plain torch: the definition, what the CPU uses, and the oracle of the kernel tests.

Any kind of `kv_formats.py`, any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import PAGE_TOKENS, Element, decode, encode


def read_pages(
    pages: LayerPages, page_table: Tensor, first: int, tokens: int, *, keys_out: Tensor, values_out: Tensor
) -> None:
    """As `pages.PageKernels.read_pages`, into any float dtype."""
    keys, values = cached_rows(pages, page_table, first, tokens, keys_out.dtype)
    keys_out[:, :tokens], values_out[:, :tokens] = keys, values


def cached_rows(
    pages: LayerPages, page_table: Tensor, first: int, tokens: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Keys and values of tokens `first` to `first + tokens - 1`, `[kv_heads, tokens, head_dim]` each, in any dtype."""
    begin = first // PAGE_TOKENS
    table = page_table[begin : -(-(first + tokens) // PAGE_TOKENS)].long()
    start = first - begin * PAGE_TOKENS

    def rows(stored: Tensor) -> Tensor:
        return stored[:, table].flatten(1, 2)[:, start : start + tokens]

    def plain(stored: Tensor, scales: Tensor | None, element: Element) -> Tensor:
        return decode(rows(stored), None if scales is None else rows(scales), element).to(dtype)

    return (
        plain(pages.keys, pages.key_scales, pages.kind.key),
        plain(pages.values, pages.value_scales, pages.kind.value),
    )


def write_pages(pages: LayerPages, page_table: Tensor, start: int, keys: Tensor, values: Tensor) -> None:
    """As `pages.PageKernels.write_pages`, from any float dtype."""
    tokens = torch.arange(start, start + keys.shape[1], device=page_table.device)
    page, row = page_table.long()[tokens // PAGE_TOKENS], tokens % PAGE_TOKENS
    for stored, scales, new, element in (
        (pages.keys, pages.key_scales, keys, pages.kind.key),
        (pages.values, pages.value_scales, values, pages.kind.value),
    ):
        codes, new_scales = encode(new, element)
        stored[:, page, row] = codes
        if scales is not None and new_scales is not None:
            scales[:, page, row] = new_scales
