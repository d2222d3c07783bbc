"""The sequence that is being computed, in the pages of its model: where each token's keys and values stand.

When another sequence begins, the pages of the last one stay in the pool for as long as there is room, and whatever
begins like them begins there. What they hold is never written over while they can be found: a page that is shared up
to its middle is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from exlchat.engine.architecture import ModelSpec
from exlchat.engine.events import CacheReport, ModelError
from exlchat.engine.pages.hash import HASH_BYTES
from exlchat.engine.pages.pool import Page, PagePool, PoolFullError
from exlchat.engine.pages.rows import LayerRows, OpenRows, PageList, TorchLayerRows
from exlchat.engine.pages.store import PageStore, make_store
from exlchat.engine.placement import free_memory
from exlchat.ext.attention import LayerPages
from exlchat.ext.kv_formats import KINDS, PAGE_TOKENS, CacheKind

PageHash = bytes
_NO_ROOT = bytes(HASH_BYTES)


class KVCache:
    """One sequence at a time, and the pool of pages behind it. Its memory is taken when it is first reserved.

    Args:
        spec: sizes of the model.
        kind: a name of `KINDS`, how keys and values are stored.
        compute_dtype: how the transformer reads and writes them.
        max_seq_len: more tokens than this never fit.
        tokens: how many the pool holds, of all sequences; as many as fit one sequence unless given.
        root: see `PagePool`.
        rows: how rows get into pages and out of them; by plain torch unless given.

    Raises:
        ModelError: there is no such kind, or it does not fit the model's heads.
    """

    def __init__(
        self,
        spec: ModelSpec,
        kind: str,
        compute_dtype: torch.dtype,
        device: torch.device,
        max_seq_len: int,
        *,
        tokens: int | None = None,
        root: PageHash = _NO_ROOT,
        rows: OpenRows = TorchLayerRows,
    ) -> None:
        self.max_seq_len = max_seq_len
        self.kind = cache_kind(spec, kind)
        """How keys and values are stored."""
        self._open_rows = rows
        self._rows: list[LayerRows] = []
        self._list = PageList()
        self._spec = spec
        self._compute_dtype = compute_dtype
        self._device = device
        longest = pages_of(max_seq_len)
        self.pool = PagePool(max(longest, (tokens or 0) // PAGE_TOKENS), root)
        self._store: PageStore | None = None
        self._ids: list[int] = []
        self._pages: list[Page] = []
        self._owner = ""
        self._asked = self._found = 0
        self.page_table = torch.zeros(longest, dtype=torch.int32, device=device)
        """int32 `[pages of the longest sequence]`, the page of tokens 256 i and on; its address never changes."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def ids(self) -> Sequence[int]:
        """`ids[i]` is the token whose key and value stand at position `i` of every layer."""
        return self._ids

    @property
    def sequence(self) -> Sequence[Page]:
        """The pages of the running sequence that hold something, in order."""
        return [page for page in self._pages if page.ids]

    @property
    def bytes(self) -> int:
        """Of the pool, on the device."""
        return self.pool.size * PAGE_TOKENS * self.bytes_per_token

    @property
    def bytes_per_token(self) -> int:
        """Of one position's keys and values in all layers, as they are stored."""
        return bytes_per_token(self._spec, self.kind)

    @property
    def capacity(self) -> int:
        """Tokens that fit into the pages that the sequence has."""
        return len(self._pages) * PAGE_TOKENS

    @property
    def on_gpu(self) -> bool:
        """Where its memory is."""
        return self._device.type == "cuda"

    @property
    def store(self) -> PageStore:
        """The memory of the pool.

        Raises:
            ModelError: there is not enough.
        """
        if self._store is None:
            self._store = self._make_store()
            self._rows = [
                self._open_rows(self._store.layer(layer), self.page_table, self._compute_dtype)
                for layer in range(self._spec.num_layers)
            ]
        return self._store

    def pages(self, layer: int) -> LayerPages:
        """Keys and values of one layer, of all sequences; always at the same place."""
        return self.store.layer(layer)

    def known(self, ids: Sequence[int]) -> int:
        """How many tokens `ids` shares with what is there, from its beginning. Changes nothing."""
        running = _common_length(self._ids, ids)
        return max(running, self.pool.find(ids, len(ids)).tokens)

    def begin(self, ids: Sequence[int], *, most: int | None = None, owner: str = "") -> int:
        """Leaves the sequence so far for the longest known beginning of another, and returns its length.

        Args:
            ids: the new sequence.
            most: no more of it than this.
            owner: a label for the pages that it uses.
        """
        self.clear()
        self._owner = owner
        known = self.pool.find(ids, len(ids) if most is None else most)
        for page in known.pages:
            self.pool.hold(page)
            self._use(page)
        whole, tokens = len(known.pages) * PAGE_TOKENS, known.tokens
        if known.partial is not None and not self._continue_in(known.partial, ids[whole:tokens]):
            tokens = whole
        self._ids = list(ids[:tokens])
        self._asked, self._found = self._asked + len(ids), self._found + tokens
        self._write_table(0)
        return tokens

    def clear(self) -> None:
        """Leaves the sequence. Its pages stay known."""
        self.pool.release(self._pages)
        self._pages, self._ids = [], []

    def reserve(self, length: int) -> None:
        """Makes room for `length` tokens in all. Raises `ModelError` when there is none; the content stays."""
        needed, before = pages_of(length), len(self._pages)
        if needed <= before:
            return
        if needed > len(self.page_table):
            raise ModelError(f"the context holds {self.max_seq_len:,} tokens, and {length:,} were wanted")
        _ = self.store
        try:
            while len(self._pages) < needed:
                self._take()
        except PoolFullError:
            raise ModelError(
                f"the cache has no room for {length:,} tokens in one conversation; load with a larger --cache-tokens"
            ) from None
        finally:
            self._write_table(before)

    def extend(self, ids: Sequence[int]) -> None:
        """The next positions, which have been stored in every layer, hold these tokens."""
        at = 0
        while at < len(ids):
            index, row = divmod(len(self._ids), PAGE_TOKENS)
            new = ids[at : at + PAGE_TOKENS - row]
            self.pool.extend(self._pages[index], self._parent(index), new)
            self._ids += new
            at += len(new)

    def report(self) -> CacheReport:
        """What the pool holds and has saved, without the disk."""
        owners = Counter(owner for page in self.pool.listed for owner in page.owners if owner)
        return CacheReport(
            kind=self.kind.name,
            page_tokens=PAGE_TOKENS,
            page_bytes=PAGE_TOKENS * self.bytes_per_token,
            pages=self.pool.size,
            running=len(self._pages),
            idle=len(self.pool.idle),
            owners=tuple(owners.most_common()),
            evictions=self.pool.evictions,
            prompt_tokens=self._asked,
            found_tokens=self._found,
            disk=None,
        )

    def append(self, layer: int, start: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new positions of one layer and returns all up to their end.

        Args:
            keys, values: `[kv_heads, tokens, head_dim]` of positions `start` and on, for which there is room.

        Returns:
            `[kv_heads, start + tokens, head_dim]` each, in the compute dtype. The new positions come back as they were
            given where they are stored in few bits: only later calls see them as they are stored.
        """
        return self._rows[layer].append(self._list, start, keys, values)

    def _use(self, page: Page) -> None:
        page.owners.add(self._owner)
        self._pages.append(page)

    def _take(self) -> Page:
        page = self.pool.take(self._pages[-1] if self._pages else None)
        self._use(page)
        return page

    def _continue_in(self, known: Page, ids: Sequence[int]) -> bool:
        """Goes on behind the first rows of a page, which hold `ids`; whether that was possible.

        A page of which nothing else is known is used as it is; of any other, the rows are copied.
        """
        parent, alone = self._parent(len(self._pages)), not known.users
        self.pool.hold(known)
        if alone and len(ids) == len(known.ids):
            self._use(known)
            return True
        try:
            page = self._take()
        except PoolFullError:
            if alone:
                self.pool.cut(known, len(ids))
                self._use(known)
            else:
                self.pool.release([known])
            return alone
        self.store.copy_rows(known.slot, page.slot, len(ids))
        self.pool.extend(page, parent, ids)
        self.pool.release([known])
        return True

    def _parent(self, index: int) -> PageHash:
        """Hash of what stands before a page of the sequence."""
        return self._pages[index - 1].end if index else self.pool.root

    def _write_table(self, start: int) -> None:
        self._list = PageList.of([page.slot for page in self._pages])
        slots = torch.tensor(self._list.slots[start:], dtype=torch.int32)
        self.page_table[start : start + len(slots)] = slots.to(self._device, non_blocking=True)

    def _make_store(self) -> PageStore:
        try:
            return make_store(self._spec, self.kind, self.pool.size, self._device)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            needed, free = self.bytes / 2**30, free_memory(self._device) / 2**30
            raise ModelError(
                f"a cache of {self.pool.size * PAGE_TOKENS:,} tokens needs {needed:.2f} GiB, and {free:.2f} GiB are "
                "free; load with a smaller --cache-tokens or --context, or with --kv-cache q4"
            ) from error


def cache_kind(spec: ModelSpec, name: str) -> CacheKind:
    """The kind of that name.

    Raises:
        ModelError: there is none, or it does not fit the model's heads.
    """
    if name not in KINDS:
        raise ModelError(f"kv_cache is {name!r}; there are {', '.join(KINDS)}")
    if not KINDS[name].fits(spec.head_dim):
        raise ModelError(
            f"kv_cache {name} needs heads of a multiple of 32, and this model's have {spec.head_dim}; use fp16"
        )
    return KINDS[name]


def bytes_per_token(spec: ModelSpec, kind: CacheKind) -> int:
    """Of one position's keys and values in all layers, as they are stored."""
    return spec.num_layers * spec.num_kv_heads * kind.token_bytes(spec.head_dim)


def pages_of(tokens: int) -> int:
    """Pages that so many tokens take."""
    return -(-tokens // PAGE_TOKENS)


def _common_length(ids: Sequence[int], others: Sequence[int]) -> int:
    pairs = zip(ids, others, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(others)))
