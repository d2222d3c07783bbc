"""The store of pages on disk: what is found again, what goes, and what it does when the disk refuses."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exlchat.engine.kv.disk.file import StoredPage
from exlchat.engine.kv.disk.index import PageIndex
from exlchat.engine.kv.disk.root import PageRoot
from exlchat.engine.kv.disk.store import PageFiles
from tests.chat.unprivileged import assert_unprivileged, public_folder
from tests.engine.random_pages import (
    OTHER_ROOT,
    PLENTY,
    ROOT,
    SMALL,
    WAIT,
    chain,
    hash_of,
    make_page,
    opened,
    path_of,
    put_all,
    same,
)

PAGE = SMALL.file_bytes(256)


def files_below(cache: Path) -> set[str]:
    return {path.name for path in cache.rglob("*") if path.is_file()}


def age(cache: Path, page: StoredPage, seconds: float, root: bytes = ROOT) -> None:
    """As if it had been used that long ago."""
    then = time.time() - seconds
    os.utime(path_of(cache, page, root), (then, then))


def there(files: PageFiles, pages: list[StoredPage]) -> list[bool]:
    return [files.full(hash_of(page)) for page in pages]


# Finding and reading.


def test_pages_come_in_the_order_they_were_asked_for_with_gaps(tmp_path: Path) -> None:
    pages = chain(30)
    with opened(tmp_path) as files:
        put_all(files, pages[::2])
        found = list(files.read_many(hash_of(page) for page in pages))
    expected = [page if index % 2 == 0 else None for index, page in enumerate(pages)]
    assert all(same(*pair) for pair in zip(found, expected, strict=True))


def test_reading_can_be_given_up(tmp_path: Path) -> None:
    pages = chain(30)
    with opened(tmp_path) as files:
        put_all(files, pages)
        reading = files.read_many(map(hash_of, pages))
        assert same(next(reading), pages[0])
        reading.close()
        assert files.counts.read < 30


def test_nothing_is_made_before_the_first_page(tmp_path: Path) -> None:
    with opened(tmp_path / "cache") as files:
        assert files.read(hash_of(make_page([1]))) is None
        assert not files.full(ROOT)
        assert files.partials(ROOT) == ()
    assert not (tmp_path / "cache").exists()


def test_a_store_with_a_cap_of_zero_is_off(tmp_path: Path) -> None:
    page = make_page(range(256))
    with opened(tmp_path) as files:
        put_all(files, [page])
    with opened(tmp_path, cap=0) as files:
        assert not files.on
        assert not files.put(make_page([1]))
        assert files.read(hash_of(page)) is None
        assert not files.full(hash_of(page))
        assert files.partials(ROOT) == ()
        assert list(files.read_many([hash_of(page)])) == [None]
    assert path_of(tmp_path, page).exists()


def test_partly_filled_pages_are_found_by_their_parent(tmp_path: Path) -> None:
    first = make_page(range(256))
    short, other = make_page([1, 2, 3], hash_of(first)), make_page([1, 5], hash_of(first))
    with opened(tmp_path) as files:
        put_all(files, [first, short, other])
    for _ in range(2):
        with opened(tmp_path) as files:
            found = {candidate.hash: candidate.ids for candidate in files.partials(hash_of(first))}
            assert found == {hash_of(short): (1, 2, 3), hash_of(other): (1, 5)}
            assert files.partials(ROOT) == ()
            assert not files.full(hash_of(short))


def test_a_partly_filled_page_with_other_ids_than_its_name_says_is_no_candidate(tmp_path: Path) -> None:
    short = make_page([1, 2, 3])
    with opened(tmp_path) as files:
        put_all(files, [short])
    path = path_of(tmp_path, short)
    path.write_bytes(path.read_bytes().replace(b"0300000000000000", b"0400000000000000"))
    with opened(tmp_path) as files:
        assert files.partials(ROOT) == ()
        assert files.counts.damaged == 1
    assert not path.exists()


def test_opening_does_not_wait_for_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages, go, real = chain(3), threading.Event(), os.scandir
    with opened(tmp_path) as files:
        put_all(files, pages)

    def slow(folder: Path) -> object:
        assert go.wait(WAIT)
        return real(folder)

    monkeypatch.setattr(os, "scandir", slow)
    files = PageFiles(tmp_path, ROOT, SMALL, PLENTY)
    assert files.counts.files == 0
    assert files.put(pages[0])
    assert not files.flush(0.01)
    go.set()
    assert there(files, pages) == [True] * 3
    assert files.close(WAIT)
    assert (files.counts.files, files.counts.written) == (3, 0)


def test_a_lookup_touches_no_file_but_lists_names(tmp_path: Path) -> None:
    folder = path_of(tmp_path, make_page([1])).parent
    folder.mkdir(parents=True)
    for number in range(10_000):
        (folder / f"{number:032x}-{number + 1:032x}-256.safetensors").touch()
    with opened(tmp_path) as files:
        assert files.full((5000).to_bytes(16, "big"))
        assert files.counts.files == 10_000


# Replacing and evicting.


def test_a_longer_page_replaces_its_own_beginnings_only(tmp_path: Path) -> None:
    old, fork, elsewhere = make_page(range(100)), make_page([0, 7]), make_page(range(50), OTHER_ROOT)
    with opened(tmp_path) as files:
        put_all(files, [old, fork, elsewhere])
    with opened(tmp_path) as files:
        longer = make_page(range(200))
        put_all(files, [longer])
        assert {page.hash for page in files.partials(ROOT)} == {hash_of(longer), hash_of(fork)}
        put_all(files, [make_page(range(256))])
        assert {page.hash for page in files.partials(ROOT)} == {hash_of(fork)}
        assert {page.hash for page in files.partials(OTHER_ROOT)} == {hash_of(elsewhere)}
        assert files.counts.files == len(files_below(tmp_path)) == 3
        assert files.counts.evicted == 0


def test_a_known_page_is_not_written_again_but_counts_as_used(tmp_path: Path) -> None:
    page = make_page(range(256))
    with opened(tmp_path) as files:
        put_all(files, [page])
        age(tmp_path, page, 1000)
        inode = path_of(tmp_path, page).stat().st_ino
        put_all(files, [page])
        assert files.counts.written == 1
    assert path_of(tmp_path, page).stat().st_ino == inode
    assert time.time() - path_of(tmp_path, page).stat().st_mtime < 100


def test_what_was_not_used_for_longest_goes_first_and_reading_is_use(tmp_path: Path) -> None:
    pages = [make_page(range(first, first + 256)) for first in range(5)]
    with opened(tmp_path, cap=4 * PAGE) as files:
        put_all(files, pages[:4])
        for page, seconds in zip(pages, (400, 300, 200, 100), strict=False):
            age(tmp_path, page, seconds)
        assert files.read(hash_of(pages[0])) is not None
        put_all(files, pages[4:])
        assert there(files, pages) == [True, False, True, True, True]
        assert files.counts.evicted == 1
        assert files.counts.bytes == 4 * PAGE


def test_a_conversation_goes_from_its_end(tmp_path: Path) -> None:
    old, used = chain(4), chain(3, 5000)
    with opened(tmp_path, cap=7 * PAGE) as files:
        put_all(files, old + used)
        for page in old:
            age(tmp_path, page, 500)
        # Its end was used last, so its beginning is in use too.
        for page, seconds in zip(used, (900, 800, 1), strict=True):
            age(tmp_path, page, seconds)
        put_all(files, [make_page(range(9000, 9256)), make_page(range(9001, 9257))])
        assert there(files, old) == [True, True, False, False]
        assert there(files, used) == [True, True, True]


def test_pages_that_have_lost_their_beginning_go_first(tmp_path: Path) -> None:
    pages, other = chain(3), make_page(range(7, 263))
    with opened(tmp_path, cap=3 * PAGE) as files:
        put_all(files, [pages[0], pages[2], other])
        for page, seconds in zip((pages[0], pages[2], other), (300, 10, 200), strict=True):
            age(tmp_path, page, seconds)
        put_all(files, [make_page(range(8, 264))])
        assert there(files, [pages[0], pages[2], other]) == [True, False, True]


def test_the_cap_is_over_all_roots_and_empty_folders_go(tmp_path: Path) -> None:
    other = [make_page(range(256), OTHER_ROOT), make_page(range(1, 257), OTHER_ROOT)]
    with opened(tmp_path, OTHER_ROOT) as files:
        put_all(files, other)
        files.note_prefill(1000, 1.0)
    folder = path_of(tmp_path, other[0], OTHER_ROOT).parent
    assert (folder / "rates.json").exists()
    for page in other:
        age(tmp_path, page, 500, OTHER_ROOT)
    with opened(tmp_path, cap=2 * PAGE) as files:
        assert files.counts.files == 2
        put_all(files, [make_page(range(256))])
        assert len(list(folder.glob("*.safetensors"))) == 1
        put_all(files, [make_page(range(1, 257))])
        assert not folder.exists()
        assert files.counts.evicted == 2


def test_pages_read_together_stay_in_order_of_use(tmp_path: Path) -> None:
    pages = chain(12)
    with opened(tmp_path) as files:
        put_all(files, pages)
        assert all(files.read_many(map(hash_of, pages)))
    used = [path_of(tmp_path, page).stat().st_mtime_ns for page in pages]
    assert used == sorted(used, reverse=True)
    assert len(set(used)) == len(used)


def test_what_others_write_meanwhile_is_noticed(tmp_path: Path) -> None:
    cap = 32 * PAGE
    with opened(tmp_path, cap=cap) as files, opened(tmp_path, OTHER_ROOT, cap=cap) as other:
        put_all(other, [make_page(range(first, first + 256), OTHER_ROOT) for first in range(32)])
        put_all(files, chain(10))
        assert files.counts.evicted > 0
        assert len(files_below(tmp_path)) <= 34


def test_a_smaller_cap_than_before_is_held_from_the_opening_on(tmp_path: Path) -> None:
    with opened(tmp_path) as files:
        put_all(files, chain(10))
    with opened(tmp_path, cap=3 * PAGE) as files:
        assert files.counts.bytes == 3 * PAGE
        assert len(files_below(tmp_path)) == 3
        assert there(files, chain(10)) == [True] * 3 + [False] * 7
        put_all(files, [make_page([1])])
        assert files.counts.bytes <= 3 * PAGE
        assert files.full(hash_of(chain(1)[0]))


def test_a_page_above_the_cap_is_skipped_and_costs_no_other(tmp_path: Path) -> None:
    with opened(tmp_path, cap=PAGE - 1) as files:
        put_all(files, [make_page([1]), make_page(range(256))])
        assert (files.counts.written, files.counts.skipped, files.counts.evicted) == (1, 1, 0)
        assert files.trouble is None


def test_what_is_no_page_file_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "pages" / "notes").mkdir(parents=True)
    for mine in (tmp_path / "pages" / "a.safetensors", tmp_path / "pages" / "notes" / "b.safetensors"):
        mine.write_bytes(bytes(100_000))
    with opened(tmp_path, cap=PAGE) as files:
        put_all(files, chain(3))
    assert {"a.safetensors", "b.safetensors"} <= files_below(tmp_path)


# The queue.


def test_put_never_waits_and_a_full_queue_skips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, began = threading.Event(), threading.Event()
    real = os.replace

    def slow(source: str, target: Path) -> None:
        began.set()
        assert go.wait(WAIT)
        real(source, target)

    monkeypatch.setattr(os, "replace", slow)
    pages = chain(5)
    with opened(tmp_path, queue_bytes=2 * PAGE) as files:
        assert files.put(pages[0])
        assert began.wait(WAIT)
        taken = [files.put(page) for page in pages[1:]]
        assert taken == [True, False, False, False]
        assert files.put(pages[1])
        assert not files.flush(0.01)
        go.set()
        assert files.flush(WAIT)
        assert (files.counts.written, files.counts.skipped) == (2, 3)
        put_all(files, pages[2:4])
        assert files.counts.written == 4


def test_a_closed_store_writes_nothing_and_still_reads(tmp_path: Path) -> None:
    pages = chain(2)
    with opened(tmp_path) as files:
        put_all(files, pages[:1])
        assert files.close(WAIT)
        assert not files.put(pages[1])
        assert same(files.read(hash_of(pages[0])), pages[0])


# A disk that refuses.


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("place", ["os.replace", "tempfile.mkstemp", "os.fdopen"])
def test_a_full_disk_stops_writing_quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    pages = chain(3)
    with opened(tmp_path) as files:
        put_all(files, pages[:1])
        with monkeypatch.context() as patch:
            patch.setattr(place, lambda *args, **names: full_disk())
            assert files.put(pages[1])
            assert files.flush(WAIT)
        assert files.trouble is not None
        assert "no space left on device" in files.trouble
        assert "free space" in files.trouble
        assert "\n" not in files.trouble
        assert not files.put(pages[2])
        assert files.put(pages[0])
        assert same(files.read(hash_of(pages[0])), pages[0])
        assert not files.full(hash_of(pages[1]))
        assert (files.counts.written, files.counts.skipped) == (1, 2)
    if place != "os.fdopen":
        assert not any(name.endswith(".tmp") for name in files_below(tmp_path))


def test_a_disk_that_really_is_full(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if sys.platform != "linux" or os.getuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        with opened(tmp_path) as files:
            for page in chain(8):
                files.put(page)
            assert files.flush(WAIT)
            assert files.trouble is not None
            assert "no space left" in files.trouble
            written = files.counts.written
            assert 0 < written < 8
            found = list(files.read_many(map(hash_of, chain(8))))
            expected = [*chain(8)[:written], *[None] * (8 - written)]
            assert all(same(*pair) for pair in zip(found, expected, strict=True))
        assert len(files_below(tmp_path)) in {written, written + 1}
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_read_only_folder_is_read_from() -> None:
    with public_folder() as cache:
        pages = chain(2)
        with opened(cache) as files:
            put_all(files, pages[:1])
        folder = path_of(cache, pages[0]).parent
        path_of(cache, pages[0]).chmod(0o444)
        for place in (folder, cache / "pages"):
            place.chmod(0o555)

        def check() -> None:
            with opened(cache) as files:
                assert same(files.read(hash_of(pages[0])), pages[0])
                assert files.put(pages[1])
                assert files.flush(WAIT)
                assert files.trouble is not None
                assert "permission denied" in files.trouble
                assert "mend its permissions" in files.trouble
                assert str(folder) in files.trouble

        assert_unprivileged(check)


def test_a_file_that_may_not_be_read_gives_nothing() -> None:
    with public_folder() as cache:
        page = make_page(range(256))
        with opened(cache) as files:
            put_all(files, [page])
        path_of(cache, page).chmod(0o000)
        path_of(cache, page).parent.chmod(0o755)
        (cache / "pages").chmod(0o755)

        def check() -> None:
            with opened(cache) as files:
                assert files.read(hash_of(page)) is None
                assert not files.full(hash_of(page))
                assert files.trouble is None
                assert files.counts.damaged == 0

        assert_unprivileged(check)
        assert path_of(cache, page).exists()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EIO])
def test_a_file_that_cannot_be_opened_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    page = make_page(range(256))

    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with opened(tmp_path) as files:
        put_all(files, [page])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", fail)
            assert files.read(hash_of(page)) is None
        assert files.counts.damaged == 0
        # Too many open files say nothing about this one.
        assert files.full(hash_of(page)) == (number != errno.EIO)
    assert path_of(tmp_path, page).exists()


def test_a_file_in_the_place_of_the_folder_is_trouble(tmp_path: Path) -> None:
    (tmp_path / "pages").write_text("mine")
    with opened(tmp_path) as files:
        assert files.put(make_page([1]))
        assert files.flush(WAIT)
        assert files.trouble is not None
    assert (tmp_path / "pages").read_text() == "mine"


def test_a_folder_that_vanishes_is_trouble_and_that_of_a_root_is_made_again(tmp_path: Path) -> None:
    pages = chain(3)
    with opened(tmp_path) as files:
        put_all(files, pages[:1])
        path_of(tmp_path, pages[0]).unlink()
        path_of(tmp_path, pages[0]).parent.rmdir()
        assert files.read(hash_of(pages[0])) is None
        assert files.counts.damaged == 0
        put_all(files, pages[1:2])
        assert files.full(hash_of(pages[1]))
        path_of(tmp_path, pages[1]).unlink()
        path_of(tmp_path, pages[1]).parent.rmdir()
        (tmp_path / "pages").rmdir()
        assert files.put(pages[2])
        assert files.flush(WAIT)
        assert files.trouble is not None
    assert list(tmp_path.iterdir()) == []


def test_old_temporary_files_and_empty_roots_go_at_opening(tmp_path: Path) -> None:
    folder, empty = path_of(tmp_path, make_page([1])).parent, tmp_path / "pages" / OTHER_ROOT.hex()
    folder.mkdir(parents=True)
    empty.mkdir()
    old, new = folder / ".old.tmp", folder / ".new.tmp"
    for file in (old, new):
        file.write_bytes(b"half a page")
    os.utime(old, (time.time() - 7200,) * 2)
    with opened(tmp_path):
        assert not old.exists()
        assert new.exists()
        assert not empty.exists()


def test_without_memory_a_page_is_not_read_but_stays(tmp_path: Path) -> None:
    page = make_page(range(256))
    with opened(tmp_path) as files:
        put_all(files, [page])

    def none(size: int) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory")

    files = PageFiles(tmp_path, ROOT, SMALL, PLENTY, make_buffer=none)
    assert files.read(hash_of(page)) is None
    assert files.full(hash_of(page))
    assert files.close(WAIT)


def test_pages_are_read_into_the_callers_memory(tmp_path: Path) -> None:
    page = make_page(range(256))
    buffers = []

    def mine(size: int) -> torch.Tensor:
        buffers.append(torch.empty(size + 100, dtype=torch.uint8))
        return buffers[-1]

    files = PageFiles(tmp_path, ROOT, SMALL, PLENTY, make_buffer=mine)
    put_all(files, [page])
    found = files.read(hash_of(page))
    assert files.close(WAIT)
    assert found is not None
    assert same(found, page)
    assert all(
        tensor.untyped_storage().data_ptr() == buffers[0].untyped_storage().data_ptr() for tensor in found.tensors
    )


def test_only_the_user_may_read_what_was_said(tmp_path: Path) -> None:
    page = make_page([1])
    with opened(tmp_path / "cache") as files:
        put_all(files, [page])
    path = path_of(tmp_path / "cache", page)
    assert [place.stat().st_mode & 0o077 for place in (path, path.parent, path.parent.parent)] == [0, 0, 0]


def test_a_folder_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages").chmod(0o755)
    with opened(tmp_path) as files:
        put_all(files, [make_page([1])])
    assert (tmp_path / "pages").stat().st_mode & 0o777 == 0o700


def test_rates_are_saved_before_a_slow_disk_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go, write = threading.Event(), PageRoot.write

    def slow(root: PageRoot, page: StoredPage) -> None:
        assert go.wait(WAIT)
        write(root, page)

    with opened(tmp_path) as files:
        put_all(files, chain(1))
        monkeypatch.setattr(PageRoot, "write", slow)
        files.put(chain(2)[1])
        files.note_prefill(1000, 1.0)
        closing = threading.Thread(target=files.close, args=(WAIT,))
        closing.start()
        end = time.monotonic() + WAIT
        while "rates.json" not in files_below(tmp_path) and time.monotonic() < end:
            time.sleep(0.01)
        assert closing.is_alive()
        go.set()
        closing.join(WAIT)
        assert files.counts.written == 2


def test_rates_of_a_first_run_are_saved_where_its_first_page_makes_the_folder(tmp_path: Path) -> None:
    with opened(tmp_path) as files:
        files.note_prefill(1000, 1.0)
        assert files.flush(WAIT)
        put_all(files, chain(1))
    assert "rates.json" in files_below(tmp_path)


# What nobody thought of.


def test_a_folder_that_cannot_be_listed_for_an_unknown_reason_keeps_no_prompt_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("nobody thought of this\nat all")

    monkeypatch.setattr(PageIndex, "scan", fail)
    files = PageFiles(tmp_path, ROOT, SMALL, PLENTY)
    asking = threading.Thread(target=files.full, args=(ROOT,), daemon=True)
    asking.start()
    asking.join(WAIT)
    assert not asking.is_alive()
    assert files.trouble is not None
    assert "nobody thought of this" in files.trouble
    assert "\n" not in files.trouble
    assert not files.put(make_page([1]))
    assert files.close(WAIT)


def test_a_page_that_cannot_be_written_for_an_unknown_reason_is_trouble_and_nothing_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("nobody thought of this")

    with opened(tmp_path) as files:
        put_all(files, chain(1))
        monkeypatch.setattr(PageRoot, "write", fail)
        files.put(chain(2)[1])
        assert files.flush(WAIT)
        assert files.trouble is not None
        assert same(files.read(hash_of(chain(1)[0])), chain(1)[0])


# Two processes.

WRITER = """
import sys
from pathlib import Path
from tests.engine.random_pages import *
cache, first, cap = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
with opened(cache, cap=cap) as files:
    for _ in range(3):
        for start in range(0, 30_000, 3_000):
            pages = chain(4, start + first)
            for page in pages:
                files.put(page)
            for page, found in zip(pages, files.read_many(map(hash_of, pages))):
                assert found is None or same(found, page)
    assert files.flush(WAIT)
    assert files.trouble is None, files.trouble
    assert files.counts.damaged == 0, files.counts
