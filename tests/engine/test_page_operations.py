"""Ten thousand random operations on sequences that share pages, on the pool and on the disk, against a plain model."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from exlchat.engine.kv.archive import PageArchive, open_archive
from exlchat.engine.kv.cache import KVCache
from exlchat.engine.kv.sequence import KVSequence
from exlchat.ext.kv_formats import CODES4, PAGE_TOKENS, decode, encode
from exlchat.llm.info import ModelError
from tests.engine.test_kv_cache import CPU, spec, table_of
from tests.ext.reference_pages import cached_rows

SIZES = spec(32, layers=2)
LONGEST = 1200
PAGES = 9
SEQUENCES = 3


def vectors(ids: list[int], kind: str) -> torch.Tensor:
    """`[tokens, 32]`: what belongs at each position says everything that stands before it."""
    code, rows = 1, []
    for token in ids:
        code = (code * 31 + token + 7) % 2039
        rows.append(code)
    whole = torch.tensor(rows, dtype=torch.float32)[:, None] * torch.linspace(0.5, 1, 32)
    return whole.half().float() if kind == "fp16" else decode(*encode(whole, CODES4), CODES4)


def compute(cache: KVSequence, ids: list[int]) -> None:
    """The rest of a sequence, chunk by chunk, until it ends or there is no room."""
    while len(cache) < len(ids):
        start, end = len(cache), min(len(cache) + 200, len(ids))
        try:
            cache.reserve(end)
        except ModelError:
            return
        new = vectors(ids[:end], "fp16")[start:].expand(2, 2, -1, -1)
        for layer in range(SIZES.num_layers):
            list(cache.append(layer, start, new + layer))
        cache.extend(ids[start:end])


class Operations(RuleBasedStateMachine):
    """Three sequences at once over a pool that is too small for them, beside a disk."""

    kind = "fp16"

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.told: list[list[int]] = [[]]

    @initialize()
    def open(self) -> None:
        cache = KVCache(SIZES, self.kind, torch.float32, CPU, LONGEST, tokens=PAGES * PAGE_TOKENS)
        self.caches = [KVSequence(cache) for _ in range(SEQUENCES)]
        self.archive = self.open_archive()

    def open_archive(self) -> PageArchive:
        return open_archive(self.caches[0].cache, Path(self.folder.name), 10**9)

    def teardown(self) -> None:
        self.archive.close()
        self.folder.cleanup()

    @rule(
        which=st.integers(0, SEQUENCES - 1),
        known=st.integers(0, 30),
        cut=st.integers(0, LONGEST),
        new=st.lists(st.integers(0, 2), max_size=6),
        repeats=st.integers(1, 120),
        computed=st.integers(0, LONGEST),
    )
    def answer(self, *, which: int, known: int, cut: int, new: list[int], repeats: int, computed: int) -> None:
        """A sequence that begins like an older one (an edit, a branch, a second turn), cancelled after `computed`."""
        ids = (self.told[known % len(self.told)][:cut] + new * repeats)[:LONGEST]
        if not ids:
            return
        self.told = [*self.told[-30:], ids]
        cache = self.caches[which]
        found = cache.begin(ids, most=len(ids) - 1)
        assert found == len(cache) < len(ids)
        compute(cache, ids[: max(found, computed)])
        self.check_rows(cache)

    @rule(which=st.integers(0, SEQUENCES - 1))
    def leave(self, which: int) -> None:
        self.caches[which].close()

    @rule(which=st.integers(0, SEQUENCES - 1))
    def save(self, which: int) -> None:
        self.archive.keep(self.caches[which].filled)
        assert self.archive.flush(60)

    @rule(known=st.integers(0, 30), stop_at=st.integers(0, 4))
    def restore(self, known: int, stop_at: int) -> None:
        """Cancelled before one of the pages, or not."""
        ids, asked = self.told[known % len(self.told)], iter(range(100))
        self.archive.restore(ids, len(ids), lambda: next(asked) == stop_at)

    @rule()
    def restart(self) -> None:
        self.archive.close()
        self.open()

    @rule(known=st.integers(0, 30), count=st.integers(1, LONGEST))
    def keep_warm(self, known: int, count: int) -> None:
        self.caches[0].cache.pool.keep_warm(self.told[known % len(self.told)][:count])

    @rule(count=st.integers(1, PAGES))
    def evict(self, count: int) -> None:
        """So much room is wanted by somebody else for a moment."""
        pool = self.caches[0].cache.pool
        taken = [pool.take() for _ in range(min(count, pool.free + len(pool.idle)))]
        pool.release(taken)

    def check_rows(self, cache: KVSequence) -> None:
        """What is cached is what was computed for exactly these ids."""
        if not len(cache):
            return
        wanted = vectors(list(cache.ids), "fp16")
        for layer in range(SIZES.num_layers):
            stored = wanted + layer if self.kind == "fp16" else decode(*encode(wanted + layer, CODES4), CODES4)
            for found in cached_rows(cache.cache.layer(layer), table_of(cache, layer), 0, len(cache), torch.float32):
                assert torch.allclose(found, stored.half().float().expand(2, -1, -1), rtol=1e-3, atol=1e-3)

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "caches"):
            return
        pool = self.caches[0].cache.pool
        users = Counter(page for cache in self.caches for page in cache.pages)
        listed, idle = set(pool.listed), set(pool.idle)
        slots = [page.slot for page in {*users, *listed}]
        assert len(slots) == len(set(slots)) == pool.size - pool.free
        assert all(page.users == count for page, count in users.items())
        assert all(page.users == 0 for page in idle)
        assert idle == {page for page in listed if page not in users}
        for cache in self.caches:
            assert len(cache.pages) * PAGE_TOKENS >= len(cache)
            for page, start in zip(cache.pages, range(0, len(cache), PAGE_TOKENS), strict=False):
                assert page.ids[: len(cache) - start] == list(cache.ids[start : start + PAGE_TOKENS])


@pytest.mark.parametrize("kind", ["fp16", "q4"])
def test_random_operations(kind: str) -> None:
    machine = type(f"Operations_{kind}", (Operations,), {"kind": kind})
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(max_examples=30, stateful_step_count=40, suppress_health_check=list(HealthCheck)),
    )


@settings(suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(
            st.integers(0, 30),
            st.integers(0, LONGEST),
            st.lists(st.integers(0, 2), min_size=1, max_size=6),
            st.integers(1, 120),
        ),
        min_size=2,
        max_size=14,
    )
)
def test_random_sequences_with_windows(answers: list[tuple[int, int, list[int], int]]) -> None:
    """One layer sees 300 tokens, and fewer pages have memory there than there are."""
    with patch("exlchat.engine.kv.cache.window_slots", lambda *_: 6):
        sizes = replace(SIZES, windows=(300, 0))
        cache = KVSequence(KVCache(sizes, "fp16", torch.float32, CPU, LONGEST, tokens=PAGES * PAGE_TOKENS))
    told: list[list[int]] = [[]]
    for known, cut, new, repeats in answers:
        ids = (told[known % len(told)][:cut] + new * repeats)[:LONGEST]
        told.append(ids)
        cache.begin(ids, most=len(ids) - 1)
        check_visible(cache)
        compute(cache, ids)
        assert len(cache) == len(ids)
        check_visible(cache)


def check_visible(cache: KVSequence) -> None:
    """What the next token sees is what was computed for exactly these ids."""
    wanted = vectors(list(cache.ids), "fp16")
    for layer, first in ((0, max(len(cache) - 299, 0)), (1, 0)):
        pages, table = cache.cache.layer(layer), table_of(cache, layer)
        for found in cached_rows(pages, table, first, len(cache) - first, torch.float32):
            stored = (wanted + layer)[first:].half().float()
            assert torch.equal(found, stored.expand(2, -1, -1))
