"""Names of pages: known answers, and no two sets of parts with one root."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exlchat.engine.kv.hash import pack_ids, page_hash, root_hash, unpack_ids

PARTS = st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), st.text(max_size=5), max_size=4)


def test_the_published_format_gives_the_same_hashes() -> None:
    first = page_hash(b"", range(256))
    assert first.hex() == "06137266f1e5ed8a632506e6ad43c334"
    assert page_hash(first, range(256, 512)).hex() == "7d3746f8f94ac3e8b77a4ba0ab1a8f9a"


def test_a_hash_is_that_of_the_parent_and_of_eight_bytes_an_id() -> None:
    parent = bytes(range(16))
    expected = blake2b(parent + b"\x02\x01" + bytes(6) + b"\xff" * 8, digest_size=16).digest()
    assert page_hash(parent, [0x102, -1]) == expected


@pytest.mark.parametrize("ids", [[2**63], [-(2**63) - 1], [1.5], ["1"]])
def test_an_id_that_is_no_number_of_64_bits_is_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="token ids"):
        page_hash(b"", ids)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=256))
def test_ids_come_back(ids: list[int]) -> None:
    assert unpack_ids(pack_ids(ids)) == tuple(ids)


def test_half_an_id_is_refused() -> None:
    with pytest.raises(ValueError, match="12 bytes"):
        unpack_ids(bytes(12))


def test_a_root_does_not_depend_on_the_order_of_its_parts() -> None:
    assert root_hash(model="a", kind="q4") == root_hash(kind="q4", model="a")
    assert len(root_hash()) == 16


@given(PARTS, PARTS)
def test_different_parts_have_different_roots(one: dict[str, str], other: dict[str, str]) -> None:
    assert (root_hash(**one) == root_hash(**other)) == (one == other)


def test_parts_that_read_alike_have_different_roots() -> None:
    alike = [{"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"a": "", "bc": ""}, {"a": "b", "b": "c"}, {"abc": ""}]
    assert len({root_hash(**parts) for parts in alike}) == len(alike)
