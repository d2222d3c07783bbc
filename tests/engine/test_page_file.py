"""One file of a page: what safetensors makes of it, and that no damage gets through."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

from exlchat.engine.kv.disk.file import HEADER_BYTES, PageLayout, PageName, PageTensor, StoredPage
from tests.engine.random_pages import (
    CODED,
    OTHER_ROOT,
    ROOT,
    chain,
    hash_of,
    make_page,
    opened,
    path_of,
    plain_layout,
    put_all,
    same,
)

Harm = Callable[[bytes], bytes]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [1, 7, 255, 256])
def test_a_page_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype, tokens: int) -> None:
    layout = plain_layout(dtype, 3)
    page = make_page(range(1000, 1000 + tokens), layout=layout)
    with opened(tmp_path, layout=layout) as files:
        put_all(files, [page])
        assert same(files.read(hash_of(page)), page)
    with opened(tmp_path, layout=layout) as files:
        assert same(files.read(hash_of(page)), page)


def test_not_a_number_and_every_bit_of_a_float_survive(tmp_path: Path) -> None:
    layout = PageLayout((PageTensor("keys", torch.float16, 1, 1, 256),))
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    page = StoredPage(ROOT, tuple(range(256)), (every.view(torch.float16).view(1, 1, 256, 256),))
    with opened(tmp_path, layout=layout) as files:
        put_all(files, [page])
        found = files.read(hash_of(page))
    assert found is not None
    assert torch.equal(found.tensors[0].view(torch.int16).flatten(), every)


def test_tensors_of_several_dtypes_are_aligned_whatever_their_sizes(tmp_path: Path) -> None:
    page = make_page(range(7), layout=CODED)
    with opened(tmp_path, layout=CODED) as files:
        put_all(files, [page])
        found = files.read(hash_of(page))
    assert found is not None
    assert same(found, page)
    assert all(tensor.data_ptr() % tensor.dtype.itemsize == 0 for tensor in found.tensors)


def test_safetensors_reads_the_same_tensors(tmp_path: Path) -> None:
    page = make_page(range(-3, 4), layout=CODED)
    with opened(tmp_path, layout=CODED) as files:
        put_all(files, [page])
    with safe_open(str(path_of(tmp_path, page)), framework="pt") as reader:
        metadata = reader.metadata()
        assert metadata["root"] == ROOT.hex()
        assert metadata["ids"] == b"".join(number.to_bytes(8, "little", signed=True) for number in range(-3, 4)).hex()
        for tensor, expected in zip(CODED.tensors, page.tensors, strict=True):
            assert torch.equal(reader.get_tensor(tensor.name), expected)


def test_a_view_of_a_larger_tensor_is_written_as_it_looks(tmp_path: Path) -> None:
    layout = plain_layout()
    pools = [torch.randn(2, 2, 512, 4).half() for _ in range(2)]
    page = StoredPage(ROOT, tuple(range(100)), tuple(pool[:, :, 256:356] for pool in pools))
    with opened(tmp_path) as files:
        put_all(files, [page])
        assert same(files.read(hash_of(page)), page)
    assert path_of(tmp_path, page).stat().st_size == layout.file_bytes(100)


def flip(place: int) -> Harm:
    return lambda content: content[:place] + bytes([content[place] ^ 0x10]) + content[place + 1 :]


def cut(length: int) -> Harm:
    return lambda content: content[:length]


def in_header(change: Callable[[dict[str, dict[str, object]]], None]) -> Harm:
    """Changes the JSON of the header, and writes it as an exlchat would, in the same length."""

    def harm(content: bytes) -> bytes:
        header = json.loads(content[8:HEADER_BYTES])
        change(header)
        return (
            content[:8]
            + json.dumps(header, separators=(",", ":")).encode().ljust(HEADER_BYTES - 8)
            + content[HEADER_BYTES:]
        )

    return harm


def in_metadata(key: str, value: object) -> Harm:
    return in_header(lambda header: header["__metadata__"].update({key: value}))


def length_says(number: int) -> Harm:
    return lambda content: number.to_bytes(8, "little") + content[8:]


def nested(content: bytes) -> bytes:
    return content[:8] + b"[" * (HEADER_BYTES - 8) + content[HEADER_BYTES:]


def rewritten_by_the_library(content: bytes) -> bytes:
    """The same tensors, without any metadata, at the same length."""
    return save({"keys": torch.zeros(2, 2, 256, 4).half()})[: len(content)].ljust(len(content))


DAMAGE: dict[str, Harm] = {
    "empty": cut(0),
    "cut in the length": cut(5),
    "cut in the header": cut(300),
    "cut behind the header": cut(HEADER_BYTES),
    "cut in the data": cut(HEADER_BYTES + 1000),
    "without its last byte": lambda content: content[:-1],
    "with a byte more": lambda content: content + b"\0",
    "all zeros, as after a power cut": lambda content: bytes(len(content)),
    "zeros at the end": lambda content: content[:-4096] + bytes(4096),
    "header shorter than said": length_says(HEADER_BYTES - 9),
    "header of zero bytes": length_says(0),
    "header longer than the file": length_says(2**40),
    "header of 2^64 - 1 bytes": length_says(2**64 - 1),
    "no JSON": lambda content: content[:8] + b"\xff" * (HEADER_BYTES - 8) + content[HEADER_BYTES:],
    "JSON too deep": nested,
    "no metadata": in_header(lambda header: header.pop("__metadata__")),
    "metadata of another kind": in_header(lambda header: header.update(__metadata__=["ids"])),  # type: ignore[call-overload]
    "no ids": in_header(lambda header: header["__metadata__"].pop("ids")),
    "no digest": in_header(lambda header: header["__metadata__"].pop("digest")),
    "ids of another kind": in_metadata("ids", 5),
    "ids that are no digits": in_metadata("ids", "zz" * 8 * 256),
    "other ids": in_metadata("ids", "00" * 8 * 256),
    "fewer ids": in_metadata("ids", "00" * 8),
    "half an id": in_metadata("ids", "00" * 4),
    "no id": in_metadata("ids", ""),
    "another version": in_metadata("version", "2"),
    "another root": in_metadata("root", OTHER_ROOT.hex()),
    "another parent": in_metadata("parent", OTHER_ROOT.hex()),
    "another digest": in_metadata("digest", "00" * 16),
    "a tensor less": in_header(lambda header: header.pop("values")),
    "another dtype": in_header(lambda header: header["keys"].update(dtype="BF16")),
    "another shape": in_header(lambda header: header["keys"].update(shape=[2, 2, 4, 256])),
    "a shape of 2^62": in_header(lambda header: header["keys"].update(shape=[2**62, 2, 256, 4])),
    "offsets behind the end": in_header(lambda header: header["keys"].update(data_offsets=[0, 2**40])),
    "tensors that overlap": in_header(lambda header: header["values"].update(header["keys"])),
    "no page": rewritten_by_the_library,
    "text": lambda content: b"<html>not found</html>",
}
FLIPS = (*range(0, 700, 13), 4000, 4711, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 4096, -1)
DAMAGE |= {f"bit flipped at {place}": flip(place if place >= 0 else HEADER_BYTES + 16383) for place in FLIPS}


@pytest.mark.parametrize("harm", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_counted_and_removed_and_gives_nothing(tmp_path: Path, harm: Harm) -> None:
    good, bad = chain(2)
    with opened(tmp_path) as files:
        put_all(files, [good, bad])
    path = path_of(tmp_path, bad)
    content = path.read_bytes()
    assert harm(content) != content
    path.write_bytes(harm(content))
    with opened(tmp_path) as files:
        assert files.read(hash_of(bad)) is None
        assert files.counts.damaged == 1
        assert not path.exists()
        assert not files.full(hash_of(bad))
        assert same(files.read(hash_of(good)), good)
        put_all(files, [bad])
        assert same(files.read(hash_of(bad)), bad)


def test_files_with_each_others_names_give_nothing(tmp_path: Path) -> None:
    one, other = make_page(range(256)), make_page(range(256, 512))
    with opened(tmp_path) as files:
        put_all(files, [one, other])
    third = tmp_path / "third"
    first, second = path_of(tmp_path, one), path_of(tmp_path, other)
    first.rename(third)
    second.rename(first)
    third.rename(second)
    with opened(tmp_path) as files:
        assert list(files.read_many([hash_of(one), hash_of(other)])) == [None, None]
        assert files.counts.damaged == 2


@pytest.mark.parametrize(
    "wrong", [lambda name: PageName(OTHER_ROOT, name.hash, name.tokens), lambda name: PageName(name.parent, ROOT, 256)]
)
def test_a_name_that_lies_gives_nothing(tmp_path: Path, wrong: Callable[[PageName], PageName]) -> None:
    page = make_page(range(256))
    with opened(tmp_path) as files:
        put_all(files, [page])
    name = wrong(PageName.of(page))
    path_of(tmp_path, page).rename(path_of(tmp_path, page).parent / str(name))
    with opened(tmp_path) as files:
        assert files.read(name.hash) is None
        assert files.counts.damaged == 1


def test_a_page_of_another_root_or_layout_gives_nothing(tmp_path: Path) -> None:
    page = make_page(range(256))
    with opened(tmp_path) as files:
        put_all(files, [page])
    elsewhere = path_of(tmp_path, page, OTHER_ROOT)
    elsewhere.parent.mkdir()
    path_of(tmp_path, page).rename(elsewhere)
    with opened(tmp_path, OTHER_ROOT) as files:
        assert files.read(hash_of(page)) is None
        assert files.counts.damaged == 1
    with opened(tmp_path) as files:
        put_all(files, [page])
    # The same number of bytes, so that only the header can tell.
    with opened(tmp_path, layout=plain_layout(torch.float32, 2)) as files:
        assert files.read(hash_of(page)) is None
        assert files.counts.damaged == 1


def test_what_is_no_file_gives_nothing_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    pipe, link, folder = chain(3)
    path_of(tmp_path, pipe).parent.mkdir(parents=True)
    os.mkfifo(path_of(tmp_path, pipe))
    path_of(tmp_path, link).symlink_to("/dev/zero")
    path_of(tmp_path, folder).mkdir()
    with opened(tmp_path) as files:
        assert list(files.read_many(hash_of(page) for page in (pipe, link, folder))) == [None] * 3
        assert files.counts.damaged == 3
        assert not path_of(tmp_path, pipe).exists()


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a.safetensors",
        f"{'0' * 32}-{'0' * 32}-0.safetensors",
        f"{'0' * 32}-{'0' * 32}-257.safetensors",
        f"{'0' * 32}-{'0' * 32}-٣.safetensors",
        f"{'A' * 32}-{'0' * 32}-1.safetensors",
        f"{'0' * 32}-{'0' * 32}-1.safetensors.tmp",
    ],
)
def test_other_names_are_no_pages(name: str) -> None:
    assert PageName.parse(name) is None


def test_what_is_no_page_is_refused_at_once(tmp_path: Path) -> None:
    good = make_page(range(5))
    with opened(tmp_path) as files:
        for wrong in (
            StoredPage(good.parent, (), good.tensors),
            StoredPage(good.parent, good.ids[:4], good.tensors),
            StoredPage(good.parent[:15], good.ids, good.tensors),
            StoredPage(good.parent, good.ids, good.tensors[:1]),
            StoredPage(good.parent, good.ids, tuple(tensor.float() for tensor in good.tensors)),
        ):
            with pytest.raises(ValueError):
                files.put(wrong)


@pytest.mark.parametrize(
    "tensors",
    [
        (),
        (PageTensor("keys", torch.bfloat16, 1, 1, 1),),
        (PageTensor("keys", torch.uint8, 0, 1, 1),),
        (PageTensor('k"', torch.uint8, 1, 1, 1),),
        (PageTensor("keys", torch.uint8, 1, 1, 1),) * 2,
    ],
)
def test_a_layout_that_no_header_holds_is_refused(tensors: tuple[PageTensor, ...]) -> None:
    with pytest.raises(ValueError):
        PageLayout(tensors)


def test_the_longest_header_fits(tmp_path: Path) -> None:
    layout = PageLayout(tuple(PageTensor(letter * 32, torch.float32, 99, 9, 9) for letter in "abcdefgh"))
    page = make_page([2**63 - 1] * 256, layout=layout)
    with opened(tmp_path, layout=layout) as files:
        put_all(files, [page])
        assert same(files.read(hash_of(page)), page)
