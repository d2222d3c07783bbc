"""What of a conversation goes to the disk, what that costs, and what happens when memory is short."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
import torch

from exlchat.engine import GenerationRequest, LocalEngine, load
from exlchat.engine import engine as engine_module
from exlchat.engine.kv.archive import PageArchive, page_layout
from exlchat.engine.kv.disk.store import PageFiles
from exlchat.engine.kv.pool import Page, PagePool
from exlchat.engine.kv.tensors import PageStore
from exlchat.ext.kv_formats import KINDS
from tests.engine.random_pages import PLENTY, ROOT, WAIT
from tests.engine.test_prefix_reuse import finish, ids
from tests.random_models import save_random_llama


class Sequence:
    """A sequence of full pages and one of 100 tokens in a pool, with a disk beside it."""

    def __init__(self, folder: Path, pages: int, cap: int = PLENTY, queue_bytes: int = PLENTY) -> None:
        shape = (1, 1, pages + 1, 256, 4)
        self.store = PageStore(KINDS["fp16"], ((torch.rand(shape).half(), torch.rand(shape).half()),))
        self.pool, self.pages = PagePool(pages + 1, ROOT), list[Page]()
        parent = ROOT
        for number in range(pages):
            self.pages.append(self.pool.take())
            self.pool.extend(self.pages[-1], parent, [number] * 256)
            parent = self.pages[-1].end
        self.pages.append(self.pool.take())
        self.pool.extend(self.pages[-1], parent, [7] * 100)
        self.files = PageFiles(folder, ROOT, page_layout(self.store), cap, queue_bytes=queue_bytes)
        assert self.files.flush(WAIT)
        self.archive = PageArchive(self.pool, self.store, self.files, cap)

    def keep(self) -> None:
        self.archive.keep(self.pages)
        assert self.files.flush(WAIT)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Slots that were copied from the device."""
    made: list[int] = []
    read = PageStore.read

    def counted(store: PageStore, slot: int, rows: int) -> tuple[torch.Tensor, ...]:
        made.append(slot)
        return read(store, slot, rows)

    monkeypatch.setattr(PageStore, "read", counted)
    return made


def test_a_page_that_is_on_the_disk_is_not_copied_again_but_counts_as_used(tmp_path: Path, copies: list[int]) -> None:
    sequence = Sequence(tmp_path, 48)
    sequence.keep()
    assert (len(copies), sequence.files.counts.written) == (49, 49)
    copies.clear()
    long_ago = time.time() - 10_000
    for file in tmp_path.rglob("*.safetensors"):
        os.utime(file, (long_ago, long_ago))
    sequence.keep()
    assert copies == []
    assert all(file.stat().st_mtime > long_ago + 5_000 for file in tmp_path.rglob("*.safetensors"))
    assert sequence.files.close(WAIT)
    again = Sequence(tmp_path, 48)
    again.keep()
    assert copies == []
    assert again.files.close(WAIT)


def test_files_that_are_gone_are_noticed_and_written_again(tmp_path: Path) -> None:
    sequence = Sequence(tmp_path, 5)
    sequence.keep()
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    sequence.keep()
    sequence.keep()
    assert len(list(tmp_path.rglob("*.safetensors"))) == 6
    assert sequence.files.close(WAIT)


def test_nothing_is_copied_for_a_disk_that_takes_nothing(tmp_path: Path, copies: list[int]) -> None:
    (tmp_path / "pages").write_text("in its place")
    sequence = Sequence(tmp_path, 5)
    sequence.archive.keep(sequence.pages[:1])
    assert sequence.files.flush(WAIT)
    assert sequence.files.trouble is not None
    copies.clear()
    sequence.keep()
    assert copies == []
    assert sequence.files.close(WAIT)


def test_nothing_is_copied_where_computing_is_faster(tmp_path: Path, copies: list[int]) -> None:
    sequence = Sequence(tmp_path, 5)
    sequence.files.pays = lambda size, tokens: False  # type: ignore[method-assign]
    sequence.keep()
    assert copies == []
    assert sequence.files.close(WAIT)


