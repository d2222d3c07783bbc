"""How long a context and how large a cache come out of what there is and what was asked for."""

from __future__ import annotations

import dataclasses

import pytest

from exlchat.engine.cards.room import Room
from exlchat.engine.kv.budget import CachePlan, CacheWishes, plan_cache
from exlchat.ext.kv_formats import KINDS
from exlchat.llm.info import ModelError
from tests.engine.test_kv_cache import spec

PER_TOKEN = 2 * 2 * (64 + 64) * 2  # layers, key-value heads, elements of key and value, bytes
NOTHING = CacheWishes()


def plan(room: int, wishes: CacheWishes = NOTHING, longest: int = 102_400, *, at_once: bool = True) -> CachePlan:
    model = dataclasses.replace(spec(64), max_position_embeddings=longest)
    return plan_cache("here", model, KINDS["fp16"], wishes, Room((room,)), at_once=at_once)


def test_without_wishes_three_contexts_and_no_more_than_a_share_of_the_room() -> None:
    assert plan(10**12) == CachePlan(32_768, 3 * 32_768)
    assert plan(40_000 * PER_TOKEN) == CachePlan(32_768, 32_768)
    assert plan(100_000 * PER_TOKEN) == CachePlan(32_768, 59_904)
    assert plan(10**12, longest=2_000) == CachePlan(2_000, 6_000)


def test_room_for_as_many_as_are_to_run_beside_each_other() -> None:
    assert plan(10**12, CacheWishes(conversations=8)) == CachePlan(32_768, 8 * (32_768 + 256))
    assert plan(100_000 * PER_TOKEN, CacheWishes(conversations=8)) == CachePlan(32_768, 59_904)
    assert plan(10**12, CacheWishes(tokens=50_000, conversations=8)) == CachePlan(32_768, 50_176)


def test_a_context_that_nobody_asked_for_is_shortened_to_what_fits() -> None:
    assert plan(5_000 * PER_TOKEN) == CachePlan(4_864, 4_864)
    with pytest.raises(ModelError, match=r"leave 0\.00 GiB free: fewer bits or a smaller model would fit"):
        plan(-5)


def test_a_context_that_was_asked_for_has_to_fit() -> None:
    asked = CacheWishes(context=102_400)
    assert plan(102_400 * PER_TOKEN, asked) == CachePlan(102_400, 102_400)
    with pytest.raises(ModelError, match=r"a context of 102,400 tokens takes .* GiB free: --context 4864 would fit"):
        plan(5_000 * PER_TOKEN, asked)
    with pytest.raises(ModelError, match="free: --context 59904 or --kv-cache"):
        plan(60_000 * PER_TOKEN, asked)
    with pytest.raises(ModelError, match="200,000 tokens was asked for; this model has 1 to 102,400"):
        plan(10**12, CacheWishes(context=200_000))


@pytest.mark.parametrize(
    "wishes", [CacheWishes(tokens=50_000), CacheWishes(gigabytes=50_200 * PER_TOKEN / 2**30)], ids=["tokens", "GiB"]
)
def test_a_cache_that_was_asked_for(wishes: CacheWishes) -> None:
    assert plan(10**12, wishes) == CachePlan(32_768, 50_176)
    with pytest.raises(ModelError, match=r"a cache of 50,176 tokens takes .* --cache-tokens 19968"):
        plan(20_000 * PER_TOKEN, wishes)


def test_a_cache_smaller_than_the_context() -> None:
    assert plan(10**12, CacheWishes(tokens=4_000)) == CachePlan(4_096, 4_096)
    for wishes in (CacheWishes(tokens=200), CacheWishes(context=8_000, tokens=4_096), CacheWishes(gigabytes=1e-6)):
        with pytest.raises(ModelError, match="too small for one conversation") as error:
            plan(10**12, wishes)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("wishes", [CacheWishes(tokens=10**9), CacheWishes(gigabytes=1e5)], ids=["tokens", "GiB"])
def test_where_memory_is_taken_page_by_page_what_was_asked_for_has_to_fit_too(wishes: CacheWishes) -> None:
    with pytest.raises(ModelError, match=r"takes .* GiB, and the weights leave .* --cache-tokens 19968") as error:
        plan(20_000 * PER_TOKEN, wishes, at_once=False)
    assert "\n" not in str(error.value)
    assert plan(20_000 * PER_TOKEN, at_once=False).context == 32_768