"""


@pytest.mark.parametrize("pages", [1000, 10])
@pytest.mark.sweep(1)
def test_two_processes_on_one_folder_do_no_harm(tmp_path: Path, pages: int) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), first, str(pages * PAGE)]) for first in "01"
    ]
    try:
        assert [process.wait(100) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    with opened(tmp_path, cap=pages * PAGE) as files:
        assert not any(name.endswith(".tmp") for name in files_below(tmp_path))
        for first in (0, 1):
            for page in chain(4, first):
                found = files.read(hash_of(page))
                assert found is None or same(found, page)
        assert files.counts.damaged == 0
        assert 0 < files.counts.files <= pages + 1


# Anything in any order.

IDS = [tuple(range(256)), tuple(range(100)), tuple(range(40)), (7,), tuple(range(1, 257))]
CAP = 6 * PAGE
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 11)),
        st.tuples(st.just("read"), st.integers(0, 11)),
        st.tuples(st.just("harm"), st.integers(0, 11), st.integers(0, 2 * PAGE)),
        st.tuples(st.just("remove"), st.integers(0, 11)),
        st.tuples(st.just("reopen")),
    ),
    max_size=30,
)


def universe() -> list[StoredPage]:
    """Pages behind the root and behind two of these."""
    first = [make_page(ids) for ids in IDS]
    second = [make_page(ids, hash_of(first[0])) for ids in IDS]
    return [*first, *second, *(make_page(ids, hash_of(second[0])) for ids in IDS[:2])]


def harm_file(path: Path, place: int) -> None:
    """Flips a bit, or cuts the file short."""
    content = bytearray(path.read_bytes())
    place %= 2 * len(content)
    if place < len(content):
        content[place] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes(content[: place - len(content)])


class Model:
    """What must be on disk: pages that were put, and neither harmed, removed, replaced nor evicted since."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        self.pages = universe()
        self.whole: set[int] = set()
        self.harmed: set[int] = set()

    def on_disk(self, number: int) -> bool:
        return path_of(self.cache, self.pages[number]).exists()

    def put(self, files: PageFiles, number: int) -> None:
        before, page = files.counts, self.pages[number]
        put_all(files, [page])
        self.harmed = set(filter(self.on_disk, self.harmed))
        # It is not there when it was removed behind the store's back, which believed it had it.
        if number not in self.harmed and self.on_disk(number):
            self.whole.add(number)
        gone = {other for other in self.whole if not self.on_disk(other)}
        replaced = {other for other in gone if self.replaces(page, self.pages[other])}
        assert len(gone - replaced) <= files.counts.evicted - before.evicted
        if files.counts.written > before.written:
            assert not any(self.replaces(page, self.pages[other]) for other in self.whole - gone)
        self.whole -= gone
        assert sum(path.stat().st_size for path in self.cache.rglob("*.safetensors")) <= CAP

    @staticmethod
    def replaces(page: StoredPage, old: StoredPage) -> bool:
        begins = page.ids[: len(old.ids)] == old.ids
        return old.parent == page.parent and len(old.ids) < len(page.ids) and begins

    def harm(self, number: int, place: int) -> None:
        harm_file(path_of(self.cache, self.pages[number]), place)
        self.harmed.add(number)
        self.whole.discard(number)

    def remove(self, number: int) -> None:
        path_of(self.cache, self.pages[number]).unlink()
        self.harmed.discard(number)
        self.whole.discard(number)

    def read(self, files: PageFiles, number: int) -> None:
        found = files.read(hash_of(self.pages[number]))
        assert found is None or same(found, self.pages[number])
        assert (found is not None) == (number in self.whole)
        self.harmed.discard(number)


@given(STEPS)
def test_whatever_happens_a_page_is_right_or_absent(steps: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder))
        files = PageFiles(model.cache, ROOT, SMALL, CAP)
        for what, *numbers in steps:
            match what:
                case "put":
                    model.put(files, numbers[0])
                case "read":
                    model.read(files, numbers[0])
                case "reopen":
                    assert files.close(WAIT)
                    files = PageFiles(model.cache, ROOT, SMALL, CAP)
                case "harm" if model.on_disk(numbers[0]) and numbers[0] not in model.harmed:
                    model.harm(*numbers)
                case "remove" if model.on_disk(numbers[0]):
                    model.remove(numbers[0])
        for number in range(len(model.pages)):
            model.read(files, number)
        assert files.close(WAIT)
        assert files.trouble is None