def test_behind_the_first_page_without_room_in_the_queue_nothing_is_written(
    tmp_path: Path, copies: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = Sequence(tmp_path, 5, queue_bytes=30_000)
    size, go = sequence.files.page_bytes(), threading.Event()
    assert 2 * size <= 30_000 < 3 * size
    write = sequence.files._own.write
    monkeypatch.setattr(sequence.files._own, "write", lambda page: (go.wait(WAIT), write(page)))
    sequence.archive.keep(sequence.pages)
    go.set()
    assert sequence.files.flush(WAIT)
    # The last page is shorter, but of no use without those before it.
    assert len(copies) == 2
    assert (sequence.files.counts.written, sequence.files.counts.skipped) == (2, 4)
    go.clear()  # else a page may be written while others come, and there is room for one more
    sequence.archive.keep(sequence.pages)
    go.set()
    assert sequence.files.flush(WAIT)
    assert sequence.files.counts.written == 4
    assert sequence.files.close(WAIT)


def test_a_conversation_above_the_cap_keeps_its_beginning_and_is_not_written_turn_after_turn(tmp_path: Path) -> None:
    sequence = Sequence(tmp_path, 8, cap=4 * 12_288)
    for _ in range(3):
        sequence.keep()
    assert (sequence.files.counts.written, sequence.files.counts.evicted) == (4, 0)
    assert all(sequence.files.full(page.end) for page in sequence.pages[:4])
    assert sequence.files.close(WAIT)


SHORTAGES = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 32.00 MiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
]


@pytest.mark.parametrize("error", SHORTAGES, ids=lambda error: type(error).__name__)
def test_without_memory_a_page_is_not_kept_and_not_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    sequence = Sequence(tmp_path, 3)
    with monkeypatch.context() as patch:
        patch.setattr(PageStore, "read", fail)
        sequence.keep()
    assert sequence.files.counts.written == 0
    sequence.keep()
    tokens = [token for page in sequence.pages for token in page.ids]
    pool = PagePool(6, ROOT)
    archive = PageArchive(pool, sequence.store, sequence.files, PLENTY)
    with monkeypatch.context() as patch:
        patch.setattr(PageStore, "write", fail)
        archive.restore(tokens, len(tokens), lambda: False)
    assert pool.free == 6
    archive.restore(tokens, len(tokens), lambda: False)
    assert pool.find(tokens, len(tokens)).tokens == len(tokens)
    assert sequence.files.close(WAIT)


def test_another_error_is_not_taken_for_a_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    sequence = Sequence(tmp_path, 3)
    monkeypatch.setattr(PageStore, "read", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        sequence.keep()
    assert sequence.files.close(WAIT)


def test_what_is_read_from_a_store_is_no_view_of_it() -> None:
    store = PageStore(KINDS["fp32"], ((torch.zeros(1, 1, 2, 256, 4), torch.zeros(1, 1, 2, 256, 4)),))
    taken = store.read(1, 256)
    for part in store.cards[0]:
        part.fill_(1.0)
    assert all(not tensor.any() and tensor.is_contiguous() for tensor in taken)


# Through the engine.


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    save_random_llama(path, max_position_embeddings=4096)
    return path


def open_engine(model_dir: Path, folder: Path, most: int = PLENTY) -> LocalEngine:
    return load(model_dir, device="cpu", kv_cache="fp32", page_folder=folder, page_bytes=most)


def ask(engine: LocalEngine, prompt: list[int]) -> int:
    """Tokens of the prompt that were there."""
    return finish(engine.generate(GenerationRequest(prompt, max_new_tokens=1))).stats.cached_tokens


def test_zero_bytes_remove_what_earlier_runs_left_and_no_folder_leaves_it(model_dir: Path, tmp_path: Path) -> None:
    first = open_engine(model_dir, tmp_path)
    ask(first, ids(1, 600))
    first.close()
    other = tmp_path / "pages" / bytes(16).hex() / "of-another-version.safetensors"
    other.parent.mkdir()
    other.write_bytes(b"page")
    mine = tmp_path / "pages" / "notes.safetensors"
    mine.write_bytes(b"mine")
    load(model_dir, device="cpu", kv_cache="fp32")
    assert len(list(tmp_path.rglob("*.safetensors"))) == 4 + 1
    engine = open_engine(model_dir, tmp_path, most=0)
    end = time.monotonic() + WAIT
    while len(list((tmp_path / "pages").iterdir())) > 1 and time.monotonic() < end:
        time.sleep(0.01)
    assert list((tmp_path / "pages").iterdir()) == [mine]
    assert ask(engine, ids(1, 600)) == 0
    assert engine.cache_report().disk is None


def test_other_arithmetic_finds_no_old_pages(model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_engine(model_dir, tmp_path)
    ask(first, ids(1, 600))
    first.close()
    assert ask(open_engine(model_dir, tmp_path), ids(1, 600)) == 599
    monkeypatch.setattr(engine_module, "KEYS_AND_VALUES", "later")
    assert ask(open_engine(model_dir, tmp_path), ids(1, 600)) == 0
