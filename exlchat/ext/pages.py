"""A layer's pages read and written for a prompt, many tokens at a time. Both run at once, on torch's current stream.

`tests/ext/reference_pages.py` defines what they compute, `kv_formats.py` how keys and values are stored.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from exlchat.ext import functions as c
from exlchat.ext.attention import CACHE_FORMATS, LayerPages, check_pages
from exlchat.ext.job import check, check_on_gpu, check_together
from exlchat.ext.kv_formats import PAGE_TOKENS
from exlchat.ext.library import Library

_ALIGNMENT = 16  # bytes that are read or written together


class PageAccess:
    """The pages of one layer and one sequence, whose layout is checked once.

    Args:
        read, write: of an open library.
        pages: of a layer; not `fp32`.
        page_table: int32 `[pages of the sequence]`: which page holds tokens `256 i` and on.

    Raises:
        ValueError: a tensor of another device, dtype, shape or layout.
    """

    def __init__(
        self, read: Callable[..., None], write: Callable[..., None], pages: LayerPages, page_table: Tensor
    ) -> None:
        check_pages(pages)
        check("page_table", page_table, torch.int32, (len(page_table),))
        stored = {
            "page_table": page_table,
            "keys": pages.keys,
            "values": pages.values,
            "key_scales": pages.key_scales,
            "value_scales": pages.value_scales,
        }
        self._tensors = {name: tensor for name, tensor in stored.items() if tensor is not None}
        check_together(*self._tensors.values())
        self._read, self._write = read, write
        self._device, self._most = page_table.device, len(page_table) * PAGE_TOKENS
        self._kv_heads, self._head_dim = pages.keys.shape[0], pages.head_dim
        self._job = c.CPages(
            **{name: tensor.data_ptr() for name, tensor in self._tensors.items()},
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            key_format=CACHE_FORMATS[pages.kind.key],
            value_format=CACHE_FORMATS[pages.kind.value],
            page_stride=pages.page_stride,
            head_stride=pages.head_stride,
        )

    def read(self, first: int, tokens: int, *, keys_out: Tensor, values_out: Tensor) -> None:
        """Keys and values of cached tokens `first` to `first + tokens - 1`, decoded and turned back.

        Args:
            keys_out, values_out: float16 `[kv_heads, at least tokens, head_dim]`, the elements of a head one behind
                the other, heads and tokens anywhere at whole 16 bytes. The first `tokens` of each head are written,
                nothing else is.

        Raises:
            ValueError: a tensor of another device, dtype, shape or layout, or tokens that the table has no pages for.
        """
        for name, out in (("keys_out", keys_out), ("values_out", values_out)):
            self._check_plain(name, out, tokens)
        self._run(self._read, first, tokens, keys=keys_out, values=values_out)

    def write(self, start: int, keys: Tensor, values: Tensor) -> None:
        """Stores new tokens at positions `start` and on; their bytes are those that decode attention would store.

        Args:
            keys, values: float16 `[kv_heads, tokens, head_dim]`, rotary positions applied, strides as `read` has them;
                finite.

        Raises:
            ValueError: as for `read`.
        """
        tokens = keys.shape[1]
        for name, new in (("keys", keys), ("values", values)):
            self._check_plain(name, new, tokens, exactly=True)
        self._run(self._write, start, tokens, keys=keys, values=values)

    def _run(self, function: Callable[..., None], first: int, tokens: int, *, keys: Tensor, values: Tensor) -> None:
        if first < 0 or tokens < 0 or first + tokens > self._most:
            raise ValueError(
                f"{tokens} tokens from {first} on are not all in the {self._most // PAGE_TOKENS} pages of page_table"
            )
        if not keys.is_cuda or keys.device != self._device or values.device != self._device:
            check_on_gpu(plain_keys=keys, plain_values=values, **self._tensors)
            check_together(keys, values, *self._tensors.values())
        if tokens == 0:
            return
        job = self._job
        job.plain_keys, job.keys_head, job.keys_token = keys.data_ptr(), keys.stride(0), keys.stride(1)
        job.plain_values, job.values_head, job.values_token = values.data_ptr(), values.stride(0), values.stride(1)
        job.first, job.tokens = first, tokens
        function(c.address(job), torch.cuda.current_stream().cuda_stream)

    def _check_plain(self, name: str, tensor: Tensor, tokens: int, *, exactly: bool = False) -> None:
        """Vectors of a prompt: so many tokens, or more where that does no harm."""
        shape, wanted = tuple(tensor.shape), (self._kv_heads, tokens, self._head_dim)
        fits = len(shape) == 3 and (shape[0], shape[2]) == (wanted[0], wanted[2])
        fits = fits and (shape[1] == tokens if exactly else shape[1] >= tokens)
        if tensor.dtype != torch.float16 or not fits:
            raise ValueError(f"{name} is {tensor.dtype} {shape}; it must be torch.float16 {wanted}")
        whole = all(stride * tensor.element_size() % _ALIGNMENT == 0 for stride in tensor.stride()[:2])
        if tensor.stride(2) != 1 or not whole or tensor.data_ptr() % _ALIGNMENT:
            raise ValueError(
                f"{name} has strides {tensor.stride()}; elements of a head must be neighbours, and heads and tokens "
                f"begin at whole {_ALIGNMENT} bytes"
            )


class PageKernels:
    def __init__(self, library: Library) -> None:
        self._read_pages = library.function("exl_read_pages")
        self._write_pages = library.function("exl_write_pages")

    def page_access(self, pages: LayerPages, page_table: Tensor) -> PageAccess:
        """For many reads and writes of the same pages; raises as `PageAccess` does."""
        return PageAccess(self._read_pages, self._write_pages, pages, page_table)

    def read_pages(
        self, pages: LayerPages, page_table: Tensor, first: int, tokens: int, *, keys_out: Tensor, values_out: Tensor
    ) -> None:
        """One `PageAccess.read`."""
        self.page_access(pages, page_table).read(first, tokens, keys_out=keys_out, values_out=values_out)

    def write_pages(self, pages: LayerPages, page_table: Tensor, start: int, keys: Tensor, values: Tensor) -> None:
        """One `PageAccess.write`."""
        self.page_access(pages, page_table).write(start, keys, values)
